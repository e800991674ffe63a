"""Jobs for the echo engine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mgpu_magic import Ensemble, ResultSet
from mgpu_magic.options import Options
from process.living import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from mgpu_magic import JobSpec, Run, Session


def job(prompts: object, model: str = "m", **options: Any) -> JobSpec:
    """A job of one echo model."""
    return Options(model=model, prompts=prompts, engine="echo", **options).job()


def echo(session: Session, prompts: object, model: str = "m", **options: Any) -> ResultSet:
    """The answers of one echo model."""
    results = session.run(job(prompts, model, **options))
    assert isinstance(results, ResultSet)
    return results


def ensemble(session: Session, models: dict[str, Any], prompts: object, **options: Any) -> Ensemble:
    """The answers of several echo models."""
    results = session.generate(models=models, prompts=prompts, engine="echo", **options)
    assert isinstance(results, Ensemble)
    return results


def result(run: Run) -> ResultSet:
    """What a job of one model came to, which takes no longer than ten seconds."""
    results = run.result(10)
    assert isinstance(results, ResultSet)
    return results


def lines(journal: Path) -> list[dict[str, Any]]:
    """The outcomes in a journal; each of its lines is whole."""
    header, *rest = journal.read_text(encoding="utf-8").splitlines()
    assert json.loads(header)["journal"] == "mgpu_magic"
    return [json.loads(line) for line in rest]


def phases(run: Run) -> list[str]:
    """What its workers are doing, by device."""
    return [card.worker.phase for card in run.snapshot.devices if card.worker]


def warm_up(session: Session, **engine_args: float) -> None:
    """Have both devices ready, however slow the machine is."""
    run = session.submit(job(["warm"] * 1000, engine_args=engine_args))
    assert eventually(lambda: phases(run) == ["running", "running"], 30)
    run.stop()
