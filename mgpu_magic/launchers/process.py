"""One spawned process per worker.

```
            kernel                                    worker process (own session)
 session ── send ──> writer thread ──┐
                                     ├── socketpair ── python -m mgpu_magic.worker
 session <── emit ── reader thread ──┘                        │
             emit ── waiter thread: wait() on the process     │
             (open until the kernel dies) ── lifeline pipe ───┘
```

The child's environment is complete before its interpreter starts, so nothing can touch CUDA or
count cores too early; `__main__` is never imported again; the kernel's own environment stays as
it is. Death is what `wait()` says, never the end of the pipe.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from mgpu_magic import process_group
from mgpu_magic.errors import ProtocolError, WorkerStartError
from mgpu_magic.messages import (
    PROTOCOL,
    Command,
    Exited,
    Fatal,
    Start,
    Started,
    decode_event,
    encode,
)
from mgpu_magic.outcomes import RemoteError
from mgpu_magic.redaction import LONGEST, redacted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from mgpu_magic.launchers import Emit
    from mgpu_magic.spec import WorkerSpec

LOG_TAIL_BYTES = 4096
LAST_WORDS_SECONDS = 5.0
_SOCKET_PATH = 107  # characters that the path of a Unix socket may have
_SOCKET_NAME = 37


def environment(
    spec: WorkerSpec,
    base: Mapping[str, str],
    path: Sequence[str] = (),
    private: Path | None = None,
) -> dict[str, str]:
    """The environment of a worker: the kernel's, narrowed to the worker's device.

    Args:
        spec: The worker.
        base: The kernel's environment.
        path: The kernel's `sys.path`: the worker shall import what the kernel would.
        private: A folder for the temporary files of vLLM's own processes, which they leave
            behind when they are killed.
    """
    variables = dict(base)
    variables["PYTHONUNBUFFERED"] = "1"
    folders = [
        entry or os.getcwd() for entry in path if isinstance(entry, str)
    ]  # as Python reads it
    variables["PYTHONPATH"] = os.pathsep.join(folders)
    variables.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # the order in which NVML counts
    variables["CUDA_VISIBLE_DEVICES"] = ",".join(device.mask for device in spec.devices)
    cores = sum(len(device.cores) for device in spec.devices)
    if cores:
        variables["OMP_NUM_THREADS"] = str(cores)
    if private and spec.engine == "vllm" and len(str(private)) + _SOCKET_NAME <= _SOCKET_PATH:
        # But what torch compiled is good for the next worker too.
        cache = os.path.join(tempfile.gettempdir(), f"torchinductor_{_user()}")
        variables.setdefault("TORCHINDUCTOR_CACHE_DIR", cache)
        variables["TMPDIR"] = str(private)
    return variables


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user of a container may be a number alone
        return str(os.getuid())


class ProcessLauncher:
    """Starts each worker as a process of its own.

    Args:
        directory: Where the log files go, and what workers need while they live; private to the
            user. Workers whose kernel was killed remove it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def start(self, worker: int, spec: WorkerSpec, emit: Emit) -> ProcessHandle:
        """See `Launcher`."""
        try:
            return ProcessHandle(worker, spec, emit, self._directory)
        except OSError as error:
            raise WorkerStartError(
                f"{spec.label}: the worker process cannot be started: {error}. Check free memory "
                "and the limits on processes and open files (`ulimit -u`, `ulimit -n`)."
            ) from error


class ProcessHandle:
    """A worker process, see `WorkerHandle`."""

    def __init__(self, worker: int, spec: WorkerSpec, emit: Emit, directory: Path) -> None:
        self._worker = worker
        self._emit = emit
        self._log = directory / f"worker-{worker}.log"
        self._private = directory / f"worker-{worker}"
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        ours, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        try:
            self._private.mkdir(mode=0o700, exist_ok=True)
            with open(
                os.open(self._log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), "ab"
            ) as output:
                self._process = subprocess.Popen(  # noqa: S603  # our own module
                    [
                        sys.executable, "-P", "-m", "mgpu_magic.worker",  # -P: PYTHONPATH is all
                        str(theirs.fileno()), str(lifeline), str(os.getpid()), str(directory),
                    ],
                    env=environment(spec, os.environ, sys.path, self._private),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(theirs.fileno(), lifeline),
                    start_new_session=True,  # the kernel's interrupt must not reach it
                )  # fmt: skip
        except OSError:
            ours.close()
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(lifeline)
        self._connection = Connection(ours.detach())
        self._reader = self._thread("read", self._read)
        self._writer = self._thread("write", self._write)
        emit(worker, Started(self.pid))
        self.send(Start(PROTOCOL, spec))
        self._reader.start()
        self._writer.start()
        self._thread("wait", self._wait).start()

    @property
    def pid(self) -> int:
        """See `WorkerHandle`."""
        return self._process.pid

    @property
    def log(self) -> Path:
        """See `WorkerHandle`."""
        return self._log

    def send(self, command: Command) -> None:
        """See `WorkerHandle`."""
        self._commands.put(command)

    def kill(self) -> None:
        """See `WorkerHandle`."""
        if self._process.returncode is None:  # not yet waited for: the group's id is still ours
            process_group.kill(self.pid)

    def _thread(self, job: str, target: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=target, name=f"mgpu-{job}-{self._worker}", daemon=True)

    def _read(self) -> None:
        try:
            while True:
                self._emit(self._worker, decode_event(self._connection.recv_bytes()))
        except (EOFError, OSError):
            return
        except ProtocolError as error:
            self._emit(self._worker, Fatal(RemoteError("ProtocolError", str(error))))
            self.kill()

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # the worker died; the waiter tells
            while (command := self._commands.get()) is not None:
                self._connection.send_bytes(encode(command))

    def _wait(self) -> None:
        code = self._process.wait()
        process_group.end(self.pid)  # whatever it started, vLLM's engine process say
        shutil.rmtree(self._private, ignore_errors=True)
        # What was sent before death is read before death is told.
        self._reader.join(LAST_WORDS_SECONDS)
        self._commands.put(None)
        self._writer.join()
        self._connection.close()
        os.close(self._lifeline)
        name = _signal_name(-code) if code < 0 else None
        self._emit(self._worker, Exited(None if name else code, name, log_tail(self._log)))


def log_tail(log: Path, size: int = LOG_TAIL_BYTES) -> str:
    """The last whole lines of a log file, `size` bytes at most; part of a line that is longer.

    Secrets are masked, also one that begins before these lines.
    """
    try:
        with log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - size - LONGEST))
            text = redacted(file.read(size + LONGEST).decode(errors="replace"))
    except OSError as error:
        return f"(the log cannot be read: {error})"
    tail = text.encode()[-size:].decode(errors="ignore")
    return tail if end <= size else tail.partition("\n")[2] or tail


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
