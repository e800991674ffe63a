"""The life of a worker as one table, and the values that the scheduler deals in.

```
      StartWorker        GrantLoad          Ready         Retire            Stopped
 NEW ────────────> STARTING ─────> LOADING ──────> READY ───────> DRAINING ────────> STOPPED
                      │     Exited    │              │ Exited
                      └───> FAILED <──┘              └──────> LOST ── StartWorker ──> STARTING
                               └── StartWorker, where it hung ──> STARTING
```

`StartWorker`, `GrantLoad` and `Retire` are actions, the rest events. Pure; imports `messages`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from mgpu_magic.messages import (
    Event,
    Exited,
    Fatal,
    Hello,
    Hung,
    Loading,
    Outcomes,
    Ready,
    Request,
    Started,
    Stats,
    Stopped,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mgpu_magic.outcomes import Outcome, RemoteError


class WorkerState(Enum):
    """Where a worker is in its life."""

    NEW = "new"
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    LOST = "lost"
    FAILED = "failed"


NEW, STARTING, LOADING, READY, DRAINING, STOPPED, LOST, FAILED = WorkerState


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A worker of the job, as it is when the job begins.

    Attributes:
        worker: Its number, by which events and actions name it.
        model: Name of its model.
        devices: Labels of its devices.
        wave: Its turn on its devices. A worker that exists already comes before all waves, so
            that a warm model is used before it has to make room.
        state: NEW, or how far a worker that exists already has come.
        imported: Whether it waits for `GrantLoad` (STARTING only).
        capacity: What its `Ready` said (READY only).
        slots: The same; None: as many.
        pace: Its speed in an earlier job, as a multiple of its model's mean (READY only), if known.
        memory_bandwidth: Bytes per second of its devices, if known.
    """

    worker: int
    model: str
    devices: tuple[str, ...]
    wave: int = 0
    state: WorkerState = NEW
    imported: bool = False
    capacity: int = 0
    slots: int | None = None
    pace: float | None = None
    memory_bandwidth: float | None = None


@dataclass(frozen=True, slots=True)
class Death:
    """Why a worker is gone for good.

    Attributes:
        device: Label of its device(s).
        error: What it said in its `Fatal`, if it could.
        exited: How its process ended, with the tail of its log.
        of_sampling: Nothing is wrong with its model: it refused the job's sampling.
    """

    device: str
    error: RemoteError | None
    exited: Exited
    of_sampling: bool = False

    @property
    def reason(self) -> str:
        """`"cpu:1: ValueError: no such model"` or `"cpu:1: killed by SIGSEGV"`."""
        if self.error is None:
            return f"{self.device}: {self.exited.reason}"
        return f"{self.device}: {self.error.kind}: {self.error.message}"


# --- actions ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start its process, once the processes that were on its devices are gone."""

    worker: int


@dataclass(frozen=True, slots=True)
class GrantLoad:
    """Let it load its model.

    Attributes:
        worker: Who.
        delay_seconds: Not before so many seconds after the job's first grant.
    """

    worker: int
    delay_seconds: float


@dataclass(frozen=True, slots=True)
class SubmitTo:
    """Send it these requests.

    Attributes:
        worker: Who gets them.
        requests: What it gets.
        retries: How many of them a worker died with before.
    """

    worker: int
    requests: tuple[Request, ...]
    retries: int = 0


@dataclass(frozen=True, slots=True)
class AbortAt:
    """Let it forget these requests."""

    worker: int
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Retire:
    """End it; nothing is in flight there. Before it is ready it can only be terminated."""

    worker: int


@dataclass(frozen=True, slots=True)
class Record:
    """These requests of the model are resolved, each once in a job."""

    model: str
    outcomes: tuple[Outcome, ...]


Action: TypeAlias = StartWorker | GrantLoad | SubmitTo | AbortAt | Retire | Record
Trigger: TypeAlias = type[Event] | type[StartWorker] | type[GrantLoad] | type[Retire]


def _stay(state: WorkerState, *triggers: Trigger) -> dict[Trigger, WorkerState]:
    return dict.fromkeys(triggers, state)


TRANSITIONS: Mapping[WorkerState, Mapping[Trigger, WorkerState]] = MappingProxyType(
    {
        NEW: {StartWorker: STARTING},
        STARTING: {
            **_stay(STARTING, Started, Hello, Loading, Stats, Fatal, Hung),
            GrantLoad: LOADING,
            Retire: DRAINING,
            Exited: FAILED,
        },
        LOADING: {
            **_stay(LOADING, Loading, Stats, Fatal, Hung),
            Ready: READY,
            Retire: DRAINING,
            Exited: FAILED,
        },
        READY: {
            **_stay(READY, Outcomes, Stats, Fatal, Hung),
            Retire: DRAINING,
            Exited: LOST,
        },
        # What was already on its way when it was retired still arrives.
        DRAINING: {
            **_stay(DRAINING, Started, Hello, Loading, Ready, Outcomes, Stats, Fatal),
            Stopped: STOPPED,
            Exited: STOPPED,
        },
        STOPPED: _stay(STOPPED, Stats, Exited),
        LOST: {StartWorker: STARTING},
        FAILED: {StartWorker: STARTING},
    }
)
"""The state that an event or action leads to; what is not listed is not allowed."""
