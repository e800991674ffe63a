"""An interrupt between any two instructions: no lock stays taken, no job runs on unseen.

A trace function counts the instructions of the main thread and interrupts before some of them.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from mgpu_magic import JobInterrupted, Session
from process.jobs import echo, job
from process.living import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from mgpu_magic.snapshot import Snapshot

ROUNDS = 48
FAST: dict[str, Any] = {"engine_args": {"delay": 0.001}}


class Instructions:
    """Runs an act, and interrupts it before the instructions of these numbers.

    Args:
        since: End of the path of the function from whose first call on they are counted.
        interrupts: The numbers.

    Attributes:
        count: How many there were.
        interrupted: How many were interrupted.
    """

    def __init__(self, since: str, interrupts: Sequence[int] = ()) -> None:
        self.count = 0
        self.interrupted = 0
        self._since = since
        self._interrupts = set(interrupts)

    def run(self, act: Callable[[], object]) -> BaseException | None:
        """Returns what the act raises."""
        before = sys.gettrace()  # of a measurement of coverage
        try:
            try:
                sys.settrace(self._trace)
                act()
            finally:
                sys.settrace(before)
        except BaseException as error:  # noqa: BLE001  # that is what is asked
            return error
        return None

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if self.count or _path(frame).endswith(self._since):
            self.count += event in ("call", "opcode")
            if self.count in self._interrupts:
                self._interrupts.remove(self.count)
                self.interrupted += 1
                signal.raise_signal(signal.SIGINT)
        return self._trace


def _path(frame: FrameType) -> str:
    """The function and its caller: `Session.run > Loop.call`."""
    caller = "" if frame.f_back is None else frame.f_back.f_code.co_qualname
    return f"{caller} > {frame.f_code.co_qualname}"


class View:
    """Draws nothing."""

    def update(self, snapshot: Snapshot) -> None: ...

    def finish(self, snapshot: Snapshot) -> None: ...


def run(session: Session) -> None:
    """A job that is waited for, with a view."""
    session.run(job([f"p {i}" for i in range(6)], **FAST), View())


def in_threads(session: Session) -> None:
    """The same in threads of this process."""
    session.run(job(["a", "b"], **FAST, launcher="thread"), View())


def submit(session: Session) -> None:
    """A job in the background, whose results are waited for."""
    session.submit(job(["a", "b"], **FAST)).result()


def ask(session: Session) -> None:
    """What a user wants to know."""
    session.status()
    assert session.last is not None
    assert session.models


# Since when: the preparation of a job is user code, where an interrupt is an ordinary one.
ACTS: dict[Callable[[Session], object], str] = {
    run: "Session.run > Loop.call",
    in_threads: "Session.run > Loop.call",
    submit: "Session.submit > Loop.call",
    ask: "Session.status",
    Session.free: "Session.free",
    Session.restart: "Session.restart",
    Session.close: "Session.close",
}


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    """Python's own handler, also where the tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def moments(generator: random.Random, count: int, presses: int) -> list[int]:
    """Numbers of instructions, the first anywhere and the others soon after it."""
    first = generator.randrange(1, count)
    return [first, *(first + generator.randrange(1, 400) for _ in range(presses - 1))]


# Python's: an interrupt between the opening of a file and the `with` that closes it.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <_io:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("presses", [1, 3])
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_an_interrupt_anywhere(act: Callable[[Session], object], presses: int) -> None:
    """One KeyboardInterrupt, soon; the next job is right and the session never stuck."""
    generator = random.Random(f"{act.__name__} {presses}")
    options = {**FAST, "launcher": "thread" if act is in_threads else "process"}
    session = Session("cpu:1")
    echo(session, ["warm"], **options)
    count, reported = 1, 0
    rounds = ROUNDS // presses // (1 if act is run else 3)
    for turn in range(rounds):
        if session._closed:
            session = Session("cpu:1")
            echo(session, ["warm"], **options)
        tracer = Instructions(ACTS[act], moments(generator, count, presses) if turn else ())
        began = time.monotonic()
        error = tracer.run(partial(act, session))
        assert time.monotonic() - began < 5
        assert isinstance(error, KeyboardInterrupt) == (tracer.interrupted > 0), error
        count = tracer.count if turn == 0 else count
        if isinstance(error, JobInterrupted) and act is run:
            reported += 1
            texts = error.results.texts
            assert all(text in (None, f"p {i}") for i, text in enumerate(texts))
            assert (len(texts), session.last) == (6, error.results)
        if not session._closed:
            session.stop()  # what was submitted goes on when the waiting is interrupted
            assert echo(session, ["x", "y z"], **options).texts == ["x", "y z"]
    session.close()
    assert reported > rounds / 2 or act is not run
    assert eventually(lambda: "mgpu-session" not in {one.name for one in threading.enumerate()})
