"""The stop button in each phase of a cell, at random moments, of a line; and a kernel's end."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from typing import TYPE_CHECKING

import pytest

from notebook.live import Notebook

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from notebook.live import Cell

SLOW = """
    %%multigpu -o answers
    model = "m"
    prompts = [f"p {i}" for i in range(20)]
    engine_args = {"delay": 0.03}
"""
TAIL = """
    %%multigpu -o answers
    model = "m"
    prompts = ["a", "b", "c" * 2000]
    engine_args = {"delay_per_character": 0.001}
"""
GENERATOR = """
    %%multigpu m
    import time
    print("reading")
    prompts = (time.sleep(0.2) for _ in range(100))
"""
IMPORTING = """
    %%multigpu -o answers
    model = "m"
    prompts = ["a"]
    engine_args = {"import_delay": 0.5}
"""
LAST = "kept = get_ipython().run_line_magic('multigpu', 'last')"


def to_group(notebook: Notebook) -> None:
    """What Jupyter does."""
    notebook.manager.interrupt_kernel()


def to_kernel(notebook: Notebook) -> None:
    """What other front ends do."""
    os.kill(notebook.pid, signal.SIGINT)


def assert_next_is_right(notebook: Notebook) -> None:
    """The cell after it has its own answers and shows no error."""
    cell = notebook.run("""
        %%multigpu -o answers
        model = "m"
        prompts = ["x y", "z"]
        engine_args = {"delay": 0.03}
    """)
    assert (cell.errors, cell.stderr, cell.stdout) == ([], "", "")
    assert notebook.value("answers.texts") == ["x y", "z"]


def one_error(cell: Cell) -> str:
    """The last line of the only error that a cell shows."""
    [error] = cell.errors
    assert cell.stderr == ""
    return error.splitlines()[-1]


@pytest.mark.parametrize("interrupt", [to_group, to_kernel])
@pytest.mark.parametrize(
    ("source", "phase", "answered"),
    [
        (GENERATOR, lambda cell: "reading" in cell.stdout, None),
        (SLOW, lambda cell: bool(cell.displays), "[0-9]+ of 20"),
        (IMPORTING, lambda cell: "importing" in cell.panel, "0 of 1"),
        (TAIL, lambda cell: "2 of 3 prompts" in cell.panel, "2 of 3"),
    ],
    ids=["reading", "first display", "importing", "tail"],
)
def test_one_press(
    shared: Notebook,
    interrupt: Callable[[Notebook], None],
    source: str,
    phase: Callable[[Cell], bool],
    answered: str | None,
) -> None:
    """One error, at once; the answers are kept, the workers too, and the next cell is right."""
    shared.run("%multigpu free")
    assert_next_is_right(shared)
    before = shared.workers()
    cell = shared.begin(source).until(phase)
    began = time.monotonic()
    interrupt(shared)
    error = one_error(cell.end())
    assert time.monotonic() - began < 5
    if answered is None:
        assert error.startswith("KeyboardInterrupt")
    else:
        said = re.match(f"KeyboardInterrupt: stopped with ({answered}) prompts answered", error)
        assert said, error
        shared.run(LAST)
        kept = sum(text is not None for text in shared.value("kept.texts"))
        assert said[1] == f"{kept} of {shared.value('len(kept)')}"
    assert_next_is_right(shared)
    if source in (GENERATOR, SLOW):
        assert shared.workers() == before


def test_presses_at_random_moments(shared: Notebook) -> None:
    """However often and whenever: at most one error, in that cell, and the next cell is right."""
    generator = random.Random(50)
    reported = 0
    for _ in range(14):
        cell = shared.begin(SLOW)
        time.sleep(generator.uniform(0, 0.5))
        for _ in range(generator.choice([1, 1, 2, 3, 5])):
            generator.choice([to_group, to_kernel])(shared)
            time.sleep(generator.choice([0, 0.001, 0.01, 0.1, 0.5]))
        began = time.monotonic()
        cell.end()
        assert time.monotonic() - began < 5
        assert cell.stderr == ""
        if cell.errors:
            assert "KeyboardInterrupt" in one_error(cell)
            reported += 1
        assert len(cell.displays) <= 1
        assert_next_is_right(shared)
        assert len(shared.workers()) == 2
    assert reported >= 5


@pytest.mark.parametrize("line", ["%multigpu free", "%multigpu restart", "answers.result()"])
def test_a_press_while_a_line_waits(shared: Notebook, line: str) -> None:
    """It ends the waiting; what goes on meanwhile can be stopped, and the next cell is right."""
    shared.run("%multigpu restart")
    shared.run(SLOW.replace("multigpu", "multigpu --background").replace("0.03", "3"))
    if "free" in line:
        shared.run("%multigpu stop")  # a worker in its step leaves after it
    cell = shared.begin(f"print('now', flush=True)\n{line}")
    cell.until(lambda cell: "now" in cell.stdout)
    time.sleep(0.02)
    to_kernel(shared)
    cell.end()
    if "restart" in line:
        assert len(cell.errors) <= 1  # it may be done
    else:
        assert one_error(cell).startswith("KeyboardInterrupt")
    if "result" in line:
        assert not shared.value("answers.done")
        shared.run("%multigpu stop")
    assert_next_is_right(shared)


def test_a_press_of_an_await(shared: Notebook) -> None:
    """The cell ends, as IPython ends an `await`; the job goes on and can be stopped."""
    shared.run(SLOW.replace("multigpu", "multigpu --background").replace("0.03", "0.3"))
    cell = shared.begin("print('now', flush=True)\nawait answers")
    cell.until(lambda cell: "now" in cell.stdout)
    to_group(shared)
    assert one_error(cell.end()).startswith(("CancelledError", "KeyboardInterrupt"))
    assert not shared.value("answers.done")
    shared.run("%multigpu stop")
    assert shared.value("len(answers)") == 20
    assert_next_is_right(shared)


def test_a_press_between_cells(shared: Notebook) -> None:
    """There is nothing to stop: nothing changes."""
    assert_next_is_right(shared)
    before = shared.workers()
    to_group(shared)
    to_kernel(shared)
    assert_next_is_right(shared)
    assert shared.workers() == before


def test_a_kernel_that_is_terminated(tmp_path: Path) -> None:
    """SIGTERM ends a kernel without a word to us: no worker and no file of it stays."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    notebook = Notebook(tmp_path, {"TMPDIR": str(temporary)})
    try:
        notebook.load()
        cell = notebook.begin(SLOW.replace("0.03", "30"))
        cell.until(lambda cell: cell.panel.count("● running") == 2)
        assert len(notebook.workers()) == 2
        assert list(temporary.glob("mgpu_magic-*"))
        os.kill(notebook.pid, signal.SIGTERM)
        deadline = time.monotonic() + 10
        while notebook.processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert notebook.processes() == []
        assert list(temporary.glob("mgpu_magic-*")) == []
    finally:
        notebook.close()
