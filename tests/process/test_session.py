"""What a session does when those around it misbehave: the launcher, a worker, the user."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest
from fakes import FakeHandle, FakeLauncher, completion, obedient

from mgpu_magic import JobInterrupted, Session, SpecError, WorkerError, WorkerStartError, session
from mgpu_magic.messages import Abort, Drain, Load, Outcomes, Start, Submit
from process.jobs import echo, job, result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mgpu_magic.launchers import Emit
    from mgpu_magic.messages import Command, Event
    from mgpu_magic.spec import WorkerSpec


def test_what_a_worker_is_told() -> None:
    """A job, another one, and the end, as they look from the other side."""
    launcher = FakeLauncher()
    with Session("cpu", launcher=launcher) as warm:
        assert echo(warm, ["a", "b"]).texts == ["a", "b"]
        assert echo(warm, ["c"]).texts == ["c"]
    (handle,) = launcher.handles
    first, load, one, two, last = handle.commands
    assert isinstance(first, Start)
    assert (load, last) == (Load(), Drain())
    assert isinstance(one, Submit)
    assert isinstance(two, Submit)
    assert one.job != two.job
    assert [len(command.requests) for command in (one, two)] == [2, 1]


def test_outcomes_that_nobody_waits_for_are_dropped() -> None:
    """Neither a second answer, nor one of another job, nor one of no prompt gets into a result."""

    def babbling(command: Command) -> Iterable[Event]:
        if not isinstance(command, Submit):
            return obedient(command)
        stale = Outcomes(command.job - 1, (completion(0, "stale"),))
        odd = Outcomes(command.job, (completion(99, "odd"),))
        right, *_ = obedient(command)
        again = Outcomes(command.job, (completion(0, "again"),))
        return [stale, odd, right, again]

    with Session("cpu", launcher=FakeLauncher(babbling)) as odd:
        assert echo(odd, ["a", "b"]).texts == ["a", "b"]
        assert echo(odd, ["c", "d"]).texts == ["c", "d"]


def test_a_worker_that_speaks_out_of_turn_is_ended() -> None:
    """What it means cannot be known; the job does not wait for it for ever."""

    def hasty(command: Command) -> Iterable[Event]:
        if isinstance(command, Load):
            return [Outcomes(1, (completion(0),))]
        return obedient(command)

    with (
        Session("cpu", launcher=FakeLauncher(hasty)) as early,
        pytest.raises(WorkerStartError, match="could not be loaded on cpu:0: killed by SIGKILL"),
    ):
        echo(early, ["a", "b"])


def test_an_error_that_nobody_foresaw_ends_the_job(caplog: pytest.LogCaptureFixture) -> None:
    """It is raised where the results are waited for and logged; the session can be used again."""

    class Failing(FakeLauncher):
        def start(self, worker: int, spec: WorkerSpec, emit: Emit) -> FakeHandle:
            if worker == 0:
                raise LookupError("a bug")
            return super().start(worker, spec, emit)

    with Session("cpu", launcher=Failing()) as shaken:
        with pytest.raises(LookupError, match="a bug"):
            echo(shaken, ["a"])
        assert echo(shaken, ["a"]).texts == ["a"]
    assert "mgpu-session failed" in caplog.text


def test_stopping_gives_up_what_is_in_flight() -> None:
    """The workers are told which prompts to forget."""
    launcher = FakeLauncher(
        lambda command: () if isinstance(command, Submit) else obedient(command)
    )
    with Session("cpu", launcher=launcher) as silent:
        run = silent.submit(job(["a", "b", "c"]))
        run.stop()
        with pytest.raises(JobInterrupted):
            result(run)
    (handle,) = launcher.handles
    (abort,) = (command for command in handle.commands if isinstance(command, Abort))
    assert abort.indices == (0, 1, 2)


def test_an_interrupt_before_a_job_begins() -> None:
    """Where the job is then refused there is nothing to wait for: a plain KeyboardInterrupt."""

    class Slow(FakeLauncher):
        def start(self, worker: int, spec: WorkerSpec, emit: Emit) -> FakeHandle:
            time.sleep(0.5)
            return super().start(worker, spec, emit)

    main = threading.get_ident()
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    with Session("cpu", launcher=Slow()) as busy:
        first = threading.Thread(target=echo, args=(busy, ["a"]))
        first.start()
        time.sleep(0.1)
        interrupt = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
        interrupt.start()
        with pytest.raises(KeyboardInterrupt) as stopped:
            echo(busy, ["b"])
        assert not isinstance(stopped.value, JobInterrupted)
        interrupt.join()
        first.join()
    signal.signal(signal.SIGINT, usual)


def test_a_worker_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """`free()` does not wait for ever for a process that hangs in the driver."""

    def immortal(command: Command) -> Iterable[Event]:
        return () if isinstance(command, Drain) else obedient(command)

    with Session("cpu", launcher=FakeLauncher(immortal)) as stuck:
        echo(stuck, ["a"])
        with monkeypatch.context() as patch:
            patch.setattr(session, "GONE_SECONDS", 0.1)
            with pytest.raises(WorkerError, match=r"workers \[0\] do not end"):
                stuck.free()
        stuck.restart()


def test_a_selection_that_makes_no_sense_starts_nothing() -> None:
    """It is refused when it is first used."""
    launcher = FakeLauncher()
    with Session("gpu", launcher=launcher) as nowhere:
        with pytest.raises(SpecError, match="devices 'gpu' is not understood"):
            echo(nowhere, ["a"])
        assert launcher.handles == []
