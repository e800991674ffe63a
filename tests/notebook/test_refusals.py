"""What a user sees when a cell is wrong, or its model is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from notebook.live import Cell, Notebook


def refusal(notebook: Notebook, source: str) -> str:
    """What a usage error says; it has no traceback, and nothing was started for it."""
    workers = notebook.workers()
    cell = notebook.run(source)
    assert not cell.errors
    assert not cell.stdout
    assert not cell.displays
    assert notebook.workers() == workers
    assert cell.stderr.startswith("UsageError: ")
    return cell.stderr.removeprefix("UsageError: ").strip()


def test_a_value_of_an_earlier_cell_never_describes_the_job(shared: Notebook) -> None:
    """Forgotten prompts are not replaced by old ones; the error says how to ask for those."""
    shared.run('prompts = ["old"]\nmodel = "old"\nmodels = {"a": "old"}')
    assert refusal(shared, '%%multigpu\nmodel = "m"') == (
        "the cell does not set prompts; the notebook has one from an earlier cell: "
        "add --prompts prompts to use it"
    )
    assert refusal(shared, '%%multigpu\nprompts = ["a"]') == (
        "the cell does not set model; the notebook has one from an earlier cell: "
        "add --model model to use it"
    )
    cell = shared.run("%%multigpu --model model --prompts prompts --no-panel\nprompts.append('b')")
    assert (cell.result or "").startswith("2 prompts, 2 answered")


def test_a_body_that_sets_the_same_value_again_describes_the_job(shared: Notebook) -> None:
    """A cell may be run twice, though its second run changes nothing."""
    source = 'model = "m"\nprompts = shared_prompts'
    shared.run('shared_prompts = ["a"]')
    for _ in range(2):
        cell = shared.run(f"%%multigpu --no-panel\n{source}")
        assert (cell.result or "").startswith("1 prompt, 1 answered")


@pytest.mark.parametrize(
    ("line", "body", "names"),
    [
        ("m", "model = 'm'", ["model", "the cell's body", "'m'"]),
        ("--model mine", "model = 'm'", ["model", "the cell's body", "'--model mine'"]),
        ("m --prompts mine", "prompts = []", ["prompts", "the cell's body", "'--prompts mine'"]),
        ("m --sampling mine", "sampling = {}", ["sampling", "'--sampling mine'"]),
        ("m --max-tokens 3", "sampling = {'max_tokens': 4}", ["--max-tokens", "sampling"]),
        ("m --seed 3", "sampling = {'seed': 4}", ["--seed", "sampling"]),
        ("m --max-model-len 9", "engine_args = {'max_model_len': 8}", ["--max-model-len"]),
        ("m", "models = {'a': 'm'}", ["model and models"]),
    ],
)
def test_a_value_in_both_places_is_an_error_that_names_both(
    shared: Notebook, line: str, body: str, names: list[str]
) -> None:
    """Neither the magic's line nor the cell's body silently wins."""
    shared.run("mine = {}")
    message = refusal(shared, f"%%multigpu {line}\nprompts = ['a']\n{body}")
    for name in names:
        assert name in message


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("%%multigpu --fast\nmodel = 'm'", "unrecognized arguments: --fast"),
        ("%%multigpu a b\nmodel = 'm'", "unrecognized arguments: b"),
        ("%%multigpu --max-tokens x\nmodel = 'm'", "argument --max-tokens: invalid int value: 'x'"),
        ("%%multigpu -o 1st\nmodel = 'm'", "-o 1st: a variable cannot be named so"),
        ("%%multigpu m\npass", "no prompts: set `prompts = [...]`"),
        ("%%multigpu\nprompts = ['a']", 'no model: set `model = "..."` or'),
        ("%%multigpu m --prompts nope\npass", "--prompts nope: NameError: name 'nope' is not"),
        ("%%multigpu m\nprompts = ['a', None]", "prompt 1 is NoneType (None)"),
        ("%%multigpu m --devices cpu:999\nprompts = ['a']", "asked for 999 CPU devices"),
        ("%%multigpu m --devices 0\nprompts = ['a']", "cpu:2"),
        (
            "%%multigpu\nmodels = {'a': {'model': 'm', 'devices': [7]}}\nprompts = ['x']",
            "model 'a' asks for device 7; 2 devices are visible (0, 1)",
        ),
        (
            "%%multigpu\nmodels = {'a': {'model': 'm', 'replicas': 3}}\nprompts = ['x']",
            "model 'a'",
        ),
        ("%%multigpu m --engine vllm\nmodel = print", "model is given twice"),
        ("%multigpu nonsense", "%multigpu nonsense is unknown."),
        ("%multigpu logs 99999", "there is no worker 99999"),
    ],
)
def test_a_wrong_cell_is_refused_in_a_sentence(shared: Notebook, source: str, message: str) -> None:
    """A usage error has no traceback, and nothing is started."""
    assert message in refusal(shared, source)


def place_in(notebook: Notebook, cell: Cell, line: int) -> str:
    """How this IPython calls a line of the cell; before version 8 it names a file."""
    if notebook.value("__import__('IPython').version_info[0]") < 8:
        return f", line {line}\n" if "SyntaxError" in cell.errors[0] else f"----> {line} "
    return f"Cell In[{cell.contents('execute_input')[0]['execution_count']}], line {line}"


def test_an_error_in_the_body_points_at_its_line(shared: Notebook) -> None:
    """Lines are counted from the `%%multigpu` line, and none of our frames is shown."""
    cell = shared.run("""
        %%multigpu
        model = "m"

        prompts = [1 / 0]
    """)
    [error] = cell.errors
    assert place_in(shared, cell, 4) in error
    assert "----> 4 prompts = [1 / 0]" in error
    assert error.endswith("ZeroDivisionError: division by zero")
    assert "mgpu_magic" not in error


def test_an_error_below_the_body_shows_the_way_to_it(shared: Notebook) -> None:
    """A function that fails is shown with the body's line that called it."""
    shared.run("def broken():\n    raise KeyError('gone')")
    [error] = shared.run('%%multigpu\nmodel = "m"\nprompts = broken()').errors
    assert "----> 3 prompts = broken()" in error
    assert "in broken()" in error
    assert error.endswith("KeyError: 'gone'")


def test_a_syntax_error_in_the_body_is_shown_at_its_line(shared: Notebook) -> None:
    """The line is that of the cell."""
    cell = shared.run('%%multigpu\nmodel = "m"\nprompts = (')
    [error] = cell.errors
    assert place_in(shared, cell, 3) in error
    assert "SyntaxError: '(' was never closed" in error


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"fail_to_load": "no such weights"}, "RuntimeError: no such weights"),
        ({"speed": 3}, "TypeError: echo has no engine argument 'speed'"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_one_error(
    shared: Notebook, settings: dict[str, object], cause: str
) -> None:
    """The cell shows the cause in the worker's words, once, and none of the kernel's frames."""
    cell = shared.run(f"""
        %%multigpu
        model = "m"
        prompts = ["a", "b", "c"]
        engine_args = {settings}
    """)
    [error] = cell.errors
    first, *rest = error.splitlines()
    assert first.startswith("EngineError: m could not be loaded on cpu:")
    assert cause in first
    assert error.count("Traceback (most recent call last)") == 1
    assert rest[:2] == ["", "In the worker (whole: the error's .traceback):"]
    assert "session.py" not in error
    assert "execution.py" not in error
    assert not cell.stdout
    assert not cell.stderr
    assert "Failed" in cell.panel


def test_a_failed_prompt_is_a_row_and_not_an_error(shared: Notebook) -> None:
    """One bad prompt costs one row; the table says how many failed."""
    cell = shared.run("""
        %%multigpu
        model = "m"
        prompts = ["a", "bad", "c"]
        engine_args = {"fail_on": "bad"}
    """)
    assert not cell.errors
    assert (cell.result or "").startswith("3 prompts, 2 answered, 1 failed")
    assert shared.value("_.texts") == ["a", None, "c"]
    assert shared.value("[(f.index, f.error.kind) for f in _.failures]") == [(1, "ValueError")]
    assert "1 failed" in cell.panel


def test_no_prompts_start_no_worker(notebook: Notebook) -> None:
    """A filter that left nothing gives nothing, at once."""
    cell = notebook.run('%%multigpu -o answers\nmodel = "m"\nprompts = []')
    assert notebook.value("len(answers), list(answers)") == (0, [])
    assert notebook.workers() == []
    assert not cell.errors
    assert "0 of 0 prompts" in cell.panel
