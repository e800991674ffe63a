"""Jobs whose prompts kill: those are found and flagged, all others are answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from process.jobs import job

from faults.struck import BOUND_SECONDS, NEXT, answers
from mgpu_magic import Session, WorkerLost

if TYPE_CHECKING:
    from faults.struck import Phase

COUNT = 500
ENGINE = {"die_on": "poison", "delay": 0.002}


def poisoned(count: int, phase: Phase) -> str:
    """Some of 500 prompts kill each worker that touches them; in the tail, the last ones."""
    step = COUNT // (count + 1)
    bad = {COUNT - 1 - i if phase == "tail" else (i + 1) * step for i in range(count)}
    prompts = [f"poison {i}" if i in bad else f"p {i}" for i in range(COUNT)]
    with Session("cpu:2") as session:
        run = session.submit(job(prompts, engine_args=ENGINE))
        assert run.wait(BOUND_SECONDS), f"it hangs: {run}"
        results = answers(run)
        assert results.texts == [None if i in bad else p for i, p in enumerate(prompts)]
        flagged = {failure.index: failure.error for failure in results.failures}
        assert {error.kind for error in flagged.values()} == {"WorkerLost"}
        assert all("the last time alone" in error.message for error in flagged.values())
        restarts = sum(worker.restarts for worker in results.stats.workers)
        assert restarts == run.snapshot.job.restarts
        assert restarts >= count
        _next(session)
    return f"{COUNT - len(flagged)}/{COUNT} ↻{restarts}"


def beyond_the_budget(phase: Phase) -> str:
    """Every prompt kills: the job ends, all rows say why, and the session lives on."""
    with Session("cpu:2") as session:
        run = session.submit(job(["poison"] * 30, engine_args={**ENGINE, "capacity": 30}))
        assert run.wait(BOUND_SECONDS), f"it hangs: {run}"
        assert isinstance(run.error, WorkerLost), run.error
        results = answers(run)
        assert [failure.error.kind for failure in results.failures] == ["WorkerLost"] * 30
        _next(session)
    return "WorkerLost 30"


def _next(session: Session) -> None:
    following = session.submit(job(NEXT, engine_args=ENGINE))
    assert following.wait(BOUND_SECONDS), f"the next job hangs: {following}"
    assert answers(following).texts == NEXT
