"""One interrupt ends a job and keeps what it has; a second one ends the workers too."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from mgpu_magic import JobInterrupted
from process.jobs import echo, job, result
from process.living import eventually, outcome, start_script, wait_for, workers

if TYPE_CHECKING:
    from pathlib import Path

    from mgpu_magic import Session

SCRIPT = """
import json, signal, time
from pathlib import Path
from mgpu_magic import Session
from mgpu_magic.launchers.process import ProcessLauncher
from mgpu_magic.messages import Abort
from process.living import workers

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run with a `&`

class SlowToAbort(ProcessLauncher):
    def start(self, *args):
        handle = super().start(*args)
        send = handle.send
        def slowly(command):
            time.sleep(abort_delay if isinstance(command, Abort) else 0)
            send(command)
        handle.send = slowly
        return handle

class Tell:
    told = False
    def update(self, snapshot):
        phases = {card.worker.phase for card in snapshot.devices if card.worker}
        if not self.told and (snapshot.job.done >= 3 if when == "running" else when in phases):
            self.told = True
            print("now", flush=True)
    def finish(self, snapshot):
        self.final = snapshot.job.state

prompts = [f"p {i}" for i in range(40)]
session, tell, caught = Session("cpu:2", launcher=SlowToAbort(Path("."))), Tell(), None
try:
    session.generate("m", prompts, engine="echo", engine_args=args, observer=tell)
    time.sleep(5)
except KeyboardInterrupt as error:
    caught = error
before = sorted(workers())
results = session.generate("m", prompts[:6], engine="echo", engine_args=args)
print(json.dumps({
    "type": type(caught).__name__,
    "message": str(caught),
    "state": tell.final,
    "texts": caught.results.texts,
    "kinds": sorted({failure.error.kind for failure in caught.results.failures}),
    "before": before,
    "after": sorted(workers()),
    "next": results.texts,
}))
session.close()
"""


def interrupted(
    folder: Path, args: dict[str, float], *, when: str, times: int = 1, abort_delay: float = 0
) -> dict[str, Any]:
    """What a script saw that was interrupted in that phase of its job of 40 prompts.

    Args:
        folder: Where the script goes.
        args: Engine arguments of the job.
        when: `"running"`, or the phase of a worker.
        times: How many interrupts come, 0.2 s apart.
        abort_delay: Seconds that it takes to give a worker's requests up.
    """
    settings = f"args, when, abort_delay = {args!r}, {when!r}, {abort_delay!r}\n"
    script = start_script(folder, settings + SCRIPT)
    wait_for(script, "now")
    for _ in range(times):
        script.send_signal(signal.SIGINT)
        time.sleep(0.2)
    seen = outcome(script)
    assert isinstance(seen, dict)
    return seen


@pytest.mark.parametrize("phase", ["importing", "loading"])
def test_an_interrupt_while_loading(tmp_path: Path, phase: str) -> None:
    """Nothing is answered, loading goes on, and the next job uses what it loads."""
    seen = interrupted(tmp_path, {"import_delay": 0.6, "load_delay": 0.6}, when=phase)
    assert seen["type"] == "JobInterrupted"
    assert seen["state"] == "interrupted"
    assert seen["texts"] == [None] * 40
    assert seen["kinds"] == ["Interrupted"]
    assert len(seen["before"]) == 2
    assert seen["after"] == seen["before"]
    assert seen["next"] == [f"p {i}" for i in range(6)]


def test_an_interrupt_while_running(tmp_path: Path) -> None:
    """What is finished is in its place, the workers stay, and the next job has its own answers."""
    seen = interrupted(tmp_path, {"delay": 0.05}, when="running")
    assert seen["type"] == "JobInterrupted"
    finished = [text for text in seen["texts"] if text is not None]
    assert 3 <= len(finished) < 40
    assert all(text in (None, f"p {i}") for i, text in enumerate(seen["texts"]))
    assert len(seen["texts"]) == 40
    assert seen["kinds"] == ["Interrupted"]
    assert seen["message"].startswith(f"stopped with {len(finished)} of 40 prompts answered")
    assert len(seen["before"]) == 2
    assert seen["after"] == seen["before"]
    assert seen["next"] == [f"p {i}" for i in range(6)]


def test_a_second_interrupt_ends_the_workers(tmp_path: Path) -> None:
    """Where stopping takes long a second interrupt kills, and you still get the answers."""
    seen = interrupted(tmp_path, {"delay": 0.05}, when="running", times=2, abort_delay=0.5)
    assert seen["type"] == "JobInterrupted"
    assert 3 <= sum(text is not None for text in seen["texts"]) < 40
    assert seen["before"] == []
    assert seen["next"] == [f"p {i}" for i in range(6)]


def test_stopping_between_two_loads(session: Session) -> None:
    """A load that a stopped job had granted for later does not disturb the next job."""
    options: dict[str, Any] = {"stagger": 0.4, "engine_args": {"load_delay": 0.1, "delay": 0.05}}
    run = session.submit(job(["x"] * 60, **options))
    assert eventually(lambda: run.snapshot.job.done >= 1)
    run.stop()
    first = workers()
    prompts = [f"p {i}" for i in range(60)]
    results = echo(session, prompts, **options)
    assert results.texts == prompts
    assert {worker.prompts > 0 for worker in results.stats.workers} == {True}
    assert workers() == first
    assert session.status().job.restarts == 0


def test_a_run_can_be_awaited(session: Session) -> None:
    """`await session.submit(job)` gives the results, or raises what the job raised."""

    async def answers() -> None:
        results = await session.submit(job(["a", "b"]))
        assert results == session.last
        run = session.submit(job(["a"], engine_args={"delay": 5}))
        run.stop()
        with pytest.raises(JobInterrupted, match="stopped with 0 of 1 prompts answered"):
            await run

    asyncio.run(answers())


def test_giving_up_an_await_leaves_the_job_alone(session: Session) -> None:
    """A time limit on the `await` ends the waiting; the job goes on and can be awaited again."""

    async def answers() -> None:
        run = session.submit(job(["a"] * 10, engine_args={"delay": 0.05}))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run, 0.1)
        assert not run.done
        await run
        assert result(run).texts == ["a"] * 10

    asyncio.run(answers())


def test_a_run_tells_how_far_it_is(session: Session) -> None:
    """Its snapshot moves while it runs and stays as it ended, whatever runs next."""
    run = session.submit(job(["a"] * 20, engine_args={"delay": 0.03}))
    assert not run.done
    with pytest.raises(TimeoutError):
        run.result(0.01)
    assert eventually(lambda: 0 < run.snapshot.job.done < 20)
    assert run.wait(5)
    echo(session, ["b"])
    assert (run.snapshot.job.state, run.snapshot.job.done) == ("done", 20)
    run.stop()
    assert result(run).texts == ["a"] * 20
