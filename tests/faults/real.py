"""vLLM's workers with a real model, with its engine in a process of its own and without."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from engines.capitals import CAPITALS, question
from process.jobs import phases
from process.living import eventually

from faults.struck import Missed, answers, worker_on
from mgpu_magic import Session
from mgpu_magic.options import Options

if TYPE_CHECKING:
    from collections.abc import Callable

    from faults.struck import Phase
    from mgpu_magic import JobSpec, Run

SMALL_MODEL = Path(__file__).parents[2] / "demo_notebooks" / "small_model.py"
SECONDS = 240.0  # two loads on a busy machine
HANG_SECONDS = 20.0
COUNT = 64
CORE = "EngineCore"


def struck(
    strike: Callable[[int], None], phase: Phase, *, engine_process: bool, core: bool = False
) -> str:
    """Strike a worker, or the process of its engine, while both devices answer."""
    compile_nothing()
    asked = list(CAPITALS) * (COUNT // len(CAPITALS))
    with Session("cpu:2") as session:
        warm_up(session, engine_process=engine_process)
        run = session.submit(job(asked, engine_process=engine_process))
        assert eventually(lambda: _midway(run) or run.done, SECONDS)
        victim = _victim(core=core)
        if run.done:
            raise Missed(phase)
        strike(victim)
        _judge(run, asked)
        restarts = run.snapshot.job.restarts
        if not restarts:
            raise Missed(phase)
        following = session.submit(job(list(CAPITALS), engine_process=engine_process))
        _judge(following, list(CAPITALS))
    assert restarts == 1
    return f"{COUNT}/{COUNT} ↻{restarts}"


def compile_nothing() -> None:
    """Have vLLM start without a compiler: with one it takes minutes."""
    os.environ["CXX"] = "/nowhere/g++"


def warm_up(session: Session, *, engine_process: bool) -> None:
    """Have the model loaded on both devices."""
    run = session.submit(job(list(CAPITALS) * 1000, engine_process=engine_process))
    assert eventually(lambda: phases(run) == ["running", "running"], SECONDS), phases(run)
    run.stop()


@cache
def small_model() -> str:
    """The directory of the small model."""
    told = subprocess.run(
        [sys.executable, SMALL_MODEL], check=True, stdout=subprocess.PIPE, text=True
    )
    return told.stdout.splitlines()[-1]


def job(countries: list[str], **engine_args: Any) -> JobSpec:
    """Asks the small model for capitals."""
    return Options(
        model=small_model(),
        prompts=[question(country) for country in countries],
        max_tokens=16,
        temperature=0,
        max_model_len=256,
        engine_args={"max_num_seqs": 4, **engine_args},
        hang_timeout=HANG_SECONDS,
    ).job()


def _midway(run: Run) -> bool:
    return run.snapshot.job.done >= 4 and phases(run) == ["running", "running"]


def _judge(run: Run, countries: list[str]) -> None:
    assert run.wait(SECONDS), f"it hangs: {run}"
    for country, text in zip(countries, answers(run).texts, strict=True):
        assert text is not None
        assert CAPITALS[country] in text


def _victim(*, core: bool) -> int:
    if not core:
        return worker_on(1)
    below = psutil.Process(worker_on(1)).children(recursive=True)
    (found,) = (child.pid for child in below if CORE in " ".join(child.cmdline()))
    return found
