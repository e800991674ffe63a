"""A job that goes on after its cell: the panel lives on, and the kernel is free."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest

from notebook.live import text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from notebook.live import Cell, Message, Notebook

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
        if notebook.value("getattr(answers, 'done', True)"):  # the results have no such thing
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


@pytest.mark.parametrize(
    "use", ["answers.texts", "len(answers)", "answers[0]", "list(answers)", "answers.result(0.01)"]
)
def test_what_stands_in_for_the_results_says_so(shared: Notebook, use: str) -> None:
    """Who takes it for the results learns how far the job is and how to wait."""
    started(shared)
    [error] = shared.run(use).errors
    assert re.search(r"still running: \d+ of 40 prompts; \.result\(\) waits for it$", error)
    assert shared.value("bool(answers)") is True
    shared.run("%multigpu stop")


def test_a_notebook_that_is_saved_before_the_end_shows_something(shared: Notebook) -> None:
    """Where there is no widget manager one sees the state at the cell's end, in words."""
    cell = started(shared)
    [shown] = cell.contents("display_data")
    for kind in ("text/html", "text/plain"):
        assert "of 40 prompts" in shown["data"][kind]
        assert "cpu:1" in shown["data"][kind]
    shared.run("%multigpu stop")


def test_without_widgets_it_says_where_the_progress_is(notebook: Notebook) -> None:
    """One line in the cell itself; the job and the dashboard's error do not depend on a panel."""
    notebook.run("import sys\nsys.modules['ipywidgets'] = None")
    cell = started(notebook)
    assert re.fullmatch(
        r"no panel \(ModuleNotFoundError: .*\); %multigpu status shows how far it is, "
        r"%multigpu stop ends it\n",
        cell.stdout,
    )
    finished(notebook)
    assert notebook.value("len(answers.texts)") == 40
    told = notebook.run("%multigpu dashboard").stderr
    assert re.match(
        r"UsageError: no panel \(Mod.*\); %multigpu status shows the devices once", told
    )


def test_nothing_is_printed_into_other_cells(shared: Notebook) -> None:
    """The panel goes on where it stands; a later cell shows what it does itself."""
    panel = started(shared)
    [shown] = panel.contents("display_data")
    before = len(shared.heard)
    other = shared.run("import time\ntime.sleep(2)\nprint('mine')")
    finished(shared)
    after = shared.run("time.sleep(1)")
    assert (other.stdout, other.stderr, after.stdout, after.stderr) == ("mine\n", "", "", "")
    assert after.displays == []
    messages = shared.heard[before:]
    assert not [message for message in messages if message.kind in ("display_data", "error")]
    updates = [m.content for m in messages if m.kind == "update_display_data"]
    assert updates
    assert all(content["transient"] == shown["transient"] for content in updates)


def test_the_panel_goes_on_while_the_kernel_is_free(shared: Notebook) -> None:
    """It moves while nothing runs or something else does, and ends with the final state."""
    started(shared)
    before = len(shared.heard)
    shared.run("import time\ntime.sleep(1.5)")
    seen = [text for text in panels(shared.heard[before:]) if " of 40 prompts" in text]
    assert len(set(seen)) >= 3
    finished(shared)
    shared.run("time.sleep(1)")
    assert "40 of 40 prompts" in final(shared)["text/plain"]


def test_the_stop_button(shared: Notebook) -> None:
    """A click ends the job within two seconds; what was answered stays."""
    cell = started(shared)
    states = {c["comm_id"]: c["data"]["state"] for c in cell.contents("comm_open")}
    [button] = [key for key, state in states.items() if state.get("description") == "Stop"]
    shared.run("import time\ntime.sleep(1)")
    click = {"method": "custom", "content": {"event": "click"}}
    message = shared.client.session.msg("comm_msg", {"comm_id": button, "data": click})
    began = time.monotonic()
    shared.client.shell_channel.send(message)
    finished(shared)
    assert time.monotonic() - began < 2
    assert 0 < shared.value("sum(text is not None for text in answers.texts)") < 40


def test_the_run_can_be_awaited(shared: Notebook) -> None:
    """`await` gives the results and lets other tasks of the kernel go on."""
    started(shared)
    shared.run("import asyncio")
    cell = shared.run("results, _ = await asyncio.gather(answers, asyncio.sleep(0))")
    assert not cell.errors
    assert shared.value("results.texts") == [f"p {i}" for i in range(40)]


def test_without_a_name_the_run_is_the_cells_value(shared: Notebook) -> None:
    """`_` and `Out` hold it; `.result()` waits."""
    cell = started(shared, SLOW.replace(" -o answers", ""))
    assert (cell.result or "").startswith("<still running: ")
    shared.run("answers = _")
    assert shared.value("answers.result().texts") == [f"p {i}" for i in range(40)]


def test_stop_keeps_what_is_answered(shared: Notebook) -> None:
    """`%multigpu stop` ends it at once; the answers are in the variable and `%multigpu last`."""
    started(shared)
    shared.run("run = answers")
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
    assert shared.value("sum(text is not None for text in answers.texts)") == count
    assert shared.value("run.done, len(run.error.results)") == (True, 40)
    cell = shared.run("run.result()")
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
    started(
        notebook,
        SLOW.replace('"delay": 0.1', '"fail_to_load": "no weights here"'),
    )
    finished(notebook)
    assert notebook.value("repr(answers)") == (
        "<failed: 40 of 40 prompts; .result() raises EngineError>"
    )
    notebook.run("import time\ntime.sleep(1)")
    [error] = notebook.run("answers.result()").errors
    assert "no weights here" in error
    assert "no weights here" in final(notebook)["text/html"]


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


def watching(notebook: Notebook) -> bool:
    """Whether the kernel still shows its devices."""
    names = "[t.name for t in __import__('threading').enumerate()]"
    return "mgpu-watch" in notebook.value(names)


def test_the_devices_alone(shared: Notebook) -> None:
    """`%multigpu dashboard` shows them until it is told to end, and then leaves what it showed."""
    before = len(shared.heard)
    begun = shared.run("%multigpu dashboard")
    assert not begun.errors
    assert len(begun.displays) == 1
    shared.run("import time\ntime.sleep(3)")
    seen = panels(shared.heard[before:])
    assert any("cpu:1" in text for text in seen)
    assert not any(" of 40 prompts" in text for text in seen)
    assert watching(shared)
    shared.run("%multigpu dashboard off")
    shared.run("time.sleep(1)")
    assert "cpu:0" in final(shared)["text/plain"]
    assert not watching(shared)
    told = shared.run("%multigpu dashboard of").stderr
    assert told == "UsageError: %multigpu dashboard of: say off, or nothing\n"


def test_a_dashboard_ends_when_its_output_is_cleared(shared: Notebook) -> None:
    """The front end says that nobody sees it any more."""
    cell = shared.run("%multigpu dashboard")
    states = {c["comm_id"]: c["data"]["state"] for c in cell.contents("comm_open")}
    [counted] = [key for key, state in states.items() if state.get("_view_count") == 0]
    for count in (1, 0):
        assert watching(shared)
        data = {"method": "update", "state": {"_view_count": count}, "buffer_paths": []}
        content = {"comm_id": counted, "data": data}
        shared.client.shell_channel.send(shared.client.session.msg("comm_msg", content))
        shared.run("import time\ntime.sleep(3)")
    assert not watching(shared)


def panels(messages: Sequence[Message]) -> list[str]:
    """The texts that panels showed, in order."""
    return [
        text_of(message.content["data"]["state"]["value"])
        for message in messages
        if message.kind == "comm_msg" and "value" in message.content["data"].get("state", {})
    ]


def final(notebook: Notebook) -> dict[str, str]:
    """What a panel left as ordinary output, by MIME type."""
    left = [m.content["data"] for m in notebook.heard if m.kind == "update_display_data"]
    data: dict[str, str] = left[-1]
    return data
