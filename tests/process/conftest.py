"""Each test of this folder leaves no process behind."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import fake_nvml
import pytest
from fake_nvml import FakeGpu

from mgpu_magic import Session
from process.living import MARK, eventually, marked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Marks all processes that a test starts, and checks that none outlives it."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    yield mark
    eventually(lambda: not marked(mark))
    assert marked(mark) == []


@pytest.fixture
def session() -> Iterator[Session]:
    """A session on two CPU devices."""
    with Session("cpu:2") as session:
        yield session


@pytest.fixture(scope="session")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the fake NVML library."""
    return fake_nvml.build(tmp_path_factory.mktemp("nvml")).parent


@pytest.fixture
def gpus(nvml: Path, tmp_path: Path) -> Callable[[int], dict[str, str]]:
    """Variables under which a script finds that many T4s, GPU-aaaa, GPU-bbbb and so on."""

    def machine(count: int) -> dict[str, str]:
        config = tmp_path / "machine"
        names = ("GPU-" + 4 * chr(ord("a") + number) for number in range(count))
        fake_nvml.write_config(config, [FakeGpu(uuid=name) for name in names])
        return fake_nvml.environment(nvml, config)

    return machine
