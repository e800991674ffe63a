"""Tells which workers of a job hang: no sign of life, or nothing gets done any more.

```
events ── heard ──> Watchdog ── tick(seconds) ──> Alarm per hung worker
```

Time is what the ticks say it is, so that a kernel that was suspended itself finds no worker guilty
of the pause. Pure; imports `messages` and `spec` alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from mgpu_magic.messages import (
    Event,
    Exited,
    Fatal,
    Hello,
    Hung,
    Loading,
    Outcomes,
    Ready,
    Started,
    Stats,
    Stopped,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mgpu_magic.spec import EngineName

HANG_SECONDS = 300.0  # an import from a slow disk, or the first step of a big model, may take long
# However impatient a user is with the engine:
DEVICE_SECONDS = 60.0  # a process that makes room is given a while, and then killed
SIGN_SECONDS = 10.0  # a process starts, and its threads run, late on a busy machine
LOAD_STEPS = 10  # as long as so many steps may take to load


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """For how many seconds a worker may do without something; infinity: for ever.

    Attributes:
        device: Without its device, which another holds.
        signs: Without a sign of life, which comes each second from a thread of its own.
        load: Without news of its import or load.
        step: Without a finished step of its engine, while it has requests.
    """

    device: float
    signs: float
    load: float
    step: float

    @classmethod
    def of(cls, engine: EngineName, hang_timeout: float | None) -> Patience:
        """What is usual for an engine, or what `hang_timeout` allows for a step.

        How long a load or a function of the user's takes is not ours to know: without a limit
        given, a load needs no news, and a function may do whatever it likes.
        """
        if hang_timeout is None:
            usual = math.inf if engine == "python" else HANG_SECONDS
            return cls(device=usual, signs=usual, load=math.inf, step=usual)
        return cls(
            device=max(hang_timeout, DEVICE_SECONDS),
            signs=max(hang_timeout, SIGN_SECONDS),
            load=LOAD_STEPS * hang_timeout,
            step=hang_timeout,
        )


@dataclass(slots=True)
class _Watched:
    patience: Patience
    stage: str
    silent: float = 0.0
    idle: float = 0.0
    steps: int = 0

    def tick(self, seconds: float, *, expects: bool) -> str:
        """Let time pass; returns why it is taken to hang, or nothing."""
        self.silent += seconds
        self.idle = self.idle + seconds if expects else 0.0
        match self.stage:
            case "waiting":
                what = "its device was not free"
                return _over(self.idle, self.patience.device, what, f"{DEVICE_SECONDS:g} at least")
            case "ready":
                stuck = _over(self.idle, self.patience.step, "it finished no step of its engine")
            case stage:
                what = f"it sent no news while {stage}"
                stuck = _over(self.idle, self.patience.load, what, f"times {LOAD_STEPS}")
        what = "it gave no sign of life"
        return stuck or _over(self.silent, self.patience.signs, what, f"{SIGN_SECONDS:g} at least")


class Watchdog:
    """Watches the workers of one job that have a process or thread."""

    def __init__(self) -> None:
        self._watched: dict[int, _Watched] = {}

    def watch(self, worker: int, patience: Patience, stage: str) -> None:
        """Watch a worker, from now on anew.

        Args:
            worker: Its number.
            patience: What it may do without.
            stage: How far it is: `"waiting"` for its device, `"starting"`, a stage of `Loading`,
                or `"ready"`.
        """
        self._watched[worker] = _Watched(patience, stage)

    def granted(self, worker: int) -> None:
        """A worker may load now: from here on it is waited for."""
        if (watched := self._watched.get(worker)) is not None:
            watched.stage, watched.idle = "loading", 0.0

    def heard(self, worker: int, event: Event) -> None:
        """A worker says something; of one that is not watched it is ignored."""
        watched = self._watched.get(worker)
        if watched is None:
            return
        watched.silent = 0.0
        match event:
            case Loading(stage):
                watched.stage, watched.idle = stage, 0.0
            case Ready():
                watched.stage, watched.idle = "ready", 0.0
            case Outcomes():
                watched.idle = 0.0
            case Stats(steps=steps):
                if steps != watched.steps:
                    watched.steps, watched.idle = steps, 0.0
            case Exited() | Fatal() | Hung() | Stopped():
                del self._watched[worker]  # on its way out, which others see to
            case Started() | Hello():
                pass
            case _:
                assert_never(event)

    def tick(self, seconds: float, in_flight: Callable[[int], int]) -> Iterator[tuple[int, str]]:
        """Let time pass; yields each worker that hangs, with the reason, once.

        Args:
            seconds: Since the last tick.
            in_flight: How many requests are at a worker.
        """
        for worker, watched in list(self._watched.items()):
            expects = in_flight(worker) > 0 if watched.stage == "ready" else True
            if reason := watched.tick(seconds, expects=expects and watched.stage != "imported"):
                del self._watched[worker]
                yield worker, reason


def _over(seconds: float, limit: float, what: str, derived: str = "") -> str:
    """What took longer than the limit, with the option that sets it; empty: nothing did."""
    option = ", ".join(filter(None, ("--hang-timeout", derived)))
    return f"{what} for {limit:g} s ({option})" if seconds > limit else ""
