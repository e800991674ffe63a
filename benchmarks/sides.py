"""Two sides beside each other: the scripts of `benchmarks.peers` with one job, and their times.

A script's time begins when its process is started, so that whatever it imports is in it, and its
lines say when they were printed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import ENGINE_ARGS, PROMPTS, ROOT, model, of_tokens, two_cores
from benchmarks.generation import LONG, SHORT
from benchmarks.peers.job import MARK, Job

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


MOST_SECONDS = 300.0  # for all runs of a script
LOG_CHARS = 3000


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one run of a job, from its beginning.

    Attributes:
        first_answer: Until the script had an answer.
        all_answers: Until it had all of them.
        tokens: How many were generated.
    """

    first_answer: float
    all_answers: float
    tokens: int


def one_each() -> Job:
    """A short prompt per device: what it takes until there is an answer."""
    return job_of([4, 4])


def skewed(count: int = len(PROMPTS), runs: int = 1) -> Job:
    """The job of `benchmarks.generation`: short answers in one half, long in the other."""
    return job_of([SHORT] * (count // 2) + [LONG] * (count // 2), runs)


def job_of(
    tokens: Sequence[int], runs: int = 1, args: dict[str, Any] = ENGINE_ARGS, **options: Any
) -> Job:
    """A job of the usual prompts, with answers of so many tokens."""
    return Job(
        model=model(),
        prompts=PROMPTS[: len(tokens)],
        sampling=of_tokens(tokens),
        engine_args=args,
        cores=two_cores(),
        runs=runs,
        options=options,
    )


def timed(script: str, job: Job) -> list[Timing]:
    """Have a script of `benchmarks.peers` do a job; what each run took."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as log:
        path = Path(folder) / "job.json"
        job.write(path)
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.peers.{script}", str(path)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        overdue = threading.Timer(MOST_SECONDS, os.killpg, (process.pid, signal.SIGKILL))
        overdue.start()
        try:
            timings = list(_read(process, began))
            if process.wait() != 0:
                log.seek(0)
                raise RuntimeError(f"{script} failed: {log.read()[-LOG_CHARS:]}")
        finally:
            overdue.cancel()
            with contextlib.suppress(ProcessLookupError):  # whatever it left behind
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    wanted = sum(fields["max_tokens"] for fields in job.sampling)
    assert [timing.tokens for timing in timings] == [wanted] * job.runs, timings
    return timings


def _read(process: subprocess.Popen[str], began: float) -> Iterator[Timing]:
    first = None
    assert process.stdout is not None
    for line in process.stdout:
        _, mark, told = line.partition(MARK)
        if not mark:
            continue  # what a library prints
        moment = json.loads(told)
        seconds = moment["at"] - began
        match moment["moment"]:
            case "begin" if moment["run"] > 1:
                began, first = moment["at"], None
            case "answer":
                first = first or seconds
            case "all answers":
                yield Timing(first or seconds, seconds, moment["tokens"])
