"""One pair of warm vLLM workers for all tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest
import small_model
from process.living import eventually, workers

from engines.capitals import QUESTIONS
from mgpu_magic import Completion, ResultSet, Session

if TYPE_CHECKING:
    from collections.abc import Iterator


class Ask(Protocol):
    """Has the warm pair answer."""

    def __call__(self, prompts: object, **options: Any) -> ResultSet: ...


@pytest.fixture(scope="session")
def model() -> str:
    """The directory of the small model."""
    return str(small_model.path())


@pytest.fixture(scope="session")
def session() -> Iterator[Session]:
    """A session on two CPU devices; its workers are gone at the end."""
    before = workers()
    with Session("cpu:2") as session:
        yield session
    assert workers() == before


@pytest.fixture(scope="session")
def ask(session: Session, model: str) -> Ask:
    """Asks the pair, of which both are warm by now."""

    def ask(prompts: object, **options: Any) -> ResultSet:
        results = session.generate(model, prompts, max_model_len=256, **options)
        assert isinstance(results, ResultSet)
        return results

    assert eventually(lambda: len(devices(ask(QUESTIONS, max_tokens=1))) == 2, seconds=90)
    return ask


@pytest.fixture
def apart() -> Iterator[Session]:
    """A session besides the warm pair, for what must not disturb it; leaves no worker."""
    warm = workers()
    with Session("cpu:2") as session:
        yield session
    assert workers() == warm


def devices(results: ResultSet) -> set[str]:
    """Who answered."""
    return {result.device for result in results if isinstance(result, Completion)}
