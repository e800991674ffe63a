"""The worker's side: `python -m mgpu_magic.worker CHANNEL LIFELINE KERNEL FOLDER`, or a thread.

```
              ┌───────── one thread: serve ────────┐
 CHANNEL ──>  │ Start, Load, Submit, Abort, Drain  │
              │   engine.add / step / abort        │ ──> CHANNEL
              └────────────────────────────────────┘
              ┌ stats thread: a sign of life each second ──> CHANNEL
 LIFELINE ──> └ lifeline thread: on EOF kill the whole process group
```

CHANNEL and LIFELINE are numbers of inherited file descriptors, KERNEL is a process id and FOLDER
the session's, removed with it; a thread of the kernel calls `serve`. Imports `messages`,
`outbox`, `outcomes`, `spec`, `errors`, `process_group` and `engines` alone; the engine's library
comes in after the environment is complete and the worker is pinned to its cores.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import threading
import time
import traceback
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Protocol

from mgpu_magic import engines, process_group
from mgpu_magic.errors import ProtocolError
from mgpu_magic.messages import (
    PROTOCOL,
    Abort,
    Chat,
    Command,
    Drain,
    Fatal,
    Hello,
    Load,
    Loading,
    Outcomes,
    Pair,
    Ready,
    Request,
    Start,
    Stats,
    Stopped,
    Submit,
    Tokens,
    WorkerEvent,
    decode_command,
    encode,
)
from mgpu_magic.outbox import Outbox
from mgpu_magic.outcomes import Failure, RemoteError
from mgpu_magic.spec import Sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mgpu_magic.messages import Prompt

STATS_SECONDS = 1.0
KERNEL_GONE_SECONDS = 1.0
_HARMLESS: Mapping[type[Prompt], Prompt] = {
    str: "a",
    Tokens: Tokens((0,)),
    Chat: Chat(({"role": "user", "content": "a"},)),
    Pair: Pair("a", "a"),
}


class Channel(Protocol):
    """The worker's end of the line to the kernel."""

    def poll(self, seconds: float | None) -> bool:
        """Wait until a command is there; None waits for ever."""

    def receive(self) -> Command:
        """The next command. Raises EOFError when the kernel has hung up."""

    def send(self, event: WorkerEvent) -> None:
        """Send an event; several threads may."""


class PipeChannel:
    """A `Channel` over an inherited socket."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # a child of ours must not hold the line open
        self._connection = Connection(descriptor)
        self._arrivals = select.poll()  # a `Connection` makes a new one for each question
        self._arrivals.register(descriptor, select.POLLIN)
        self._lock = threading.Lock()

    def poll(self, seconds: float | None) -> bool:
        """See `Channel`."""
        return bool(self._arrivals.poll(None if seconds is None else seconds * 1000))

    def receive(self) -> Command:
        """See `Channel`."""
        return decode_command(self._connection.recv_bytes())

    def send(self, event: WorkerEvent) -> None:
        """See `Channel`."""
        data = encode(event)
        with self._lock:
            self._connection.send_bytes(data)


class Cancelled(BaseException):  # so that no engine takes it for an error of a request
    """The kernel wants the worker gone: raised by the channel of a thread, between two steps."""


def serve(channel: Channel, pin: Callable[[set[int]], None]) -> None:
    """Run one worker until it is drained.

    Args:
        channel: The line to the kernel.
        pin: Keeps whatever runs the worker to these cores.

    Raises:
        EOFError: The kernel hung up; the lifeline does the rest.
        Cancelled: The kernel wants it gone.
        BaseException: What ended it, after it was sent as `Fatal`.
    """
    with contextlib.ExitStack() as leaving:
        try:
            _serve(channel, pin, leaving)
        except (EOFError, Cancelled):
            raise
        except SamplingRefused as error:
            channel.send(Fatal(error.told, of_sampling=True))
            raise
        except BaseException as error:
            channel.send(Fatal(RemoteError.of(error)))  # first: releasing a broken engine may hang
            raise
    channel.send(Stopped())


def _serve(
    channel: Channel, pin: Callable[[set[int]], None], leaving: contextlib.ExitStack
) -> None:
    start = channel.receive()
    if not isinstance(start, Start):
        raise ProtocolError(f"the first command is {type(start).__name__}; expected Start")
    if start.protocol != PROTOCOL:
        raise ProtocolError(
            f"the kernel speaks protocol {start.protocol}, the worker {PROTOCOL}; "
            "restart the kernel: mgpu_magic was updated while it ran"
        )
    channel.send(Hello(PROTOCOL, os.getpid()))
    cores = {core for device in start.spec.devices for core in device.cores}
    if cores:
        pin(cores)  # before anything is imported that counts the cores
    engine = engines.create(start.spec)
    leaving.callback(engine.close)
    pulse = _Pulse(engine)
    with _every(STATS_SECONDS, lambda: channel.send(pulse.stats())):
        _drive(channel, engine, pulse)


class _Pulse:
    """What the worker tells each second: its engine's figures, once there are any.

    Attributes:
        loaded: Whether the engine may be asked.
        steps: Steps that the engine has finished.
    """

    def __init__(self, engine: engines.Engine) -> None:
        self._engine = engine
        self.loaded = False
        self.steps = 0

    def stats(self) -> Stats:
        figures = Stats(0, 0, 0, 0)
        if self.loaded:
            with contextlib.suppress(Exception):  # a life without figures is one all the same
                figures = self._engine.stats()
        return replace(figures, steps=self.steps)


def _drive(channel: Channel, engine: engines.Engine, pulse: _Pulse) -> None:
    """Take the engine through its life, until it is drained."""
    channel.send(Loading("importing"))
    engine.prepare()
    channel.send(Loading("imported"))
    match channel.receive():
        case Load(sampling):
            if sampling is not None:
                _check(engine, sampling)
        case Drain():
            return
        case command:
            raise ProtocolError(f"got {type(command).__name__}; expected Load")
    began = time.monotonic()
    loaded = engine.load(lambda stage, fraction: channel.send(Loading(stage, fraction)))
    channel.send(
        Ready(
            loaded.capacity,
            time.monotonic() - began,
            loaded.max_model_len,
            loaded.has_chat_template,
            loaded.notes,
            loaded.slots,
        )
    )
    pulse.loaded = True
    _work(channel, engine, pulse)


def _work(channel: Channel, engine: engines.Engine, pulse: _Pulse) -> None:
    """Answer requests until `Drain` and all is done. One job at a time is in flight."""
    job = 0
    draining = False
    with Outbox(channel.send) as outbox:
        while engine.busy or not draining:
            while channel.poll(0 if engine.busy or draining else None):
                match channel.receive():
                    case Submit(job, requests):
                        if not engine.busy:
                            channel.send(pulse.stats())  # it has them: what kills it now, they did
                        own, alike = _add(engine, requests)
                        outbox.put(job, own)
                        if alike:
                            channel.send(Outcomes(job, alike, alike=True))
                    case Abort(_, indices):
                        engine.abort(indices)
                    case Drain():
                        draining = True
                    case command:
                        raise ProtocolError(f"got {type(command).__name__} while ready")
            if engine.busy:
                outbox.put(job, engine.step())
                pulse.steps += 1
            if not engine.busy:
                outbox.flush()


class SamplingRefused(Exception):  # noqa: N818  # its cause is the error
    """The engine refuses the sampling of all prompts; nothing is loaded."""

    def __init__(self, sampling: Sampling, cause: Exception) -> None:
        text = f"{type(cause).__name__}: {cause}"
        super().__init__(f"the sampling {sampling.fields} is refused: {text}")
        self.told = RemoteError(type(cause).__name__, str(self))


def _check(engine: engines.Engine, sampling: Sampling) -> None:
    try:
        engine.check(sampling)
    except Exception as error:
        raise SamplingRefused(sampling, error) from error


def _add(
    engine: engines.Engine, requests: Sequence[Request]
) -> tuple[tuple[Failure, ...], tuple[Failure, ...]]:
    """Hand requests to the engine.

    Returns:
        A failure for each that it refuses: for what is its own, and for what it shares.
    """
    own: list[Failure] = []
    alike: list[Failure] = []
    known: dict[object, RemoteError] = {}
    for request in requests:
        terms = request.terms
        if (error := known.get(terms)) is None:
            error = _refusal(engine, request)
            if error is not None and _of_terms(engine, request, error):
                known[terms] = error
        if error is not None:
            (alike if terms in known else own).append(Failure(request.index, error))
    return tuple(own), tuple(alike)


def _refusal(engine: engines.Engine, request: Request) -> RemoteError | None:
    try:
        engine.add(request)
    except engines.EngineGone:
        raise
    except Exception as error:  # noqa: BLE001  # the engine refused this prompt alone
        return RemoteError.of(error, with_traceback=False)
    return None


def _of_terms(engine: engines.Engine, request: Request, error: RemoteError) -> bool:
    """Whether the engine refuses what the request shares with others, whatever its prompt.

    Then it refuses a harmless prompt in the same words; and takes the request's own without these
    terms (but a chat, which is itself one of them: the model may have no template).
    """
    if (harmless := _HARMLESS.get(type(request.prompt))) is None:
        return False
    if _tried(engine, replace(request, prompt=harmless)) != error:
        return False
    bare = Request(request.index, request.prompt, Sampling())
    return isinstance(request.prompt, Chat) or _tried(engine, bare) is None


def _tried(engine: engines.Engine, request: Request) -> RemoteError | None:
    if (error := _refusal(engine, request)) is None:
        engine.abort([request.index])
    return error


@contextlib.contextmanager
def _every(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """Call `act` in a thread of its own until the block ends; an error in it only ends it."""
    over = threading.Event()

    def repeat() -> None:
        with contextlib.suppress(Exception):
            while not over.wait(seconds):
                act()

    thread = threading.Thread(target=repeat, name="mgpu-stats", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _hold_lifeline(descriptor: int, kernel: int, folder: str) -> None:
    """End the whole process group as soon as the kernel is gone, and remove its folder.

    The pipe's EOF tells at once; the parent's id tells even where a process that the kernel
    forked holds the other end open.
    """
    os.set_inheritable(descriptor, False)

    def watch() -> None:
        while os.getppid() == kernel:
            readable, _, _ = select.select([descriptor], [], [], 1.0)
            if readable and not os.read(descriptor, 1):
                break
        process_group.kill(os.getpgrp(), spare={os.getpid()})
        deadline = time.monotonic() + KERNEL_GONE_SECONDS
        while os.getppid() == kernel and time.monotonic() < deadline:
            time.sleep(0.01)  # it closes its files before it is gone
        if os.getppid() != kernel:
            shutil.rmtree(folder, ignore_errors=True)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="mgpu-lifeline", daemon=True).start()


def _pin_process(cores: set[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cores)


def _main(channel: int, lifeline: int, kernel: int, folder: str) -> None:
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # stopping is the kernel's word, not the terminal's
    _hold_lifeline(lifeline, kernel, folder)
    code = 1
    try:
        serve(PipeChannel(channel), _pin_process)
        code = 0
    except (EOFError, ConnectionError):  # the kernel hung up
        traceback.print_exc()
        time.sleep(5 * KERNEL_GONE_SECONDS)  # the lifeline ends us, once all is removed
    except BaseException:  # noqa: BLE001, S110  # it was sent as Fatal
        pass
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # libraries leave threads behind that would hold the device


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
