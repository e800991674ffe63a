"""Functions of a notebook, and threads of its kernel, in a real kernel."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from notebook.live import Cell, Notebook

FUNCTIONS = """
    %%multigpu -o results --batch-size 2 --launcher {launcher}
    def load(device):
        return Scale(factor)
    def predict(state, batch):
        import os, threading
        return [(state.times(x), os.getpid(), threading.current_thread().name) for x in batch]
    prompts = [1, 2, 3, 4, 5]
"""


@pytest.mark.parametrize("launcher", ["process", "thread"])
def test_a_cell_of_functions(shared: Notebook, launcher: str) -> None:
    """The cell's functions use classes and values of earlier cells; the cell again is warm."""
    shared.run("""
        factor = 10
        class Scale:
            def __init__(self, by): self.by = by
            def times(self, x): return self.by * x
    """)
    cell = shared.run(FUNCTIONS.format(launcher=launcher))
    assert not cell.errors
    values = "[item.value[0] for item in results]"
    assert shared.value(values) == [10, 20, 30, 40, 50]
    places = "{(item.device, *item.value[1:]) for item in results}"
    before = shared.value(places)
    assert {pid == shared.pid for _, pid, _ in before} == {launcher == "thread"}
    shared.run(FUNCTIONS.format(launcher=launcher))
    known = {place[0]: place for place in before}
    again = shared.value(places)
    assert all(known.get(place[0], place) == place for place in again)
    shared.run("%multigpu free")


@pytest.mark.parametrize("launcher", ["process", "thread"])
def test_an_error_points_at_the_cells_own_line(shared: Notebook, launcher: str) -> None:
    """The line is shown, with its number within the cell."""
    cell = shared.run(f"""
        %%multigpu --launcher {launcher}
        def predict(state, batch):
            wanted = len(batch)
            return [undefined_name for _ in batch]
        prompts = ["a", "b"]
    """)
    [error] = cell.errors
    assert "NameError: name 'undefined_name' is not defined" in error
    assert re.search(r"line 4, in predict\n\s+return \[undefined_name for _ in batch\]", error)
    assert "mgpu_magic/engines" not in error


def test_a_function_called_load_that_is_for_something_else(shared: Notebook) -> None:
    """A cell without `predict` may have a `load` of its own."""
    cell = shared.run("""
        %%multigpu -o answers
        model = "m"
        def load(path): return ["a"]
        prompts = load("x")
    """)
    assert not cell.errors
    assert shared.value("answers.texts") == ["a"]


def test_functions_of_an_earlier_cell_are_named(shared: Notebook) -> None:
    """A leftover `predict` describes no job; an option names it."""
    shared.run("def predict(state, batch): return [x + 1 for x in batch]")
    cell = shared.run("""
        %%multigpu --engine python
        prompts = [1]
    """)
    assert cell.stderr == (
        "UsageError: the cell does not set predict; the notebook has one from an earlier cell: "
        "add --predict predict to use it\n"
    )
    shared.run("""
        %%multigpu -o results --predict predict
        prompts = [1]
    """)
    assert shared.value("[item.value for item in results]") == [2]


def test_defaults_of_the_notebook(notebook: Notebook) -> None:
    """`%config` sets where workers run; defaults of sampling do not disturb other tasks."""
    notebook.run("%config MultiGPU.launcher = 'thread'\n%config MultiGPU.max_tokens = 1")
    cell = notebook.run("""
        %%multigpu -o results
        models = {"own": {"predict": lambda state, batch: [state] * len(batch)}}
        def load(device): return f"loaded on {device}"
        prompts = [1, 2]
    """)
    assert not cell.errors
    assert not cell.stderr
    assert notebook.value("[item.value for item in results['own']]") == ["loaded on cpu"] * 2
    assert notebook.workers() == []


THREADS = """
    %%multigpu -o answers --launcher thread
    model = "m"
    prompts = [f"prompt {i}" for i in range(40)]
    engine_args = {"delay": 0.4, "capacity": 2}
"""


def running(cell: Cell) -> bool:
    """Whether some prompts are answered."""
    return bool(re.search(r"[2-9] of 40 prompts", cell.panel))


def test_an_interrupt_ends_the_threads_within_a_batch(notebook: Notebook) -> None:
    """The stop button keeps the answers; the next cell waits for the threads, which stay."""
    cell = notebook.begin(THREADS).until(running)
    began = time.monotonic()
    notebook.manager.interrupt_kernel()
    cell.end()
    assert time.monotonic() - began < 2
    [error] = cell.errors
    assert re.match(r"KeyboardInterrupt: stopped with \d+ of 40 prompts answered", error)
    names = "sorted(t.name for t in __import__('threading').enumerate() if 'mgpu-w' in t.name)"
    before = notebook.value(names)
    assert len(before) == 2
    following = notebook.run("""
        %%multigpu -o more --launcher thread
        model = "m"
        prompts = ["a", "b"]
        engine_args = {"delay": 0.4, "capacity": 2}
    """)
    assert not following.errors
    assert notebook.value("more.texts") == ["a", "b"]
    assert notebook.value(names) == before
    assert notebook.workers() == []
