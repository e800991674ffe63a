"""Counts of outcomes, how fast a count grows, and how a figure went.

Pure: time comes with each call. Imports `outcomes` alone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import isnan, nan, sqrt
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

    def doubt(self) -> float:
        """Part by which the rate may be wrong, at least: 0.1 stands for 10 %.

        What n events tell has an error of 1 in the root of n; and where the two halves of the
        time do not agree, the rest may not either.
        """
        if len(self._samples) < 2:
            return 1.0
        (start, before), (end, after) = self._samples[0], self._samples[-1]
        middle = (start + end) / 2
        at, half = next(sample for sample in self._samples if sample[0] >= middle)
        if after <= before or not start < at < end:
            return 1.0
        early, late = (half - before) / (at - start), (after - half) / (end - at)
        return min(1.0, max(1 / sqrt(after - before), abs(late - early) / (late + early)))


class History:
    """How a figure went over a whole run, in a bounded number of points.

    Where there are too many, each two become one, so that it always covers everything. Histories
    that are told together have their points at the same times.

    Args:
        mean: Whether a point is the mean of what was added for it; else the most.
        points: The most that there are; even.
    """

    def __init__(self, *, mean: bool, points: int = 40) -> None:
        self._mean = mean
        self._limit = points
        self._whole: list[float] = []
        self._open, self._count = nan, 0  # the point that is being gathered
        self._known = 0  # values in it that are not NaN
        self._each = 1

    def add(self, value: float | None) -> None:
        """The figure is `value` now, None if not known; to be called at even intervals."""
        self._count += 1
        if value is not None:
            self._known += 1
            self._open = self._joined(self._open, value, 1 / self._known)
        if self._count == self._each:
            self._whole.append(self._open)
            self._open, self._count, self._known = nan, 0, 0
        if len(self._whole) == self._limit:
            pairs = zip(self._whole[::2], self._whole[1::2], strict=True)
            self._whole = [self._joined(a, b, 0.5) for a, b in pairs]
            self._each *= 2

    @property
    def points(self) -> tuple[float, ...]:
        """From the beginning until now, evenly spaced; NaN where nothing was known."""
        return (*self._whole, self._open) if self._count else tuple(self._whole)

    def _joined(self, one: float, other: float, share: float) -> float:
        """One value of two; in a mean the other has that share."""
        if isnan(one) or isnan(other):
            return other if isnan(one) else one
        return one + (other - one) * share if self._mean else max(one, other)


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
