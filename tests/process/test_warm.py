"""Workers stay loaded between jobs, make room for others, and go when told to."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import psutil
import pytest

from mgpu_magic import JobInterrupted, Session, SpecError
from process.jobs import echo, ensemble, job, result
from process.living import eventually, workers

PROMPTS = ["a", "b", "c", "d"]


def test_the_next_job_uses_the_same_workers(session: Session) -> None:
    """A second job with the same model starts no process and loads nothing."""
    echo(session, PROMPTS, engine_args={"load_delay": 1})
    first = workers()
    results = echo(session, PROMPTS, engine_args={"load_delay": 1})
    assert workers() == first
    assert results.stats.seconds is not None
    assert results.stats.seconds < 0.5


def test_a_model_waits_until_the_one_before_is_gone(session: Session) -> None:
    """Two models never share a device: the new one starts after the old process has ended."""
    echo(session, PROMPTS, "old", devices="cpu")
    (old,) = workers()
    os.kill(old, signal.SIGSTOP)  # slow to leave
    run = session.submit(job(PROMPTS, "new", devices="cpu"))
    assert not run.wait(0.4)
    assert workers() == {old}
    os.kill(old, signal.SIGCONT)
    assert result(run).texts == PROMPTS
    (new,) = workers()
    assert new != old


def test_a_model_that_waits_for_a_device_can_be_given_up(session: Session) -> None:
    """The next model does not wait for one that was stopped before it could start."""
    echo(session, PROMPTS, "old", devices="cpu")
    (old,) = workers()
    os.kill(old, signal.SIGSTOP)
    given_up = session.submit(job(PROMPTS, "given up", devices="cpu"))
    given_up.stop()
    with pytest.raises(JobInterrupted):
        given_up.result(5)
    run = session.submit(job(PROMPTS, "new", devices="cpu"))
    os.kill(old, signal.SIGCONT)
    assert result(run).texts == PROMPTS


def test_other_cores_are_other_devices(session: Session) -> None:
    """A job on all cores ends the workers that share them."""
    echo(session, PROMPTS, devices="cpu:2", engine_args={"delay": 0.05})
    assert eventually(lambda: len(workers()) == 2)
    echo(session, PROMPTS, devices="cpu")
    assert len(workers()) == 1


def test_a_worker_that_died_between_jobs_is_replaced(session: Session) -> None:
    """You need not do anything about it."""
    echo(session, PROMPTS, devices="cpu")
    (old,) = workers()
    os.kill(old, signal.SIGKILL)
    echo(session, PROMPTS, devices="cpu")
    (new,) = workers()
    assert new != old


@pytest.mark.parametrize("end", ["free", "restart"])
def test_workers_end_when_told_to(session: Session, end: str) -> None:
    """`free()` and `restart()` return once all processes are gone; the next job starts anew."""
    for _ in range(2):
        echo(session, PROMPTS, engine_args={"fork_child": True, "delay": 0.05})
        assert eventually(lambda: len(workers()) == 2)
        assert getattr(session, end)() == 2
        assert workers() == set()
    assert getattr(session, end)() == 0


def test_one_model_can_be_freed(session: Session) -> None:
    """`free(model)` leaves the others loaded."""
    ensemble(session, {"a": "m1", "b": "m2"}, PROMPTS)
    before = workers()
    assert session.free("b") == 1
    assert len(workers()) == 1
    assert workers() < before
    assert session.free("m1") == 1
    assert workers() == set()


def test_restart_ends_a_running_job(session: Session) -> None:
    """Whoever waits for it gets what was finished."""
    run = session.submit(job(PROMPTS, "m", engine_args={"hang_on": "b"}))
    assert eventually(lambda: run.snapshot.job.done >= 1)
    session.restart()
    assert workers() == set()
    with pytest.raises(JobInterrupted) as stopped:
        run.result(5)
    texts = stopped.value.results.texts
    assert (texts[0], texts[1], len(texts)) == ("a", None, 4)
    echo(session, PROMPTS)


def test_one_job_runs_at_a_time(session: Session) -> None:
    """A second one is refused and does no harm to the first; so is freeing its models."""
    run = session.submit(job(PROMPTS, "m", engine_args={"delay": 0.1}))
    with pytest.raises(SpecError, match="a job is running in this session; stop it first"):
        session.submit(job(PROMPTS, "other"))
    with pytest.raises(SpecError, match="a job is running; stop it first"):
        session.free()
    assert result(run).texts == PROMPTS


def test_closing_ends_a_running_job() -> None:
    """`close()` leaves no process and no thread, and may be called twice."""
    threads = threading.active_count()
    session = Session("cpu:2")
    run = session.submit(job(PROMPTS, "m", engine_args={"load_delay": 60}))
    assert eventually(lambda: workers())
    session.close()
    session.close()
    assert workers() == set()
    assert run.done
    assert eventually(lambda: threading.active_count() == threads)


def test_a_closed_session_says_so() -> None:
    """Nothing that is asked of it waits for ever."""
    with Session("cpu:2") as session:
        echo(session, PROMPTS)
    for ask in (session.status, session.free, session.restart, session.logs, lambda: session.last):
        with pytest.raises(SpecError, match="this session is closed; make a new one"):
            ask()
    with pytest.raises(SpecError, match="this session is closed; make a new one"):
        echo(session, PROMPTS)


def resources() -> tuple[int, ...]:
    """Open files, threads and shared memory of this process, and its workers."""
    shared = len(list(Path("/dev/shm").iterdir()))
    return psutil.Process().num_fds(), threading.active_count(), shared, len(workers())


def no_more_than(before: tuple[int, ...]) -> bool:
    """Whether none of them has grown, once what is ending has ended."""
    return eventually(
        lambda: all(now <= then for now, then in zip(resources(), before, strict=True))
    )


def test_running_again_and_again_costs_nothing() -> None:
    """Ten runs with new workers each, and ten sessions, leave nothing open."""
    with Session("cpu:2") as session:
        echo(session, PROMPTS)
        session.free()
        before = resources()
        for number in range(10):
            echo(session, PROMPTS, f"model-{number}")
        session.free()
        assert no_more_than(before), (before, resources())
    before = resources()
    for _ in range(10):
        with Session("cpu:2") as session:
            echo(session, PROMPTS)
    assert no_more_than(before), (before, resources())


def test_a_worker_that_was_ended_on_purpose_is_no_loss(session: Session) -> None:
    """After `free()` and `restart()` a device shows "stopped", not "lost" or "failed"."""
    for end in (session.free, session.restart):
        echo(session, ["a"])
        end()
        assert {device.worker.phase for device in session.status().devices if device.worker} == {
            "stopped"
        }


def test_an_ensemble_of_the_same_model_reuses_its_workers(session: Session) -> None:
    """A model that is loaded on a device is used there under whatever name it goes."""
    echo(session, [f"p {i}" for i in range(8)])
    first = workers()
    results = ensemble(session, {"a": "m", "b": "m"}, ["x"])
    assert {name: one.texts for name, one in results.items()} == {"a": ["x"], "b": ["x"]}
    assert workers() == first
