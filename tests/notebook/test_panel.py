"""The panel under a cell: what a front end gets."""

from __future__ import annotations

import itertools
import json
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import fake_nvml
import pytest
from fake_nvml import GIB, FakeGpu

from notebook.live import Notebook, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WATCH = "import time\ntime.sleep(1.5)"


@pytest.mark.parametrize(("count", "delay"), [(1000, 0.01), (5000, 0.0)])
def test_the_panel_moves_and_never_floods(shared: Notebook, count: int, delay: float) -> None:
    """Four small messages a second, at least one in two seconds, and the last shows the end."""
    cell = shared.run(f"""
        %%multigpu -o answers
        model = "m"
        prompts = ["a b"] * {count}
        engine_args = {{"delay": {delay}}}
    """)
    sent = [message for message in cell.messages if message.kind == "comm_msg"]
    times = [message.at for message in sent]
    seconds = times[-1] - times[0]
    assert seconds > 400 * delay
    assert len(times) <= 4.2 * seconds + 3  # the first, the last, and the end of its folds
    assert max([after - before for before, after in itertools.pairwise(times)], default=0) < 2
    assert max(len(json.dumps(message.content)) for message in sent) < 7_000
    assert cell.panel.startswith(f"✓ Done {count:,} of {count:,} prompts (100 %)")


def test_the_panel_needs_no_javascript_of_its_own(shared: Notebook) -> None:
    """One widget is displayed, and every model is one of ipywidgets' core."""
    cell = shared.begin("""
        %%multigpu -o answers
        model = "m"
        prompts = ["a b"] * 100
        engine_args = {"delay": 0.01}
    """)
    cell.until(lambda cell: "running" in cell.panel)
    [bundle] = cell.displays
    assert "application/vnd.jupyter.widget-view+json" in bundle
    cell.end()
    states = [content["data"]["state"] for content in cell.contents("comm_open")]
    assert {state["_model_module"] for state in states} == {
        "@jupyter-widgets/base",
        "@jupyter-widgets/controls",
    }


def test_markup_in_a_name_is_shown_as_text(shared: Notebook) -> None:
    """A model, a prompt and an error with tags in them cannot put anything into the page."""
    cell = shared.run("""
        %%multigpu
        model = "<script>alert(1)</script>"
        prompts = ["<script>alert(2)</script>", "<img src=x onerror=alert(3)>"]
        engine_args = {"fail_on": "<img"}
    """)
    table = cell.contents("execute_result")[0]["data"]["text/html"]
    pages = [html for _, html in cell.panels] + [cell.displays[0]["text/html"], table]
    for html in pages:
        assert "<script" not in html
        assert "<img" not in html
    assert "script>" in cell.panel
    assert "<script>alert(2)</script>" in text_of(table)


def test_nothing_is_drawn_if_unwanted(shared: Notebook) -> None:
    """--no-panel, or `%config MultiGPU.panel = False`, leaves the results alone."""
    quiet = shared.run("%%multigpu m --no-panel -o answers\nprompts = ['a']")
    shared.run("%config MultiGPU.panel = False")
    also = shared.run("%%multigpu m -o answers\nprompts = ['a']")
    shared.run("%config MultiGPU.panel = True")
    for cell in (quiet, also):
        assert {message.kind for message in cell.messages} == {"status", "execute_input"}
    assert shared.value("answers.texts") == ["a"]


def test_nothing_appears_in_other_cells(shared: Notebook) -> None:
    """What workers print stays in their logs, and the panel stays with its own cell."""
    shared.run("""
        %%multigpu -o answers
        model = "m"
        prompts = ["a"] * 100
        engine_args = {"print_bytes": 10000, "delay": 0.01}
    """)
    following = shared.run(WATCH)
    assert {message.kind for message in following.messages} == {"status", "execute_input"}


def test_a_run_without_ipywidgets_prints_its_progress(notebook: Notebook) -> None:
    """A missing ipywidgets costs the panel alone: the reason is said once, then lines of text."""
    notebook.run("import sys\nsys.modules['ipywidgets'] = None")
    cell = notebook.run("""
        %%multigpu -o answers
        model = "m"
        prompts = [f"prompt {i}" for i in range(100)]
        engine_args = {"delay": 0.02}
    """)
    assert not cell.errors
    assert not cell.displays
    assert notebook.value("answers.texts") == [f"prompt {i}" for i in range(100)]
    first, *rest = cell.stdout.splitlines()
    assert first.startswith("no panel (ModuleNotFoundError: ")
    assert first.endswith("; progress is printed instead")
    assert cell.stdout.count("no panel") == 1
    assert 4 < len(rest) < 30
    assert any(line.startswith("running  ") for line in rest)
    assert rest[-1].startswith("done     100 of 100 prompts")
    following = notebook.run(WATCH)
    assert {message.kind for message in following.messages} == {"status", "execute_input"}


# --- GPUs ------------------------------------------------------------------------------------

ASK = """
    %%multigpu -o answers
    model = "m"
    prompts = ["$CUDA_VISIBLE_DEVICES"] * 100
    engine_args = {"expand": True, "delay": 0.02}
"""


@contextmanager
def machine(folder: Path, count: int, **variables: str) -> Iterator[Notebook]:
    """A notebook on a machine with so many Tesla T4, each with 1 GiB more in use than the last."""
    library = fake_nvml.build(folder)
    cards = [FakeGpu(uuid=f"GPU-{i}", used_bytes=i * GIB, utilisation=i) for i in range(count)]
    fake_nvml.write_config(folder / "machine", cards)
    environ = fake_nvml.environment(library.parent, folder / "machine")
    notebook = Notebook(folder, {**environ, **variables})
    try:
        notebook.load()
        notebook.run("%config MultiGPU.devices = 'all'")
        yield notebook
    finally:
        notebook.close()


def test_gpus_are_shown_with_their_memory(tmp_path: Path) -> None:
    """Two T4: the list, the status and the panel name both, with NVML's figures."""
    with machine(tmp_path, 2) as notebook:
        assert (notebook.run("%multigpu devices").result or "").splitlines() == [
            "cuda:0  Tesla T4, 15.0 GiB, compute capability 7.5",
            "cuda:1  Tesla T4, 15.0 GiB, compute capability 7.5",
        ]
        status = notebook.run("%multigpu status").result or ""
        assert [" ".join(line.split()) for line in status.splitlines()] == [
            "cuda:0 0.0 of 15.0 GiB 0 % busy",
            "cuda:1 1.0 of 15.0 GiB 1 % busy",
        ]
        panel = notebook.run(ASK).panel
        assert re.search(r"cuda:0 Tesla T4 .* 0\.0 of 15\.0 GiB .*cuda:1 Tesla T4", panel)
        assert re.search(r"cuda:1 Tesla T4 .* 1\.0 of 15\.0 GiB", panel)
        assert notebook.value("set(answers.texts)") == {"0", "1"}


def test_a_masked_kernel_uses_its_own_gpus(tmp_path: Path) -> None:
    """With `CUDA_VISIBLE_DEVICES=2,3` the workers get 2 and 3, and the panel reads those."""
    with machine(tmp_path, 4, CUDA_VISIBLE_DEVICES="2,3") as notebook:
        panel = notebook.run(ASK).panel
        assert re.search(r"cuda:0 Tesla T4 .* 2\.0 of 15\.0 GiB .*cuda:1 Tesla T4", panel)
        assert re.search(r"cuda:1 Tesla T4 .* 3\.0 of 15\.0 GiB", panel)
        assert notebook.value("set(answers.texts)") == {"2", "3"}
        assert notebook.value("{answer.device for answer in answers}") == {"cuda:0", "cuda:1"}
        assert notebook.value("__import__('os').environ['CUDA_VISIBLE_DEVICES']") == "2,3"


def test_what_a_worker_prints_stands_in_its_log(shared: Notebook) -> None:
    """Folded away below the panel, by device; no cell's own output has any of it."""
    cell = shared.run("""
        %%multigpu -o answers
        model = "m"
        prompts = ["a"] * 20
        engine_args = {"print_bytes": 300, "delay": 0.05}
    """)
    assert (cell.stdout, cell.stderr) == ("", "")
    [final] = [display["text/html"] for display in cell.displays]
    log = text_of(final.partition("<details")[2])
    assert "echo echo echo" in log
    assert "cpu:0" in log
    assert "cpu:1" in log
    moving = [
        text_of(message.content["data"]["state"]["value"])
        for message in cell.messages
        if message.kind == "comm_msg" and "value" in message.content["data"].get("state", {})
    ]
    assert any("echo echo echo" in text for text in moving)


@pytest.mark.parametrize(
    ("breaks", "reason"),
    [
        ("import sys; sys.modules['ipywidgets'] = None", "ModuleNotFoundError"),
        ("import ipywidgets; ipywidgets.HTML = None", "TypeError"),
        (
            "import IPython.display\ndef display(*_, **k): raise RuntimeError('no front end')\n"
            "IPython.display.display = display",
            "RuntimeError: no front end",
        ),
    ],
)
def test_a_run_does_not_depend_on_its_panel(notebook: Notebook, breaks: str, reason: str) -> None:
    """Widgets missing or broken, or a display that raises: text says why, and all is answered."""
    notebook.run(breaks)
    cell = notebook.run("""
        %%multigpu -o answers
        model = "m"
        prompts = ["a b", "c"]
    """)
    assert not cell.errors
    assert notebook.value("answers.texts") == ["a b", "c"]
    assert cell.stdout.startswith(f"no panel ({reason}")
    assert "progress is printed instead" in cell.stdout
    assert "2 of 2 prompts" in cell.stdout
