"""Stand-ins for what is outside: workers whose words are written down beforehand."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

from mgpu_magic.messages import (
    PROTOCOL,
    Drain,
    Exited,
    Hello,
    Load,
    Loading,
    Outcomes,
    Ready,
    Start,
    Started,
    Stopped,
    Submit,
)
from mgpu_magic.outcomes import Completion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mgpu_magic.launchers import Emit
    from mgpu_magic.messages import Command, Event
    from mgpu_magic.spec import WorkerSpec

    Answer = Callable[[Command], Iterable[Event]]


def completion(index: int, text: str = "", device: str = "cpu:0") -> Completion:
    """An answer of one word."""
    return Completion(
        index=index,
        texts=(text,),
        finish_reasons=("stop",),
        prompt_tokens=1,
        output_tokens=1,
        seconds=0.0,
        device=device,
    )


def obedient(command: Command) -> Iterable[Event]:
    """What a worker says that does all it is told, and answers with the prompt."""
    match command:
        case Start():
            return [Hello(PROTOCOL, 1), Loading("importing"), Loading("imported")]
        case Load():
            return [Ready(8, 0.0)]
        case Submit(job, requests):
            return [Outcomes(job, tuple(completion(r.index, str(r.prompt)) for r in requests))]
        case Drain():
            return [Stopped(), Exited(0, None)]
        case _:
            return []


class FakeHandle:
    """A worker without a process, see `WorkerHandle`.

    Attributes:
        commands: What it was sent.
    """

    def __init__(self, worker: int, pid: int, emit: Emit, answer: Answer) -> None:
        self.pid = pid
        self.log = Path("/nowhere")
        self.commands: list[Command] = []
        self._worker = worker
        self._emit = emit
        self._answer = answer

    def send(self, command: Command) -> None:
        self.commands.append(command)
        for event in self._answer(command):
            self._emit(self._worker, event)

    def kill(self) -> None:
        self._emit(self._worker, Exited(None, "SIGKILL"))


class FakeLauncher:
    """Starts workers that say what they are told to, see `Launcher`.

    Args:
        answer: What a worker says to a command.

    Attributes:
        handles: The workers, in the order of their starts.
    """

    def __init__(self, answer: Answer = obedient) -> None:
        self.handles: list[FakeHandle] = []
        self._answer = answer
        self._pids = itertools.count(2**22 + 1)  # beyond what Linux gives away

    def start(self, worker: int, spec: WorkerSpec, emit: Emit) -> FakeHandle:
        handle = FakeHandle(worker, next(self._pids), emit, self._answer)
        self.handles.append(handle)
        emit(worker, Started(handle.pid))
        handle.send(Start(PROTOCOL, spec))
        return handle
