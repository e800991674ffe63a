"""How workers with a real model behave: cores, figures, interrupts, failing loads, deaths."""

from __future__ import annotations

import os
import time
from itertools import chain
from typing import TYPE_CHECKING

import psutil
import pytest
from process.living import eventually, listening, workers

from engines.capitals import QUESTIONS, question
from mgpu_magic import EngineError, JobInterrupted, ResultSet, SpecError
from mgpu_magic.options import Options

if TYPE_CHECKING:
    from engines.asking import Ask
    from mgpu_magic import Session


def alive(process: psutil.Process) -> bool:
    """Whether it runs, and does not only wait for its parent to take notice of its end."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_each_worker_keeps_to_its_own_cores(ask: Ask) -> None:
    """It is one process, and all its threads, those of torch too, run on its device's cores."""
    ask(QUESTIONS, max_tokens=1)
    cores = [
        {frozenset(os.sched_getaffinity(thread.id)) for thread in psutil.Process(pid).threads()}
        for pid in workers()
    ]
    (one,), (two,) = cores
    assert one.isdisjoint(two)
    assert one | two == os.sched_getaffinity(0)
    assert [psutil.Process(pid).children() for pid in workers()] == [[], []]


def open_to_others(pid: int) -> list[str]:
    """Where a process waits for connections from another machine or another user's process."""
    here = ("tcp 0100007F:", "tcp6 00000000000000000000000001000000:", "unix /")
    return [place for place in listening(pid) if not place.startswith(here)]


def test_nothing_listens_but_vllm_on_this_machine(ask: Ask) -> None:
    """The notebook opens no port for it; what vLLM opens for itself is on the loopback address."""
    ask(QUESTIONS, max_tokens=1)
    assert listening(os.getpid()) == []
    assert [open_to_others(pid) for pid in workers()] == [[], []]


def test_figures_of_a_job(ask: Ask) -> None:
    """The statistics say what each worker did, how long it loaded and what it held at most."""
    results = ask(QUESTIONS, temperature=0, max_tokens=16)
    one, two = results.stats.workers
    assert {one.device, two.device} == {"cpu:0", "cpu:1"}
    assert one.prompts + two.prompts == len(QUESTIONS)
    assert one.output_tokens + two.output_tokens == results.stats.output_tokens
    for worker in one, two:
        assert 0.5 < (worker.load_seconds or 0) < 120
        assert 2**28 < (worker.peak_bytes or 0) < 2**33  # the weights alone are 0.25 GiB
        assert 1 < (worker.output_tokens_per_second or 0) < 10_000
        assert worker.restarts == 0


def test_nothing_is_used_that_vllm_is_about_to_remove(ask: Ask, session: Session) -> None:
    """The log of vLLM does not warn of a call that it announces to remove."""
    ask([question("Peru"), [504, 3575]], max_tokens=1)
    ask(["Hello"], max_tokens=1, chat=True)
    lines = list(chain.from_iterable(log.splitlines() for log in session.logs().values()))
    assert any("INFO" in line for line in lines)
    assert [line for line in lines if "will be removed" in line] == []


def test_stopping_keeps_the_model_and_drops_the_requests(
    ask: Ask, session: Session, model: str
) -> None:
    """After a stop in the middle of generation the next job has its own answers, and at once."""
    before = workers()
    endless = {"max_tokens": 230, "ignore_eos": True}  # two minutes of work
    job = Options(model=model, prompts=QUESTIONS * 40, sampling=endless, max_model_len=256).job()
    run = session.submit(job)
    assert eventually(lambda: run.snapshot.job.output_tokens > 100, seconds=30)
    run.stop()
    with pytest.raises(JobInterrupted, match="of 320 prompts answered"):
        run.result(5)
    began = time.monotonic()
    results = ask([question("Spain"), question("Peru")], temperature=0)
    assert time.monotonic() - began < 10
    assert results.texts == ["The capital of Spain is Madrid.", "The capital of Peru is Lima."]
    assert workers() == before


@pytest.mark.parametrize(
    ("engine_args", "words"),
    [
        ({"max_model_length": 3}, "unexpected keyword argument 'max_model_length'"),
        ({"max_model_len": 10**6}, "is greater than the derived max_model_len"),
    ],
)
def test_a_model_that_cannot_be_loaded_says_why(
    apart: Session, model: str, engine_args: dict[str, int], words: str
) -> None:
    """The error has vLLM's own reason, once for all devices."""
    with pytest.raises(EngineError, match="could not be loaded on cpu:") as caught:
        apart.generate(model, QUESTIONS, engine_args=engine_args)
    message = str(caught.value)
    assert words in caught.value.args[0]
    assert message.count("could not be loaded") == 1
    assert len(caught.value.results) == len(QUESTIONS)


def test_a_directory_that_does_not_exist_is_refused(apart: Session) -> None:
    """A wrong path is not taken for a hub id, and no worker is started for it."""
    with pytest.raises(SpecError, match=r"'/kaggle/input/nope': there is no such directory"):
        apart.generate("/kaggle/input/nope", ["Hello"])
    assert apart.logs() == {}


@pytest.mark.timeout(300)  # vLLM needs up to a minute for it, and more on a busy machine
def test_an_engine_process_goes_with_its_worker(apart: Session, model: str) -> None:
    """With vLLM's engine in a process of its own it answers, and killing the worker ends both."""
    warm = workers()
    results = apart.generate(
        model,
        [question("Italy")],
        devices="cpu:1",
        temperature=0,
        max_model_len=256,
        engine_args={"engine_process": True},
    )
    assert isinstance(results, ResultSet)
    assert results.texts == ["The capital of Italy is Rome."]
    (pid,) = workers() - warm
    worker = psutil.Process(pid)
    below = worker.children(recursive=True)
    assert below
    assert [open_to_others(process.pid) for process in (worker, *below)] == [[], *[[]] * len(below)]
    worker.kill()
    assert eventually(lambda: not any(map(alive, [worker, *below])))
