"""The cell magic among IPython's other ways: timed, in functions, in loops, by papermill."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any

import nbformat
import papermill
import pytest

from notebook.live import Family, text_of
from notebook.test_refusals import refusal

if TYPE_CHECKING:
    from pathlib import Path

    from notebook.live import Notebook

JOB = """
    %%multigpu -o answers
    model = "m"
    prompts = ["a b", "c"]
"""


def test_a_timed_cell_says_how_long_it_took(shared: Notebook) -> None:
    """`%%time` above the magic prints its time, and the panel and the results are as ever."""
    cell = shared.run("%%time" + JOB)
    assert not cell.errors
    assert not cell.stderr
    assert re.search(r"Wall time: .+s", cell.stdout)
    assert "2 of 2 prompts" in cell.panel
    assert shared.value("answers.texts") == ["a b", "c"]
    shown = shared.run("%%time\n%%multigpu\nmodel = 'm'\nprompts = ['a', 'b']")
    assert (shown.result or "").startswith("2 prompts, 2 answered")


def test_a_function_runs_the_magic(shared: Notebook) -> None:
    """What the body binds is in the notebook, as from a cell; so are the results of -o."""
    cell = shared.run("""
        def ask(count):
            body = f'model = "m"\\nprompts = [str(i) for i in range({count})]\\nkept = {count}'
            return get_ipython().run_cell_magic("multigpu", "--no-panel", body)

        first = ask(2)
        second = ask(count=3)
        get_ipython().run_cell_magic("multigpu", "m -o named", "prompts = ['{x} $HOME']")
    """)
    assert not cell.errors
    assert not cell.stderr
    assert shared.value("first.texts, second.texts") == (["0", "1"], ["0", "1", "2"])
    assert shared.value("kept, prompts, named.texts") == (3, ["{x} $HOME"], ["{x} $HOME"])


def test_a_loop_runs_the_magic(shared: Notebook) -> None:
    """Each run has a panel of its own, and all of them the same workers."""
    cell = shared.run("""
        results = []
        for limit in (1, 2, 3):
            get_ipython().run_cell_magic(
                "multigpu", f"m -o answers --max-tokens {limit}", "prompts = ['a b c'] * 4"
            )
            results.append(answers.texts)
    """)
    assert not cell.errors
    assert shared.value("results") == [["a"] * 4, ["a b"] * 4, ["a b c"] * 4]
    assert len(cell.displays) == 3
    assert all("4 of 4 prompts" in shown["text/plain"] for shown in cell.displays)
    assert len(shared.workers()) == 2


def test_a_function_that_is_wrong_says_so(shared: Notebook) -> None:
    """The body's error reaches the function's caller; a usage error has no traceback."""
    shared.run("""
        def ask(line, body):
            return get_ipython().run_cell_magic("multigpu", line, body)
    """)
    assert "unrecognized arguments: --fast" in refusal(shared, "ask('m --fast', 'pass')")
    cell = shared.run("""
        try:
            ask("m", "prompts = [1 / 0]")
        except ZeroDivisionError:
            print("caught")
    """)
    assert cell.stdout == "caught\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--max-tokns 4", "unrecognized arguments: --max-tokns; did you mean --max-tokens?"),
        ("--max_tokens=4 m", "--max_tokens=4; did you mean --max-tokens?"),
        ("m --backgound", "--backgound; did you mean --background?"),
        ("m --max 4", "ambiguous option: --max could match --max-tokens, --max-model-len"),
        ("m --engine vlm", "--engine: invalid choice: 'vlm'; did you mean vllm? (choose from "),
        ("m --quick", "unrecognized arguments: --quick. %%multigpu? lists the options."),
        ("m more", "unrecognized arguments: more. %%multigpu? lists the options."),
    ],
)
def test_a_misspelt_option_is_named_with_the_closest_one(
    shared: Notebook, line: str, message: str
) -> None:
    """A usage error points at the option."""
    assert message in refusal(shared, f"%%multigpu {line}\nprompts = ['a']")


def test_a_picture_is_the_value_of_a_cell(shared: Notebook) -> None:
    """`results.stats.plot()` as a last line shows a picture, once, in a plain kernel."""
    shared.run("""
        %%multigpu -o answers
        model = "m"
        prompts = ["a b"] * 60
        engine_args = {"delay": 0.05}
    """)
    shared.run("import matplotlib.font_manager")  # which says so where it first looks for fonts
    cell = shared.run("answers.stats.plot()")
    assert not cell.errors
    assert not cell.stderr
    [result] = cell.contents("execute_result")
    assert base64.b64decode(result["data"]["image/png"]).startswith(b"\x89PNG")
    assert result["metadata"]["image/png"] == {"width": 900, "height": 600}
    assert not cell.displays
    devices = "[history.device for history in answers.stats.history]"
    assert shared.value(devices) == ["cpu:0", "cpu:1"]
    points = "[any(history.used_bytes) for history in answers.stats.history]"
    assert shared.value(points) == [True, True]


@pytest.fixture
def notebook_file(tmp_path: Path) -> Path:
    """A notebook whose parameters are two prompts and a limit of one token."""
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    tagged = {"tags": ["parameters"]}
    cells = [
        nbformat.v4.new_code_cell('count = 2\nlimit = 1\nengine = "vllm"', metadata=tagged),
        nbformat.v4.new_code_cell("%load_ext mgpu_magic\n%config MultiGPU.engine = engine"),
        nbformat.v4.new_code_cell(
            '%%multigpu --devices cpu:2 -o answers\nmodel = "m"\n'
            'prompts = [f"{i} b c" for i in range(count)]\nsampling = {"max_tokens": limit}'
        ),
        nbformat.v4.new_code_cell("print(answers.texts[-1], len(answers))"),
    ]
    file = tmp_path / "in.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), file)
    return file


def test_papermill_runs_a_notebook_with_other_parameters(
    notebook_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The saved notebook has the figures of the run with those, and no warning."""
    family = Family()
    for name, value in {**family.variable, "IPYTHONDIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    papermill.execute_notebook(
        str(notebook_file),
        str(tmp_path / "out.ipynb"),
        parameters={"count": 30, "limit": 2, "engine": "echo"},
        progress_bar=False,
    )
    family.end()
    saved: Any = nbformat.read(tmp_path / "out.ipynb", as_version=4)
    *_, job, last = saved.cells
    [panel] = job.outputs
    text = text_of(panel.data["text/html"])
    assert text.startswith("✓ Done 30 of 30 prompts (100 %)")
    assert "60 tokens out" in text
    assert "30 of 30 prompts" in panel.data["text/plain"]
    assert last.outputs[0].text == "29 b 30\n"
    outputs = [output for cell in saved.cells for output in cell.outputs]
    assert [output.get("name") for output in outputs] == [None, "stdout"]
