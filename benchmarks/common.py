"""What the measurements share: the model, the prompts, the peer and the table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import IO, TYPE_CHECKING, Any, Self

from mgpu_magic import Completion, ResultSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mgpu_magic import Session

ROOT = Path(__file__).parents[1]
SEED = 6  # of whatever is random in any of them
PROMPTS = [f"Write one sentence about the number {number}." for number in range(200)]

SLOTS = 16

# Alike for both sides; prefix caching would make later rounds faster than the first.
ENGINE_ARGS = {
    "max_model_len": 256,
    "max_num_seqs": SLOTS,
    "enable_prefix_caching": False,
    "dtype": "bfloat16",
    "enforce_eager": True,
}


def two_cores() -> tuple[int, int]:
    """The cores that each side has, one per replica."""
    one, two, *_ = sorted(os.sched_getaffinity(0))
    return one, two


def of_tokens(counts: Sequence[int]) -> list[dict[str, Any]]:
    """Sampling that generates exactly so many tokens for each prompt."""
    return [{"temperature": 0, "max_tokens": count, "ignore_eos": True} for count in counts]


def model(which: str = "") -> str:
    """Directory of the small model, made on the first call; with `"embedder"`, of the other."""
    script = [sys.executable, "demo_notebooks/small_model.py", which]
    return subprocess.run(
        script, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def answers(
    session: Session, job: dict[str, Any], prompts: Sequence[str], **options: Any
) -> ResultSet:
    """What the session answers."""
    results = session.generate(job, prompts, **options)
    assert isinstance(results, ResultSet)
    results.raise_for_failures()
    return results


def warm_up(session: Session, job: dict[str, Any]) -> None:
    """Return when all devices of the session have the model loaded."""
    devices = {device.label for device in session.status().devices}
    while devices:
        results = answers(session, job, PROMPTS[:8], max_tokens=1)
        devices -= {result.device for result in results if isinstance(result, Completion)}
        time.sleep(0.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What was measured: the median of its rounds.

    Attributes:
        what: In words.
        rounds: What each round gave.
        target: The value that the median has to reach; with `at_most`, not to exceed; None: it is
            there to compare with.
        load: The machine's load average of the last minute, after the last round.
    """

    what: str
    rounds: Sequence[float]
    target: float | None = None
    at_most: bool = False
    load: float = field(default_factory=lambda: os.getloadavg()[0])

    @property
    def value(self) -> float:
        """The median."""
        return median(self.rounds)

    @property
    def missed(self) -> bool:
        """Whether there is a target, and the median does not reach it."""
        if self.target is None:
            return False
        return self.value > self.target if self.at_most else self.value < self.target

    @property
    def cells(self) -> tuple[str, ...]:
        """Of a table: what, the median, the target, whether it is missed, the rounds, the load."""
        sign = "≤" if self.at_most else "≥"
        return (
            self.what,
            number(self.value),
            "" if self.target is None else f"{sign} {self.target:g}",
            "missed" if self.missed else "",
            " ".join(map(number, self.rounds)),
            f"{self.load:.1f}",
        )


def number(value: float) -> str:
    """With three or four figures that say something."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}".rstrip(".")


class Peer:
    """vLLM alone, as a script of one's own runs it: a process on one core, `LLM.generate`.

    Use it in a `with` block; it is loaded when the block begins.
    """

    def __init__(self, core: int, model: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peer", str(core), model],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> Self:
        self._answer()
        return self

    def __exit__(self, *error: object) -> None:
        self._commands.close()
        self._process.wait()

    def begin(self, prompts: Sequence[str], sampling: Sequence[dict[str, Any]]) -> None:
        """Have it answer."""
        print(json.dumps([prompts, sampling]), file=self._commands, flush=True)

    def wait(self) -> int:
        """Wait for the answers; returns the number of generated tokens."""
        return int(self._answer())

    @property
    def _commands(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


class Stopwatch:
    """Seconds of a `with` block."""

    seconds = 0.0

    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self._began


def table(figures: Sequence[Figure]) -> str:
    """They as a Markdown table."""
    head = ("what", "median", "target", "", "rounds", "load")
    return markdown(head, [figure.cells for figure in figures])


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def show(figures: Sequence[Figure]) -> int:
    """Print them; returns the exit code: 0 if no target is missed."""
    print(table(figures))
    return 1 if any(figure.missed for figure in figures) else 0
