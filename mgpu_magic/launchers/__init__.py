"""How a worker comes to be: started, talked to, known to be dead.

A launcher turns a `WorkerSpec` into a `WorkerHandle` and calls `emit(worker, event)` for each
event of that worker, from a thread of its own. The last event of a worker is `Exited`: by then
its process, and whatever that process started, is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mgpu_magic.messages import Command, Event
    from mgpu_magic.spec import WorkerSpec

    Emit: TypeAlias = Callable[[int, Event], None]


class WorkerHandle(Protocol):
    """One started worker."""

    @property
    def pid(self) -> int:
        """Its process id."""

    @property
    def log(self) -> Path:
        """The file that holds all it printed."""

    def send(self, command: Command) -> None:
        """Send a command. Never blocks, never fails: a dead worker is told by `Exited`."""

    def kill(self) -> None:
        """End it and whatever it started, now."""


class Launcher(Protocol):
    """Starts workers."""

    def start(self, worker: int, spec: WorkerSpec, emit: Emit) -> WorkerHandle:
        """Start one; `worker` is the number under which its events are emitted.

        Raises:
            WorkerStartError: The process cannot be created.
        """
