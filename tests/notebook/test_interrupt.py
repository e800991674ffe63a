"""The stop button, and what happens when a kernel or a worker dies."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from notebook.live import Cell, Notebook

SLOW = """
    %%multigpu -o answers
    model = "m"
    prompts = [f"prompt {i}" for i in range(40)]
    engine_args = {"delay": 0.2}
"""


def busy(cell: Cell) -> bool:
    """Whether both devices run, and some prompts are answered."""
    return cell.panel.count("● running") == 2 and answered(cell) >= 4


def answered(cell: Cell) -> int:
    """How many prompts the panel says are answered."""
    match = re.search(r"(\d+) of 40 prompts", cell.panel)
    return int(match[1]) if match else 0


def press_stop(notebook: Notebook) -> None:
    """What Jupyter does: a signal to the kernel's process group."""
    notebook.manager.interrupt_kernel()


def signal_kernel(notebook: Notebook) -> None:
    """What other front ends do: a signal to the kernel alone."""
    os.kill(notebook.pid, signal.SIGINT)


def assert_stopped(notebook: Notebook, cell: Cell) -> int:
    """The cell shows one KeyboardInterrupt; returns how many answers are kept, all right."""
    [error] = cell.errors
    stated = re.fullmatch(
        r"KeyboardInterrupt: stopped with (\d+) of 40 prompts answered; .*%multigpu last.*", error
    )
    assert stated, error
    assert not cell.stderr
    assert not cell.stdout
    assert "Interrupted" in cell.panel
    notebook.run("kept = get_ipython().run_line_magic('multigpu', 'last')")
    texts = notebook.value("kept.texts")
    assert len(texts) == 40
    assert {i: text for i, text in enumerate(texts) if text is not None} == {
        i: f"prompt {i}" for i, text in enumerate(texts) if text is not None
    }
    kinds = notebook.value("{failure.error.kind for failure in kept.failures}")
    assert kinds == {"Interrupted"}
    kept = sum(text is not None for text in texts)
    assert kept == int(stated[1])
    return kept


@pytest.mark.parametrize("interrupt", [press_stop, signal_kernel])
def test_one_interrupt_ends_the_cell_and_keeps_the_models(
    notebook: Notebook, interrupt: Callable[[Notebook], None]
) -> None:
    """One error, the finished answers are kept, and the next cell is right on the same workers."""
    cell = notebook.begin(SLOW).until(busy)
    workers = notebook.workers()
    began = time.monotonic()
    interrupt(notebook)
    cell.end()
    assert time.monotonic() - began < 3
    assert 4 <= assert_stopped(notebook, cell) < 40
    following = notebook.run("""
        %%multigpu -o answers
        model = "m"
        prompts = ["x y", "z"]
        engine_args = {"delay": 0.2}
    """)
    assert not following.errors
    assert notebook.value("answers.texts") == ["x y", "z"]
    assert notebook.workers() == workers
    assert len(workers) == 2


def test_one_interrupt_too_many_is_harmless(notebook: Notebook) -> None:
    """Pressing stop again when the cell has ended changes nothing for the cells after it."""
    cell = notebook.begin(SLOW).until(busy)
    press_stop(notebook)
    cell.end()
    press_stop(notebook)
    assert_stopped(notebook, cell)
    following = notebook.run("%%multigpu -o answers\nmodel = 'm'\nprompts = ['x']")
    assert not following.errors
    assert notebook.value("answers.texts") == ["x"]


def test_an_interrupt_while_models_load_ends_the_cell(notebook: Notebook) -> None:
    """Nobody waits for a load that is no longer wanted; the answer is one KeyboardInterrupt."""
    cell = notebook.begin(f"{SLOW.rstrip()[:-1]}, 'load_delay': 30}}")
    cell.until(lambda cell: "loading" in cell.panel)
    began = time.monotonic()
    press_stop(notebook)
    cell.end()
    assert time.monotonic() - began < 3
    assert assert_stopped(notebook, cell) == 0
    notebook.run("%multigpu free")
    assert notebook.workers() == []


def test_an_interrupt_of_the_body_is_an_ordinary_one(notebook: Notebook) -> None:
    """A body that takes long can be stopped like any cell; nothing was started."""
    cell = notebook.begin("""
        %%multigpu m
        import time
        print("working")  # not flushed: an interrupt of that would not point here
        time.sleep(60)
    """)
    cell.until(lambda cell: "working" in cell.stdout)
    press_stop(notebook)
    cell.end()
    [error] = cell.errors
    assert "----> 4 time.sleep(60)" in error
    assert error.splitlines()[-1].startswith("KeyboardInterrupt")
    assert notebook.workers() == []


def restart(notebook: Notebook) -> None:
    """What the restart button does."""
    notebook.manager.restart_kernel(now=False)
    notebook.client.wait_for_ready(timeout=30)


def restart_now(notebook: Notebook) -> None:
    """A restart that does not wait for the kernel."""
    notebook.manager.restart_kernel(now=True)
    notebook.client.wait_for_ready(timeout=30)


def shut_down(notebook: Notebook) -> None:
    """What closing a notebook does."""
    notebook.manager.shutdown_kernel()


def kill(notebook: Notebook) -> None:
    """What the kernel's out-of-memory killer does."""
    os.kill(notebook.pid, signal.SIGKILL)


@pytest.mark.parametrize("end", [restart, restart_now, shut_down, kill])
def test_no_worker_outlives_its_kernel(notebook: Notebook, end: Callable[[Notebook], None]) -> None:
    """However a kernel ends in the middle of a run, its workers and their children end with it."""
    cell = notebook.begin(f"{SLOW.rstrip()[:-1]}, 'fork_child': True}}")
    cell.until(busy)
    before = notebook.processes()
    workers = notebook.workers()
    assert len(workers) == 2
    assert len(before) == 5  # the kernel, and each worker with a child
    began = time.monotonic()
    end(notebook)
    while set(before) & set(notebook.processes()):
        assert time.monotonic() - began < 5
        time.sleep(0.05)


def test_a_killed_worker_costs_no_answer(notebook: Notebook) -> None:
    """The cell goes on with every prompt on a new worker, and the panel tells of it."""
    cell = notebook.begin(SLOW).until(busy)
    before = notebook.workers()
    os.kill(before[0], signal.SIGKILL)
    cell.end()
    assert not cell.errors
    assert notebook.value("answers.texts") == [f"prompt {i}" for i in range(40)]
    assert "1 restart" in cell.panel
    assert len(notebook.workers()) == 2
    assert before[1] in notebook.workers()


def test_a_prompt_that_kills_its_worker_fails_alone(notebook: Notebook) -> None:
    """The prompt that a worker dies of is one failed row; all the others are answered."""
    cell = notebook.run("""
        %%multigpu -o answers
        model = "m"
        prompts = [f"prompt {i}" for i in range(10)] + ["poison"]
        engine_args = {"die_on": "poison"}
    """)
    assert not cell.errors
    assert notebook.value("answers.texts") == [*(f"prompt {i}" for i in range(10)), None]
    [[index, kind, message]] = notebook.value(
        "[[f.index, f.error.kind, f.error.message] for f in answers.failures]"
    )
    assert (index, kind) == (10, "WorkerLost")
    assert "SIGKILL" in message
    assert "1 failed" in cell.panel
