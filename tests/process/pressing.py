"""Cells that are interrupted in each phase of a job, as a script that prints what came of it.

```
 presser thread:  phase reached? ── SIGINT ──> this process, or its group
 main thread:     job ── KeyboardInterrupt ──> the next job ──> a row of the table
```

As in a kernel a signal is ignored between cells.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mgpu_magic import ResultSet, Session
from process.jobs import job
from process.living import workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mgpu_magic.snapshot import Snapshot

PROMPTS = [f"p {i}" for i in range(40)]
TIMES = {"once": (0.0,), "five times": (0.0, 0.001, 0.005, 0.1, 0.3)}

STEADY = {"delay": 0.01, "delay_per_character": 0.001}

Reached = threading.Event


def phases_of(snapshot: Snapshot) -> set[str]:
    """What the workers do."""
    return {device.worker.phase for device in snapshot.devices if device.worker}


@dataclass(slots=True)
class Stage:
    """A moment of a job, and the job.

    Attributes:
        begun: Whether the job has begun then, and results exist.
        at: Whether a snapshot shows that it is reached; None: the prompts or the view say so.
        args: Engine arguments; where they are not the usual ones, of new workers.
        options: Of the job.
        prompts: Makes them.
        view: Seconds that the first and the last drawing take.
    """

    at: Callable[[Snapshot], bool] | None = None
    begun: bool = True
    args: dict[str, float] = field(default_factory=lambda: STEADY)
    options: dict[str, Any] = field(default_factory=dict)
    prompts: Callable[[Reached], object] = lambda reached: PROMPTS
    view: tuple[float, float] = (0, 0)


def slow_prompts(reached: Reached) -> Iterator[str]:
    """Prompts that somebody has to wait for."""
    for prompt in PROMPTS:
        yield prompt
        reached.set()
        time.sleep(0.2)


def many_prompts(reached: Reached) -> list[str]:
    """Prompts that take long to read."""
    threading.Timer(0.05, reached.set).start()
    return ["p"] * 1_500_000


STAGES = {
    "a slow generator": Stage(begun=False, prompts=slow_prompts),
    "many prompts": Stage(begun=False, prompts=many_prompts),
    "first display": Stage(view=(0.2, 0)),
    "running": Stage(at=lambda now: now.job.done >= 3),
    "the tail": Stage(
        at=lambda now: now.job.done == 40, prompts=lambda reached: [*PROMPTS, "p" * 400]
    ),
    "last display": Stage(view=(0, 0.2)),
    "importing": Stage(at=lambda now: "importing" in phases_of(now), args={"import_delay": 0.4}),
    "waiting to load": Stage(
        at=lambda now: now.job.done >= 3 and "waiting to load" in phases_of(now),
        options={"stagger": 0.5},
    ),
    "loading": Stage(at=lambda now: "loading" in phases_of(now), args={"load_delay": 0.4}),
}


class View:
    """Tells when a stage is reached."""

    def __init__(self, stage: Stage, reached: Reached) -> None:
        self._stage = stage
        self._reached = reached
        self._first = True

    def update(self, snapshot: Snapshot) -> None:
        if self._first and self._stage.view[0]:
            self._reached.set()
            time.sleep(self._stage.view[0])
        self._first = False

    def finish(self, snapshot: Snapshot) -> None:
        if self._stage.view[1]:
            self._reached.set()
            time.sleep(self._stage.view[1])


class Presser(threading.Thread):
    """Interrupts this process, or its group, once the stage is reached.

    Attributes:
        reached: Set where no snapshot shows it.
        at: When it first did.
        workers: Those that lived then.
        over: Set where the job has ended without it.
    """

    def __init__(
        self, session: Session, stage: Stage, *, group: bool, times: tuple[float, ...]
    ) -> None:
        super().__init__()
        self.reached = Reached()
        self.at = float("inf")
        self.workers: set[int] = set()
        self.over = threading.Event()
        self._session = session
        self._stage = stage
        self._group = group
        self._times = times

    def run(self) -> None:
        while not self._is_reached():
            if self.over.wait(0.005):
                return
        time.sleep(random.random() * 0.02)
        living = self._session._loop.call(self._session._instruments.living)
        self.workers = {one.pid for one in living} - {os.getpid()}  # quicker than `workers`
        self.at = time.monotonic()
        for after in self._times:
            time.sleep(max(0.0, self.at + after - time.monotonic()))
            if self._group:
                os.killpg(0, signal.SIGINT)
            else:
                os.kill(os.getpid(), signal.SIGINT)

    def _is_reached(self) -> bool:
        if self._stage.at is None:
            return self.reached.is_set()
        now = self._session._look()
        return now.job.state == "running" and self._stage.at(now)


def interrupted(
    session: Session,
    stage: Stage,
    launcher: str,
    *,
    group: bool,
    times: tuple[float, ...],
    attempts: int = 5,
) -> dict[str, Any]:
    """Interrupt one job; returns what came of it, and of the next.

    On a busy machine the stage can be over before it is seen: then the job is run again.
    """
    options = {"engine_args": stage.args, "launcher": launcher, **stage.options}
    presser = Presser(session, stage, group=group, times=times)
    prompts = stage.prompts(presser.reached)
    presser.start()
    error: BaseException | None = None
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        session.run(job(prompts, **options), View(stage, presser.reached))
    except BaseException as caught:  # noqa: BLE001  # that is what is asked
        error = caught
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    seconds = time.monotonic() - presser.at
    last = session.last
    presser.over.set()
    presser.join()
    if error is None and presser.at == float("inf") and attempts > 1:
        left = attempts - 1
        return interrupted(session, stage, launcher, group=group, times=times, attempts=left)
    results = session.run(job(["x", "y z"], **options))
    assert isinstance(results, ResultSet)
    kept = getattr(error, "results", None)
    return {
        "error": type(error).__name__,
        "seconds": seconds,
        "prompts": [] if kept is None else prompts,
        "texts": [] if kept is None else kept.texts,
        "kinds": [] if kept is None else sorted({one.error.kind for one in kept.failures}),
        "last": kept is None or last == kept,
        "before": sorted(presser.workers),
        "after": sorted(workers()),
        "next": results.texts,
    }


def main(launcher: str, times: str) -> None:
    """Print a row for each stage, once to the process and once to its group."""
    random.seed(5)
    rows = {}
    with Session("cpu:2") as session:
        for group in (False, True):
            session.run(job(["warm"] * 4, engine_args=STEADY, launcher=launcher))
            for name, stage in STAGES.items():
                if stage.args is not STEADY or stage.options:
                    session.free()
                rows[f"{name}, {'group' if group else 'alone'}"] = interrupted(
                    session, stage, launcher, group=group, times=TIMES[times]
                )
    print(json.dumps(rows))  # noqa: T201  # what the test reads
