"""Workers that hang: found out, ended and replaced."""

from __future__ import annotations

import os
import re
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from mgpu_magic import EngineError
from mgpu_magic.options import Options
from process.jobs import echo, job, result, warm_up
from process.living import eventually, workers

if TYPE_CHECKING:
    from mgpu_magic import Session

PROMPTS = [f"p {i}" for i in range(20)]


def test_a_worker_that_is_stopped_is_replaced(session: Session) -> None:
    """One that does nothing any more is killed, its prompts are answered, the cell says it."""
    warm_up(session, delay=0.05)
    run = session.submit(job(PROMPTS, engine_args={"delay": 0.05}, hang_timeout=2))
    assert eventually(lambda: run.snapshot.job.done >= 2)
    os.kill(min(workers()), signal.SIGSTOP)
    results = result(run)
    assert results.texts == PROMPTS
    (note,) = run.snapshot.job.notes
    what = "it finished no step of its engine for 2 s (--hang-timeout), and was killed"
    assert note in {f"cpu:{n} was lost ({what}) and started again." for n in (0, 1)}
    assert sum(worker.restarts for worker in results.stats.workers) == 1


def test_a_prompt_that_hangs_its_worker_fails_alone(session: Session) -> None:
    """An endless loop is found by halves like a crash; the rest is answered."""
    prompts = [*PROMPTS[:5], "stuck", *PROMPTS[6:]]
    results = echo(
        session, prompts, engine_args={"hang_on": "stuck", "capacity": 2}, hang_timeout=1
    )
    assert results.texts == [*PROMPTS[:5], None, *PROMPTS[6:]]
    (failure,) = results.failures
    assert failure.error.kind == "WorkerLost"
    assert (
        "it finished no step of its engine for 1 s (--hang-timeout), and was killed"
        in failure.error.message
    )


def test_a_load_that_hangs_ends(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried once more, then the cell says what it waited for."""
    monkeypatch.setattr("mgpu_magic.watchdog.LOAD_STEPS", 1)
    with pytest.raises(
        EngineError, match=r"no news while loading for 1 s \(--hang-timeout, times 1\), and was"
    ):
        echo(session, ["a"], devices="cpu:1", engine_args={"load_delay": 60}, hang_timeout=1)
    assert echo(session, ["fine"], devices="cpu:1").texts == ["fine"]


def test_a_thread_that_hangs_is_given_up(session: Session) -> None:
    """The others answer its prompts; its device is used no more, and the cell says why."""
    gate, held = threading.Event(), threading.Event()

    def predict(_: object, batch: list[str]) -> list[str]:
        if not held.is_set():
            held.set()
            gate.wait()
        return batch

    options = Options(
        predict=predict, prompts=PROMPTS, launcher="thread", batch_size=2, hang_timeout=1
    )
    run = session.submit(options.job())
    assert result(run).values == PROMPTS
    (note,) = run.snapshot.job.notes
    assert re.fullmatch(
        r"the job went on without (cpu:[01]): WorkerHung: it finished no step of its engine for "
        r"1 s \(--hang-timeout\): predict holds \1, and a thread cannot be killed; restart "
        r"the kernel to use that device again",
        note,
    )
    gate.set()
    assert echo(session, ["fine"]).texts == ["fine"]


def test_a_device_that_a_thread_holds_is_not_waited_for(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job whose only device never becomes free ends with the reason."""
    monkeypatch.setattr("mgpu_magic.watchdog.DEVICE_SECONDS", 1)
    gate, reached = threading.Event(), threading.Event()

    def predict(_: object, batch: list[str]) -> list[str]:
        reached.set()
        gate.wait()
        return batch

    options = Options(predict=predict, prompts=["a"], launcher="thread", devices="cpu:1")
    run = session.submit(options.job())
    assert reached.wait(5)
    run.stop()
    with pytest.raises(
        EngineError, match=r"free for 1 s \(--hang-timeout.*\): predict holds cpu:0"
    ):
        echo(session, ["b"], devices="cpu:1", hang_timeout=1)
    gate.set()
    assert echo(session, ["c"], devices="cpu:1").texts == ["c"]
