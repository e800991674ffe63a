"""Faults of workers that are threads of the kernel, which nobody can kill."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from process.living import eventually

from faults.strikes import be_impatient
from faults.struck import BOUND_SECONDS, HANG_SECONDS, contains
from mgpu_magic import JobInterrupted, ResultSet, Session
from mgpu_magic.options import Options

if TYPE_CHECKING:
    from collections.abc import Callable

    from faults.struck import Phase
    from mgpu_magic import Run

PROMPTS = list(range(60))


class Functions:
    """`load` and `predict` (which doubles), to which something happens in one phase.

    Args:
        phase: When.
        happen: What, in the thread of the worker.
    """

    def __init__(self, phase: Phase, happen: Callable[[], None]) -> None:
        self._phase = phase
        self._happen = happen
        self._once = threading.Lock()
        self.reached = threading.Event()

    def load(self, device: str) -> str:
        if self._phase == "loading" and threading.current_thread().name.endswith("-1"):
            self._now()
        time.sleep(0.1)
        return device

    def predict(self, device: str, batch: list[int]) -> list[int]:
        time.sleep(0.1 if self._phase == "loading" else 0.02)
        first = {"running": 20, "tail": PROMPTS[-1]}.get(self._phase, -1)
        if first in batch:
            self._now()
        return [2 * number for number in batch]

    def _now(self) -> None:
        if self._once.acquire(blocking=False):  # what is tried again goes well
            self.reached.set()
            self._happen()

    def begin(self, session: Session, **options: Any) -> Run:
        """Begin the job."""
        return session.submit(
            Options(
                load=self.load,
                predict=self.predict,
                prompts=PROMPTS,
                launcher="thread",
                batch_size=1,
                **options,
            ).job()
        )


def raises(phase: Phase) -> str:
    """An error in one thread costs its own prompt at most."""

    def happen() -> None:
        raise OSError("this device is broken")

    functions = Functions(phase, happen)
    with Session("cpu:2") as session:
        run = functions.begin(session)
        results = _results(run)
        failures = results.failures
        if phase == "loading":
            assert failures == ()
            contains("\n".join(run.snapshot.job.notes), ["without cpu:1", "this device is broken"])
        else:
            (failure,) = failures
            assert (failure.index, failure.error.kind) == (_row(phase), "OSError")
        _check(results, {failure.index for failure in failures})
        _next(session, functions)
    return f"{len(results) - len(failures)}/{len(results)}"


def hangs(phase: Phase) -> str:
    """The device of a thread that never comes back is given up, its prompts are answered."""
    be_impatient()
    gate = threading.Event()
    functions = Functions(phase, lambda: _wait(gate))
    with Session("cpu:2") as session:
        try:
            run = functions.begin(session, hang_timeout=HANG_SECONDS)
            results = _results(run)
            assert results.failures == ()
            _check(results, set())
            contains("\n".join(run.snapshot.job.notes), ["a thread cannot be killed"])
        finally:
            gate.set()
        _next(session, functions)
    return f"{len(results)}/{len(results)}"


def interrupted(phase: Phase) -> str:
    """What was answered is kept, the rest is flagged, and the threads are used again."""
    gate = threading.Event()
    functions = Functions(phase, lambda: _wait(gate))
    with Session("cpu:2") as session:
        run = functions.begin(session)
        assert functions.reached.wait(BOUND_SECONDS)
        if phase == "tail":
            assert eventually(lambda: run.snapshot.job.done == len(PROMPTS) - 1, BOUND_SECONDS)
        run.stop()
        assert run.wait(5)
        gate.set()
        assert isinstance(run.error, JobInterrupted)
        results = run.error.results
        assert isinstance(results, ResultSet)
        kinds = {failure.error.kind for failure in results.failures}
        assert kinds == {"Interrupted"}
        _check(results, {failure.index for failure in results.failures})
        _next(session, functions)
    return f"Interrupted {len(results.failures)}"


def _row(phase: Phase) -> int:
    return {"running": 20, "tail": PROMPTS[-1]}[phase]


def _wait(gate: threading.Event) -> None:
    gate.wait()


def _results(run: Run) -> ResultSet:
    assert run.wait(BOUND_SECONDS), f"it hangs: {run}"
    results = run.result()
    assert isinstance(results, ResultSet)
    return results


def _check(results: ResultSet, failed: set[int]) -> None:
    """All rows but those that failed have their right value."""
    values = [getattr(outcome, "value", None) for outcome in results]
    assert values == [None if i in failed else 2 * i for i in PROMPTS]


def _next(session: Session, functions: Functions) -> None:
    results = _results(functions.begin(session))
    _check(results, set())
