"""A job that goes on after its cell: the panel lives on, and the kernel is free."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from notebook.live import Cell, Notebook

SLOW = """
    %%multigpu --background -o answers
    model = "m"
    prompts = [f"p {i}" for i in range(40)]
    engine_args = {"delay": 0.1}
"""


def started(notebook: Notebook, source: str = SLOW) -> Cell:
    """A cell whose job has begun, and which is over itself."""
    began = time.monotonic()
    cell = notebook.run(source)
    assert not cell.errors
    assert time.monotonic() - began < 1.5
    return cell


def finished(notebook: Notebook) -> None:
    """Wait until nothing runs any more."""
    for _ in range(200):
        if notebook.value("type(answers).__name__") != "Run" or notebook.value("answers.done"):
            return
        time.sleep(0.05)
    pytest.fail("the job does not end")


def test_the_results_arrive_in_the_variable(shared: Notebook) -> None:
    """Until then it says how far the job is; other cells run meanwhile."""
    cell = started(shared)
    assert cell.result is None
    assert len(cell.displays) == 1
    assert re.fullmatch(
        r"<still running: \d+ of 40 prompts; \.result\(\) waits for it>",
        shared.value("repr(answers)"),
    )
    assert shared.value("1 + 1") == 2
    finished(shared)
    assert shared.value("answers.texts") == [f"p {i}" for i in range(40)]


def test_nothing_is_printed_into_other_cells(shared: Notebook) -> None:
    """The panel goes on where it stands; a later cell shows what it does itself."""
    started(shared)
    other = shared.run("import time\ntime.sleep(2)\nprint('mine')")
    assert (other.stdout, other.stderr) == ("mine\n", "")
    assert other.displays == []
    finished(shared)
    after = shared.run("time.sleep(0.5)")
    assert (after.stdout, after.stderr, after.displays) == ("", "", [])


def test_the_run_can_be_awaited(shared: Notebook) -> None:
    """`await` gives the results and lets other tasks of the kernel go on."""
    started(shared)
    cell = shared.run("import asyncio\nresults, _ = await asyncio.gather(answers, asyncio.sleep(0))")
    assert not cell.errors
    assert shared.value("results.texts") == [f"p {i}" for i in range(40)]


def test_without_a_name_the_run_is_the_cells_value(shared: Notebook) -> None:
    """`_` and `Out` hold it; `.result()` waits."""
    cell = started(shared, SLOW.replace(" -o answers", ""))
    assert (cell.result or "").startswith("<still running: ")
    shared.run("answers = _")
    assert shared.value("answers.result().texts") == [f"p {i}" for i in range(40)]


def test_stop_keeps_what_is_answered(shared: Notebook) -> None:
    """`%multigpu stop` ends it at once; the answers are in `%multigpu last`."""
    started(shared)
    time.sleep(1.5)
    told = shared.run("%multigpu stop").result or ""
    stated = re.fullmatch(
        r"Stopped with (\d+) of 40 prompts answered; they are in `%multigpu last`\.", told
    )
    assert stated, told
    count = int(stated[1])
    assert 5 < count < 40
    shared.run("kept = get_ipython().run_line_magic('multigpu', 'last')")
    assert shared.value("sum(text is not None for text in kept.texts)") == count
    assert shared.value("repr(answers)").startswith(f"<interrupted: {count} of 40 prompts; ")
    cell = shared.run("answers.result()")
    assert cell.errors[0].startswith("KeyboardInterrupt: stopped with ")
    assert shared.run("%multigpu stop").result == "Nothing is running."


def test_a_second_job_is_refused_meanwhile(shared: Notebook) -> None:
    """The message says how to stop the first, which is not disturbed."""
    started(shared)
    cell = shared.run('%%multigpu\nmodel = "m"\nprompts = ["a"]')
    assert cell.stderr == (
        "UsageError: a job is running in this session; stop it first (%multigpu stop)\n"
    )
    finished(shared)
    assert shared.value("answers.texts") == [f"p {i}" for i in range(40)]


def test_an_error_surfaces_in_the_result_and_the_panel(notebook: Notebook) -> None:
    """The cell is over by then: `.result()` raises it, the variable and the panel tell."""
    cell = started(
        notebook,
        SLOW.replace('"delay": 0.1', '"fail_to_load": "no weights here"'),
    )
    finished(notebook)
    assert notebook.value("repr(answers)") == (
        "<failed: 40 of 40 prompts; .result() raises EngineError>"
    )
    [error] = notebook.run("answers.result()").errors
    assert "no weights here" in error
    cell.settle()
    assert "no weights here" in cell.panel


def test_a_name_that_was_bound_anew_is_left_alone(shared: Notebook) -> None:
    """What the user put there since is not overwritten."""
    started(shared)
    shared.run("run, answers = answers, 'mine'")
    assert shared.value("len(run.result())") == 40
    assert shared.value("answers") == "mine"


def test_a_bad_cell_is_refused_at_once(shared: Notebook) -> None:
    """Nothing goes on in the background."""
    cell = shared.run('%%multigpu --background -o later\nmodel = "m"\nprompts = [None]')
    assert cell.stderr.startswith("UsageError: prompt 0 is NoneType")
    assert shared.value("'later' in globals()") is False


def panels(cell: Cell) -> list[Any]:
    """The texts that stood in the panel, in order."""
    cell.settle()
    return cell.panels
