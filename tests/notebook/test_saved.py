"""What a notebook that was run and saved tells whoever reads it, without kernel and widgets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import nbformat
import papermill
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter

from notebook.live import Family, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

JOB = """\
%%multigpu --engine echo --devices cpu:2 -o answers
model = "m"
prompts = ["a b"] * 99 + ["<c>"]
engine_args = {"delay": 0.01, "fail_on": "<c>"}"""
BROKEN = JOB.replace('"delay": 0.01', '"fail_to_load": "no such weights"')
STOPPED = (
    JOB.replace("0.01", "0.2")
    + """
import os, signal, threading
threading.Timer(3, os.kill, (os.getpid(), signal.SIGINT)).start()"""
)


@pytest.fixture
def family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever the notebook starts is gone afterwards."""
    family = Family()
    for name, value in {**family.variable, "IPYTHONDIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    yield
    family.end()


def ran(*sources: str, **options: Any) -> Any:
    """A notebook with these cells, run, saved and read."""
    cells = [nbformat.v4.new_code_cell(text) for text in ("%load_ext mgpu_magic", *sources)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, allow_errors=True, **options).execute()
    return nbformat.reads(nbformat.writes(notebook), as_version=4)


def shown(notebook: Any) -> Any:
    """The one display of the last cell: HTML and text, no widget."""
    [output] = [out for out in notebook.cells[-1].outputs if out.output_type == "display_data"]
    assert set(output.data) == {"text/html", "text/plain"}
    assert sum(len(part.encode()) for part in output.data.values()) < 20_000
    return output.data


def page_of(notebook: Any) -> str:
    """The text of the page that nbconvert makes of it, without that of its scripts."""
    html, _ = HTMLExporter().from_notebook_node(notebook)
    assert "Loading widget" not in html
    return text_of(re.sub(r"(?s)<(script|style)\b.*?</\1>", "", html))


@pytest.mark.parametrize("store_widget_state", [True, False])
def test_a_saved_notebook_shows_how_it_ended(family: None, store_widget_state: bool) -> None:
    """Whoever opens the file finds the final figures as HTML and as text, once."""
    notebook = ran(JOB, store_widget_state=store_widget_state)
    data = shown(notebook)
    text = text_of(data["text/html"])
    assert text.startswith("✓ Done 100 of 100 prompts (100 %)")
    assert "1 failed prompt ✗ #99 ValueError" in text
    lines = data["text/plain"].splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["cpu:0", "cpu:1", "done"]
    assert "100 of 100 prompts" in lines[2]
    assert "1 failed" in lines[2]
    assert len(nbformat.writes(notebook)) < 40_000
    assert page_of(notebook).count("Done 100 of 100 prompts (100 %)") == 1


def test_a_saved_notebook_tells_why_a_run_failed(family: None) -> None:
    """A device says what happened to its worker, and a failed prompt why."""
    notebook = ran(BROKEN)
    text = text_of(shown(notebook)["text/html"])
    assert text.startswith("✗ Failed 100 of 100 prompts")
    assert re.search(r"✗ failed \d s m RuntimeError: no such weights", text)
    assert "100 failed prompts ✗ #0" in text
    assert "and 80 more" in text
    assert "RuntimeError: no such weights" in shown(notebook)["text/plain"]
    assert "Failed 100 of 100 prompts" in page_of(notebook)


def test_a_saved_notebook_tells_that_a_run_was_stopped(family: None) -> None:
    """What was done until then is there, and no percentage claims the rest."""
    notebook = ran(STOPPED)
    text = text_of(shown(notebook)["text/html"])
    assert text.startswith("■ Interrupted ")
    assert " 100 of 100 prompts" not in text
    assert shown(notebook)["text/plain"].splitlines()[2].startswith("interrupted  ")
    assert "Interrupted" in page_of(notebook)


CARELESS = """\
%%multigpu --devices cpu:2 --batch-size 1 -o answers
import os
def predict(state, batch):
    said = "sent " + os.environ["HF_TOKEN"]
    print(said)
    if batch[0] in bad:
        raise RuntimeError(said)
    return batch
prompts = [1, 2, 3]"""


@pytest.mark.parametrize("bad", ["[2]", "[1, 2, 3]"])
def test_a_saved_notebook_holds_no_token(
    family: None, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    """However a function of the notebook prints it and fails with it: one shares the file."""
    token = "hf_" + "aB3" * 11
    monkeypatch.setenv("HF_TOKEN", token)
    notebook = ran(f"bad = {bad}", CARELESS, "%multigpu logs", "%multigpu last", "%multigpu status")
    written = nbformat.writes(notebook)
    assert token not in written
    assert written.count("sent hf_***") >= 3  # the logs, the panel, the row or the error
    assert any("sent hf_***" in str(out) for out in notebook.cells[3].outputs)


def test_papermill_keeps_the_final_state(family: None, tmp_path: Path) -> None:
    """Kaggle's Save & Run All runs notebooks this way."""
    cells = [nbformat.v4.new_code_cell(text) for text in ("%load_ext mgpu_magic", JOB)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(notebook, tmp_path / "in.ipynb")
    papermill.execute_notebook(
        str(tmp_path / "in.ipynb"), str(tmp_path / "out.ipynb"), progress_bar=False
    )
    saved = nbformat.read(tmp_path / "out.ipynb", as_version=4)
    assert text_of(shown(saved)["text/html"]).startswith("✓ Done 100 of 100 prompts (100 %)")
    assert page_of(saved).count("Done 100 of 100 prompts (100 %)") == 1
