"""Counts of outcomes, and how fast a count grows.

Pure: time comes with each call. Imports `outcomes` alone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from mgpu_magic.outcomes import Completion, Failure, Prediction, Returned

if TYPE_CHECKING:
    from mgpu_magic.outcomes import Outcome


class Window:
    """How fast a counter grew over the last seconds, in bounded memory.

    Args:
        seconds: How many.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._samples: deque[tuple[float, int]] = deque()

    def restart(self, now: float, count: int) -> None:
        """Forget what was: it is counted from here."""
        self._samples.clear()
        self._samples.append((now, count))

    def add(self, now: float, count: int) -> None:
        """The counter stands at `count`."""
        samples = self._samples
        if len(samples) > 1 and now - samples[-2][0] < self._seconds / 20:
            samples[-1] = (now, count)
        else:
            samples.append((now, count))
        while len(samples) > 2 and samples[1][0] <= now - self._seconds:
            samples.popleft()

    def per_second(self, now: float) -> float:
        """The rate; 0 where nothing was added within the last seconds."""
        if not self._samples or self._samples[-1][0] < now - self._seconds:
            return 0.0
        (start, before), (end, after) = self._samples[0], self._samples[-1]
        return max(0, after - before) / max(1.0, end - start)


@dataclass(slots=True)
class Tally:
    """Counts of outcomes, whatever the task.

    Attributes:
        done: All of them.
        failed: Failures.
        prompt_tokens: Tokens of the answered prompts, where they are counted.
        output_tokens: Tokens generated.
    """

    done: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0

    @property
    def answered(self) -> int:
        """Those that are no failures."""
        return self.done - self.failed

    def add(self, outcome: Outcome) -> None:
        """Count one more."""
        self.done += 1
        match outcome:
            case Completion():
                self.prompt_tokens += outcome.prompt_tokens
                self.output_tokens += outcome.output_tokens
            case Prediction():
                self.prompt_tokens += outcome.prompt_tokens
            case Returned():
                pass
            case Failure():
                self.failed += 1
            case _:
                assert_never(outcome)


def per_second(count: int, seconds: float) -> float:
    """The average; 0 where no time has passed."""
    return count / seconds if seconds else 0.0
