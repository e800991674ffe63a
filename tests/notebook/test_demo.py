"""The demo notebooks, run as `make demo` runs them, with real models."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pandas as pd
import pytest
import small_classifiers
from run import Answer, choose_devices, named_devices, problems

from notebook.live import Family

DEMOS = Path(__file__).parents[2] / "demo_notebooks"
CAPITALS = ["Paris", "Berlin", "Tokyo", "Rome", "Madrid", "Cairo", "Nairobi", "Lima"]


def executed(name: str, folder: Path) -> Any:
    """The notebook of that name after a run on two CPU devices, in a copy of the demos."""
    for path in (*DEMOS.glob("*.py"), DEMOS / name):
        shutil.copy(path, folder)
    family = Family()
    script = subprocess.run(
        [sys.executable, "run.py", name, "--devices", "cpu:2"],
        cwd=folder,
        env={**os.environ, **family.variable},
        capture_output=True,
        text=True,
        check=False,
    )
    family.end()
    assert script.returncode == 0, script.stdout + script.stderr
    return nbformat.read(folder / "build" / name, as_version=4)


def values(notebook: Any) -> list[str]:
    """The values of its cells, as text."""
    return [
        output["data"]["text/plain"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.output_type == "execute_result"
    ]


@pytest.mark.timeout(300)  # the classifiers are trained on the first run of a machine
def test_the_ensemble_scores_and_writes_its_submission(tmp_path: Path) -> None:
    """Three classifiers judge 200 comments on two devices; the submission has them all right."""
    shown = values(executed("02_ensemble_scoring.ipynb", tmp_path))
    assert "{'minilm': (200, 2), 'bert': (200, 2), 'llama': (200, 2)}" in shown
    submission = pd.read_csv(tmp_path / "submission.csv")
    truth = np.array(small_classifiers.comments(200, seed=42)[1])
    assert submission["id"].tolist() == list(range(200))
    assert ((submission["advertising"] > 0.5) == (truth == 1)).mean() > 0.95
    assert not (DEMOS / "submission.csv").exists()


@pytest.mark.timeout(400)  # two workers import and load vLLM
def test_choices_and_embeddings_are_right(tmp_path: Path) -> None:
    """Each capital is the likeliest choice, and the cat is what comes nearest to a kitten."""
    shown = values(executed("03_choices_and_embeddings.ipynb", tmp_path))
    assert "['Paris', 'Berlin', 'Madrid']" in shown
    assert "'A cat sleeps on the warm windowsill.'" in shown
    [logprobs] = [text for text in shown if text.startswith("array(")]
    assert "-2.34" in logprobs
    assert "-8.92" in logprobs


@pytest.mark.timeout(400)  # two workers import and load vLLM
def test_the_quickstart_runs_and_its_answers_are_right(tmp_path: Path) -> None:
    """Every cell runs, both devices answer, and the capitals come back right and in order."""
    family = Family()
    script = subprocess.run(
        [
            sys.executable, DEMOS / "run.py", DEMOS / "01_quickstart.ipynb",
            "--devices", "cpu:2", "--expect", ",".join(CAPITALS),
        ],
        cwd=tmp_path,
        env={**os.environ, **family.variable},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    family.end()
    assert script.returncode == 0, script.stdout + script.stderr
    answers = [line for line in script.stdout.splitlines() if line.startswith("cpu:")]
    assert {line.split()[0] for line in answers} == {"cpu:0", "cpu:1"}
    for line, capital in zip(answers, CAPITALS, strict=True):
        assert f" {capital}." in line
    executed = nbformat.read(tmp_path / "build" / "01_quickstart.ipynb", as_version=4)
    outputs = [output for cell in executed.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type == "error"]
    assert "Lima" in (tmp_path / "build" / "01_quickstart.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted(DEMOS.glob("*.ipynb")), ids=lambda path: path.name)
def test_a_demo_notebook_is_kept_without_outputs(path: Path) -> None:
    """What one opens is what one is about to run."""
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_a_wrong_idle_or_missing_answer_is_a_problem() -> None:
    """The demo fails, and says why, where an answer is wrong, a device idle, or a row missing."""
    right: list[Answer] = [
        {"text": "It is Paris.", "device": "cpu:0"},
        {"text": "Rome", "device": "cpu:1"},
    ]
    devices = named_devices("cpu:2")
    assert devices == {"cpu:0", "cpu:1"}
    assert problems(right, ["Paris", "Rome"], devices) == []
    assert problems(right, ["Rome", "Paris"], devices) == [
        "Answer 0 is 'It is Paris.'; it should name Rome.",
        "Answer 1 is 'Rome'; it should name Paris.",
    ]
    assert problems(right[:1], ["Paris", "Rome"], devices) == [
        "There are 1 answers; 2 were expected.",
        "No answer came from cpu:1.",
    ]
    failed: list[Answer] = [right[0], {"text": None, "device": None}]
    assert problems(failed, ["Paris", "Rome"], set()) == ["Answer 1 is None; it should name Rome."]


def test_devices_are_chosen_for_cells_that_do_not_choose() -> None:
    """`--devices` of the script is a default: what a cell says itself stays."""
    sources = ["%%time\n%%multigpu -o a\npass", "%%multigpu --devices 0\npass", "print(1)"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])
    choose_devices(notebook, "cpu:2")
    assert [cell.source for cell in notebook.cells] == [
        "%%time\n%%multigpu --devices cpu:2 -o a\npass",
        "%%multigpu --devices 0\npass",
        "print(1)",
    ]
