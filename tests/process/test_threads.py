"""Workers that are threads of the kernel: the same life as a process, but they cannot be killed."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from mgpu_magic import (
    Completion,
    EngineError,
    JobInterrupted,
    ResultSet,
    Returned,
    Session,
    WorkerError,
    execution,
)
from mgpu_magic import session as session_module
from mgpu_magic.options import Options
from process.jobs import echo, job, result
from process.living import eventually, workers

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """Checks that no worker outlives the test."""
    yield
    assert eventually(lambda: not threads()), threads()


def threads() -> list[str]:
    """Names of the living worker threads."""
    return sorted(t.name for t in threading.enumerate() if t.name.startswith("mgpu-worker-"))


def test_threads_share_the_prompts(session: Session) -> None:
    """Both devices answer, in prompt order, without a process; the workers stay for the next."""
    args = {"delay": 0.01}
    results = echo(session, [f"p {i}" for i in range(40)], launcher="thread", engine_args=args)
    assert results.texts == [f"p {i}" for i in range(40)]
    devices = {item.device for item in results if isinstance(item, Completion)}
    assert devices == {"cpu:0", "cpu:1"}
    assert workers() == set()
    before = threads()
    assert len(before) == 2
    assert echo(session, ["a"], launcher="thread", engine_args=args).texts == ["a"]
    assert threads() == before
    assert session.free() == 2
    assert threads() == []


def test_the_kernel_keeps_its_own_cores(session: Session) -> None:
    """A worker thread is pinned; the threads of the notebook are not."""
    before = os.sched_getaffinity(0)
    echo(session, ["a", "b"], launcher="thread")
    assert os.sched_getaffinity(0) == before


def test_a_failed_load_is_shown(session: Session) -> None:
    """The error is the engine's own; `%multigpu logs` has its traceback."""
    with pytest.raises(EngineError, match="no weights") as caught:
        echo(session, ["a"], launcher="thread", engine_args={"fail_to_load": "no weights"})
    assert "RuntimeError: no weights" in caught.value.traceback
    assert any("RuntimeError: no weights" in log for log in session.logs().values())


def test_a_stopped_job_ends_within_a_batch(session: Session) -> None:
    """What was answered is kept, the threads stay, and the next job waits for their batch."""
    args = {"delay": 0.3, "capacity": 2}
    run = session.submit(job(["x"] * 40, launcher="thread", engine_args=args))
    assert eventually(lambda: run.snapshot.job.done >= 2, 10)
    before = threads()
    began = time.monotonic()
    run.stop()
    with pytest.raises(JobInterrupted) as caught:
        run.result(5)
    assert time.monotonic() - began < 0.3
    answered = [text for text in caught.value.results.texts if text]
    assert answered == ["x"] * len(answered)
    assert 2 <= len(answered) < 40
    again = session.submit(job(["next"], launcher="thread", engine_args=args))
    assert result(again).texts == ["next"]
    assert threads() == before


def held(session: Session, gate: threading.Event, reached: threading.Event) -> Any:
    """A running job whose only batch does not end before `gate` is open."""

    def predict(state: object, batch: list[str]) -> list[str]:
        reached.set()
        gate.wait()
        return batch

    options = Options(predict=predict, prompts=["a"], launcher="thread", devices="cpu:1")
    return session.submit(options.job())


def test_a_thread_that_does_not_end_blocks_its_device(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next model on its device waits, and the cell says for whom; it never runs beside it."""
    monkeypatch.setattr(execution, "PATIENCE_SECONDS", 0.1)
    gate, reached = threading.Event(), threading.Event()
    run = held(session, gate, reached)
    assert reached.wait(5)
    run.stop()
    following = session.submit(job(["b"], devices="cpu:1"))
    assert eventually(lambda: following.snapshot.job.notes)
    assert (
        "cpu:0 waits for the end of predict, a thread, which ends after its batch or load; if "
        "never, restart the kernel."
    ) in following.snapshot.job.notes
    assert workers() == set()
    gate.set()
    assert result(following).texts == ["b"]
    assert threads() == []


def test_a_thread_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """`free` and `restart` do not claim that it is gone."""
    monkeypatch.setattr(session_module, "GONE_SECONDS", 0.2)
    gate, reached = threading.Event(), threading.Event()
    session = Session("cpu:1")
    held(session, gate, reached)
    assert reached.wait(5)
    with pytest.raises(WorkerError, match=r"threads cannot be killed \(predict\): restart the ker"):
        session.restart()
    gate.set()
    assert eventually(lambda: not threads())
    session.close()


def test_a_worker_that_loads_ends_when_it_has_loaded(session: Session) -> None:
    """A thread cannot be killed while it loads: the session waits for it."""
    args = {"load_delay": 0.5}
    run = session.submit(job(["a"], launcher="thread", engine_args=args, devices="cpu:1"))
    assert eventually(lambda: bool(threads()))
    run.stop()
    assert session.free() == 1
    assert threads() == []


def loads(session: Session, seconds: float, **options: Any) -> list[tuple[float, float]]:
    """When the loads of two threads began and ended."""
    spans: list[tuple[float, float]] = []

    def load(device: str) -> None:
        began = time.monotonic()
        time.sleep(seconds)
        spans.append((began, time.monotonic()))

    def predict(state: object, batch: list[int]) -> list[int]:
        time.sleep(0.3)  # so that the second is needed
        return batch

    session.generate(
        prompts=[1] * 8, load=load, predict=predict, batch_size=1, launcher="thread", **options
    )
    return sorted(spans)


def test_threads_load_one_after_the_other(session: Session) -> None:
    """By default the next load begins when the one before is done, and not before."""
    first, second = loads(session, 0.2)
    assert first[1] <= second[0] < first[1] + 0.2


def test_a_fixed_delay_between_the_loads(session: Session) -> None:
    """`--stagger 0.6` waits that long even where the load is quick."""
    first, second = loads(session, 0.0, stagger=0.6)
    assert 0.55 < second[0] - first[0] < 1.0


def test_the_log_of_a_thread_says_where_its_output_is(session: Session) -> None:
    """What it prints is the kernel's own output."""
    echo(session, ["a"], launcher="thread")
    assert set(session.logs().values()) == {
        "(a thread of the kernel: what it prints is in the notebook)\n"
    }


def test_an_error_in_one_thread_leaves_the_others(session: Session) -> None:
    """The prompts of a thread that fails for good are answered by the other."""

    def load(device: str) -> None:
        if threading.current_thread().name.endswith("1"):
            raise OSError("this device is broken")

    def predict(state: object, batch: list[int]) -> list[int]:
        time.sleep(0.01)
        return [2 * x for x in batch]

    results = session.generate(
        prompts=list(range(50)), load=load, predict=predict, batch_size=1, launcher="thread"
    )
    assert isinstance(results, ResultSet)
    assert [item.value for item in results if isinstance(item, Returned)] == list(range(0, 100, 2))
    notes = session.status().job.notes
    assert any("the job went on without cpu:1: OSError: this device is broken" in n for n in notes)
