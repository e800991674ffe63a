"""The workers that are alive: started, retired, and known by what they hold loaded.

One worker per device: before one is started, whoever sits on its devices is retired and waited
for. Not thread-safe: the session's loop alone calls it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from mgpu_magic.errors import WorkerStartError
from mgpu_magic.messages import Command, Drain, Event, Exited, Fatal, Load, Loading, Ready
from mgpu_magic.outcomes import RemoteError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from mgpu_magic.launchers import Emit, Launcher, WorkerHandle
    from mgpu_magic.spec import Device, LauncherName, WorkerSpec

    Later: TypeAlias = Callable[[float, Callable[[], None]], None]

DRAIN_SECONDS = 10.0  # for a worker that was asked to leave; then it is killed


@dataclass(slots=True, eq=False)
class Worker:
    """One living worker.

    Attributes:
        number: Its number within the session.
        spec: What it loads and where.
        handle: Its process; None while it waits for its devices to be free.
        imported: It waits for, or has got, the word to load.
        granted: It has got the word to load.
        ready: What it said when it was ready.
        leaving: It was told to go.
        pace: Its speed in the last job that showed it, as a multiple of its model's mean.
    """

    number: int
    spec: WorkerSpec
    handle: WorkerHandle | None = None
    imported: bool = False
    granted: bool = False
    ready: Ready | None = None
    leaving: bool = False
    pace: float | None = None
    queued: list[Command] = field(default_factory=list)

    @property
    def stage(self) -> str:
        """How far it is: `"waiting"` for its device, a stage of `Loading`, or `"ready"`."""
        if self.handle is None:
            return "waiting"
        if self.ready is not None:
            return "ready"
        if self.granted:
            return "loading"
        return "imported" if self.imported else "importing"

    def send(self, command: Command) -> None:
        """Send a command; one that is sent before the process exists is kept for it."""
        self.granted |= isinstance(command, Load)
        if self.handle is None:
            self.queued.append(command)
        else:
            self.handle.send(command)


class Fleet:
    """All living workers of a session.

    Args:
        launchers: Start them, by `WorkerSpec.launcher`.
        emit: Called with each event, from any thread.
        later: `later(seconds, act)` has the loop call `act` after that time.
    """

    def __init__(
        self, launchers: Mapping[LauncherName, Launcher], emit: Emit, later: Later
    ) -> None:
        self._launchers = launchers
        self._emit = emit
        self._later = later
        self._workers: dict[int, Worker] = {}

    def __iter__(self) -> Iterator[Worker]:
        return iter(list(self._workers.values()))

    def get(self, number: int) -> Worker | None:
        """The living worker of that number."""
        return self._workers.get(number)

    def warm(self, spec: WorkerSpec, besides: Iterable[int] = ()) -> Worker | None:
        """A worker that holds, or is about to hold, just what `spec` asks for."""
        for worker in self._workers.values():
            if worker.spec == spec and not worker.leaving and worker.number not in besides:
                return worker
        return None

    def start(self, number: int, spec: WorkerSpec) -> None:
        """Start a worker as soon as its devices are free, which nobody else waits for then."""
        worker = Worker(number, spec)
        self._workers[number] = worker
        for occupant in self._occupants(worker):
            self.retire(occupant.number)
        if not self._occupants(worker):
            self._launch(worker)

    def before(self, number: int) -> list[Worker]:
        """Who must be gone before the worker of that number can start."""
        worker = self._workers.get(number)
        if worker is None or worker.handle is not None:
            return []
        return self._occupants(worker)

    def retire(self, number: int) -> None:
        """Let a worker go: what it runs is finished first, within a limit."""
        worker = self._workers.get(number)
        if worker is None or worker.leaving:
            return
        worker.leaving = True
        if worker.handle is None:
            del self._workers[number]
        elif worker.ready is None:
            worker.handle.kill()  # nothing to finish, and it would not listen while it loads
        else:
            worker.send(Drain())
            self._later(DRAIN_SECONDS, worker.handle.kill)

    def kill(self, number: int) -> None:
        """End a worker now."""
        worker = self._workers.get(number)
        if worker is not None:
            worker.leaving = True
            if worker.handle is None:
                del self._workers[number]
            else:
                worker.handle.kill()

    def end(self, number: int) -> None:
        """End the process of a worker that hangs; its device stays its own until it is gone."""
        worker = self._workers.get(number)
        if worker is not None and worker.handle is not None:
            worker.handle.kill()

    def apply(self, number: int, event: Event) -> None:
        """Keep up with what a worker said; where one has gone, start who waited for its device."""
        worker = self._workers.get(number)
        if worker is None:
            return
        match event:
            case Loading(stage="imported"):
                worker.imported = True
            case Ready():
                worker.ready = event
            case Fatal() if worker.handle is not None:
                self._later(DRAIN_SECONDS, worker.handle.kill)  # should it not find its way out
            case Exited():
                del self._workers[number]
                for waiting in self:
                    free = waiting.handle is None and not waiting.leaving
                    if free and not self._occupants(waiting):
                        self._launch(waiting)
            case _:
                pass

    def _launch(self, worker: Worker) -> None:
        try:
            launcher = self._launchers[worker.spec.launcher]
            worker.handle = launcher.start(worker.number, worker.spec, self._emit)
        except WorkerStartError as error:
            worker.leaving = True
            self._emit(worker.number, Fatal(RemoteError("WorkerStartError", error.args[0])))
            self._emit(worker.number, Exited(None, None))
            return
        for command in worker.queued:
            worker.handle.send(command)

    def _occupants(self, worker: Worker) -> list[Worker]:
        """Who must be gone before `worker` can start: all others on any of its devices."""
        return [
            other
            for other in self._workers.values()
            if other is not worker
            and any(_same(a, b) for a in other.spec.devices for b in worker.spec.devices)
        ]


def _same(one: Device, other: Device) -> bool:
    if one.kind != other.kind:
        return False
    return one.mask == other.mask if one.kind == "cuda" else bool({*one.cores} & {*other.cores})
