"""Kernels for the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from notebook.live import Notebook

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[Notebook]:
    """A kernel of the test's own, with the extension loaded."""
    notebook = Notebook(tmp_path)
    try:
        notebook.load()
        yield notebook
    finally:
        notebook.close()


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """The kernel that the tests of a module share."""
    notebook = Notebook(tmp_path_factory.mktemp("kernel"))
    try:
        notebook.load()
        yield notebook
    finally:
        notebook.close()


@pytest.fixture
def shared(kernel: Notebook) -> Notebook:
    """A notebook without variables, in a kernel that other tests use too."""
    kernel.run("%reset -f")
    return kernel
