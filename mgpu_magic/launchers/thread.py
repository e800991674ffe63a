"""One thread of the kernel per worker.

```
 session ── send ──> SimpleQueue ──> mgpu-worker-N: worker.serve(channel)
 session <────────── emit ─────────────────┘     (kill sets an event that ends it between steps)
```

The same loop, protocol and engines as in a process, without a process: models that are built
already can be used, and functions are called as they are. What it costs: a thread cannot be
killed. `kill` asks it to end before its next step, and `Exited` comes when it really has, so that
its device is never given to another before.
"""

from __future__ import annotations

import os
import queue
import threading
import traceback
from typing import TYPE_CHECKING

from mgpu_magic.errors import WorkerStartError
from mgpu_magic.messages import PROTOCOL, Command, Exited, Start, Started
from mgpu_magic.worker import Cancelled, serve

if TYPE_CHECKING:
    from pathlib import Path

    from mgpu_magic.launchers import Emit
    from mgpu_magic.messages import WorkerEvent
    from mgpu_magic.spec import WorkerSpec


class ThreadLauncher:
    """Starts each worker as a thread.

    Args:
        directory: Where the log files go: the traceback of what ended a worker. What a thread
            prints is the kernel's own output.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def start(self, worker: int, spec: WorkerSpec, emit: Emit) -> ThreadHandle:
        """See `Launcher`."""
        try:
            return ThreadHandle(worker, spec, emit, self._directory / f"worker-{worker}.log")
        except RuntimeError as error:
            raise WorkerStartError(
                f"{spec.label}: the worker's thread cannot be started: {error}. Check the limit "
                "on threads (`ulimit -u`)."
            ) from error


class ThreadHandle:
    """A worker thread, see `WorkerHandle`."""

    def __init__(self, worker: int, spec: WorkerSpec, emit: Emit, log: Path) -> None:
        self._worker = worker
        self._emit = emit
        self._log = log
        self._channel = QueueChannel(worker, emit)
        self._write("(a thread of the kernel: what it prints is in the notebook)\n")
        emit(worker, Started(self.pid))
        self.send(Start(PROTOCOL, spec))
        name = f"mgpu-worker-{worker}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    @property
    def pid(self) -> int:
        """The kernel's own process id."""
        return os.getpid()

    @property
    def log(self) -> Path:
        """See `WorkerHandle`."""
        return self._log

    def send(self, command: Command) -> None:
        """See `WorkerHandle`."""
        self._channel.put(command)

    def kill(self) -> None:
        """Ask it to end before its next step; `Exited` tells when it has."""
        self._channel.put(None)

    def _run(self) -> None:
        code = 1
        try:
            serve(self._channel, _pin_thread)
            code = 0
        except Cancelled:
            code = 0
        except BaseException:  # noqa: BLE001  # it was sent as Fatal, and must not end the kernel
            self._write(traceback.format_exc())
        self._emit(self._worker, Exited(code, None))

    def _write(self, text: str) -> None:
        descriptor = os.open(self._log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        with open(descriptor, "a", encoding="utf-8", errors="replace") as log:
            log.write(text)


class QueueChannel:
    """A `Channel` within the kernel.

    Args:
        worker: Number under which its events are emitted.
        emit: Takes the events.
    """

    def __init__(self, worker: int, emit: Emit) -> None:
        self._worker = worker
        self._emit = emit
        self._commands: queue.Queue[Command | None] = queue.Queue()
        self._next: list[Command] = []
        self._cancelled = threading.Event()

    def put(self, command: Command | None) -> None:
        """Send a command; None cancels the worker, whatever else waits to be read."""
        if command is None:
            self._cancelled.set()
        self._commands.put(command)

    def poll(self, seconds: float | None) -> bool:
        """See `Channel`. Raises Cancelled."""
        if not self._next:
            try:
                command = self._commands.get(block=seconds != 0, timeout=seconds or None)
            except queue.Empty:
                return False
            if command is not None:
                self._next.append(command)
        if self._cancelled.is_set():
            raise Cancelled
        return True

    def receive(self) -> Command:
        """See `Channel`. Raises Cancelled."""
        self.poll(None)
        return self._next.pop()

    def send(self, event: WorkerEvent) -> None:
        """See `Channel`."""
        self._emit(self._worker, event)


def _pin_thread(cores: set[int]) -> None:
    os.sched_setaffinity(0, cores)  # 0: this thread; those that it starts inherit it
