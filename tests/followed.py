"""A job of one worker, told to a `Progress` by a clock that is moved by hand."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from mgpu_magic.messages import (
    Event,
    Ready,
    Started,
    Stats,
)
from mgpu_magic.outcomes import (
    Completion,
    Failure,
    Outcome,
    Prediction,
    RemoteError,
)
from mgpu_magic.progress import Progress
from mgpu_magic.spec import Device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mgpu_magic.snapshot import (
        JobView,
        WorkerView,
    )

GIB = 2**30
DEVICES = [
    Device(kind="cuda", index=index, name="Tesla T4", mask=str(index), total_bytes=15 * GIB)
    for index in range(2)
]


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Job:
    """A job of model `"m"` whose worker 0 is on `cuda:0`."""

    def __init__(
        self, total: int = 100, devices: Sequence[str] = ("cuda:0",), recorded: int = 0
    ) -> None:
        self.clock = Clock()
        self.progress = Progress(DEVICES, self.clock)
        self.progress.begin({"m": total}, recorded={"m": recorded})
        self.progress.assign(0, "m", devices)

    def say(self, *events: Event, seconds: float = 0.0) -> None:
        for event in events:
            self.progress.apply(0, event)
            self.clock.now += seconds

    def run(self, count: int = 50) -> None:
        self.say(Started(1), Ready(8, 2.5))
        self.progress.submitted(0, count)

    def answer(self, count: int, tokens: int = 10) -> None:
        self.progress.recorded("m", 0, [answer(tokens)] * count)

    @property
    def view(self) -> JobView:
        return self.progress.snapshot().job

    @property
    def worker(self) -> WorkerView:
        worker = self.progress.snapshot().devices[0].worker
        assert worker is not None
        return worker


def answer(tokens: int = 10) -> Completion:
    """An answer of so many tokens to a prompt of three."""
    return Completion(
        index=0,
        texts=("x",),
        finish_reasons=("stop",),
        prompt_tokens=3,
        output_tokens=tokens,
        seconds=1.0,
        device="cuda:0",
    )


def prediction() -> Prediction:
    """The numbers for a prompt of seven tokens."""
    return Prediction(
        index=0,
        task="classify",
        values=array("f", [1.0, 2.0]),
        labels=("no", "yes"),
        activation="softmax",
        prompt_tokens=7,
        seconds=1.0,
        device="cuda:0",
    )


def failure(kind: str = "ValueError") -> Outcome:
    """A prompt that failed."""
    return Failure(0, RemoteError(kind, "no"))


def stats(output_tokens: int) -> Stats:
    """A sign of life of a worker that has four requests running and two waiting."""
    return Stats(4, 2, 0, output_tokens, 0.5)
