"""Workers that die, and what becomes of their prompts."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from mgpu_magic import EngineError, Ensemble, WorkerLost, WorkerStartError
from mgpu_magic.options import Options
from process.jobs import echo, job, phases, result, warm_up
from process.living import eventually, workers

if TYPE_CHECKING:
    from mgpu_magic import Session

PROMPTS = [f"p {i}" for i in range(20)]


class LastWord:
    """Ends the process that unpickles it: with code 0, and without a goodbye."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (0,)


def test_prompts_of_a_killed_worker_are_answered_all_the_same(session: Session) -> None:
    """`kill -9` on a worker costs a restart, which the job says with its cause, and no answer."""
    warm_up(session, delay=0.05)
    run = session.submit(job(PROMPTS, engine_args={"delay": 0.05}))
    assert eventually(lambda: run.snapshot.job.done >= 2)
    os.kill(min(workers()), signal.SIGKILL)
    results = result(run)
    assert results.texts == PROMPTS
    assert run.snapshot.job.restarts == 1
    assert sum(worker.restarts for worker in results.stats.workers) == 1
    (note,) = run.snapshot.job.notes
    assert re.fullmatch(r"cpu:[01] was lost \(killed by SIGKILL .*\) and started again\.", note)


def test_all_workers_killed_at_once(session: Session) -> None:
    """Where both die together both are started again, and every prompt is answered."""
    warm_up(session, delay=0.05)
    run = session.submit(job(PROMPTS, engine_args={"delay": 0.05}))
    assert eventually(lambda: run.snapshot.job.done >= 2)
    for pid in workers():
        os.kill(pid, signal.SIGKILL)
    results = result(run)
    assert results.texts == PROMPTS
    assert run.snapshot.job.restarts == 2


@pytest.mark.parametrize("devices", ["cpu", "cpu:2"])
def test_a_poison_prompt_fails_alone(session: Session, devices: str) -> None:
    """A prompt that kills each worker that touches it fails in its row; all others are answered."""
    prompts = [*PROMPTS[:5], "poison", *PROMPTS[6:]]
    run = session.submit(job(prompts, devices=devices, engine_args={"die_on": "poison"}))
    results = result(run)
    assert results.texts == [*PROMPTS[:5], None, *PROMPTS[6:]]
    (failure,) = results.failures
    assert failure.error.kind == "WorkerLost"
    assert "killed by SIGKILL (often: out of host memory)" in failure.error.message
    assert "the last time alone" in failure.error.message
    assert failure.attempts >= 2
    assert run.snapshot.job.restarts >= 1


def test_a_worker_that_exits_without_a_word_is_lost_too(session: Session) -> None:
    """Exit code 0 in the middle of a job is a crash."""
    last_word = {"prompt": "x", "multi_modal_data": LastWord()}
    results = echo(session, ["a", last_word, "c"])
    assert results.texts == ["a", None, "c"]
    (failure,) = results.failures
    assert failure.error.kind == "WorkerLost"
    assert failure.error.message.endswith("exit code 0")


def test_a_job_without_a_worker_left_ends(session: Session) -> None:
    """Where every prompt kills it does not go on for ever: one error says so, with the rows."""
    with pytest.raises(WorkerLost) as lost:
        echo(session, ["poison"] * 30, engine_args={"die_on": "poison", "capacity": 30})
    assert str(lost.value).startswith("all 30 prompts failed, no worker is left; cpu:")
    assert "killed by SIGKILL" in str(lost.value)
    assert [failure.error.kind for failure in lost.value.results] == ["WorkerLost"] * 30
    assert echo(session, ["fine"]).texts == ["fine"]


@pytest.mark.parametrize(
    ("number", "how"),
    [
        (signal.SIGKILL, "killed by SIGKILL (often: out of host memory)"),
        (signal.SIGSEGV, "killed by SIGSEGV"),
        (signal.SIGRTMIN + 3, f"killed by signal {signal.SIGRTMIN + 3}"),
    ],
)
def test_a_worker_killed_while_it_loads(session: Session, number: int, how: str) -> None:
    """It is not tried again: the error names its device and how it ended."""
    run = session.submit(job(["a", "b"], devices="cpu", engine_args={"load_delay": 60}))
    assert eventually(lambda: phases(run) == ["loading"])
    (pid,) = workers()
    os.kill(pid, number)
    with pytest.raises(WorkerStartError) as failed:
        run.result(5)
    first, *advice = str(failed.value).splitlines()
    assert first == f"m could not be loaded on cpu:0: {how}"
    assert len(advice) == (number == signal.SIGKILL)  # what helps against too little memory
    assert [failure.error.kind for failure in failed.value.results] == ["WorkerStartError"] * 2


def test_a_job_goes_on_without_a_worker_that_could_not_load(session: Session) -> None:
    """One of two copies is enough, and a note tells about the other."""
    run = session.submit(job(PROMPTS, stagger=0.3, engine_args={"load_delay": 0.3, "delay": 0.05}))
    assert eventually(lambda: sorted(phases(run)) == ["loading", "running"])
    device = phases(run).index("loading")
    core = sorted(os.sched_getaffinity(0))[device]
    (pid,) = (pid for pid in workers() if os.sched_getaffinity(pid) == {core})
    os.kill(pid, signal.SIGKILL)
    results = result(run)
    assert results.texts == PROMPTS
    assert run.snapshot.job.restarts == 0
    assert run.snapshot.job.notes == (
        f"the job went on without cpu:{device}: killed by SIGKILL (often: out of host memory)",
    )


def test_the_real_cause_of_a_failed_load_is_shown_at_once(session: Session) -> None:
    """Both workers fail alike: one error, within two seconds, with the words of the engine."""
    began = time.monotonic()
    with pytest.raises(EngineError) as failed:
        echo(session, PROMPTS, engine_args={"fail_to_load": "no such file: weights.bin"})
    assert time.monotonic() - began < 2
    message = str(failed.value)
    assert message.startswith("m could not be loaded on cpu:")
    assert message.splitlines()[0].endswith("RuntimeError: no such file: weights.bin")
    assert failed.value.kind == "RuntimeError"
    assert "RuntimeError: no such file: weights.bin" in failed.value.traceback
    assert "mgpu_magic/worker.py" not in failed.value.traceback
    assert len(failed.value.results) == len(PROMPTS)


def test_a_misspelt_engine_argument_is_named(session: Session) -> None:
    """It shows before anything is loaded, with what would be right."""
    with pytest.raises(EngineError, match="echo has no engine argument 'delai'; it knows"):
        echo(session, PROMPTS, engine_args={"delai": 1})
    assert echo(session, ["right"]).texts == ["right"]


def test_the_other_models_answer(session: Session) -> None:
    """A model of an ensemble that cannot be loaded fails alone, with its cause in its rows."""
    models = {"good": "m1", "bad": {"model": "m2", "fail_to_load": "not today"}}
    run = session.submit(Options(models=models, prompts=PROMPTS, engine="echo").job())
    results = run.result(5)
    assert isinstance(results, Ensemble)
    assert results["good"].texts == PROMPTS
    failures = results["bad"].failures
    assert [failure.index for failure in failures] == list(range(len(PROMPTS)))
    assert {failure.error.kind for failure in failures} == {"RuntimeError"}
    assert run.snapshot.job.notes == ("bad could not be loaded: cpu:1: RuntimeError: not today",)
