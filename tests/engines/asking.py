"""Has a session answer with a real model, once both of its devices have it loaded."""

from __future__ import annotations

from typing import Any, Protocol

from process.living import eventually

from engines.capitals import QUESTIONS
from mgpu_magic import Completion, ResultSet, Session


class Ask(Protocol):
    """Has a warm pair answer."""

    def __call__(self, prompts: object, **options: Any) -> ResultSet: ...


def warm_pair(session: Session, model: str, **engine_args: Any) -> Ask:
    """Load the model on both devices; the figures of chance are as after loading."""

    def ask(prompts: object, **options: Any) -> ResultSet:
        results = session.generate(model, prompts, engine_args=engine_args, **options)
        assert isinstance(results, ResultSet)
        return results

    def both() -> bool:
        return len(devices(ask(QUESTIONS, temperature=0, max_tokens=1))) == 2

    assert eventually(both, seconds=90)
    return ask


def devices(results: ResultSet) -> set[str]:
    """Who answered."""
    return {result.device for result in results if isinstance(result, Completion)}
