"""Runs a demo notebook without a browser and checks the answers that it got.

    python demo_notebooks/run.py NOTEBOOK [--devices cpu:2] [--expect Paris,Berlin]

The executed notebook and its HTML go to `build/`. With `--expect`, the exit code is 0 only if the
notebook's `answers` hold these words, one each and in order, and every device answered.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter

# Runs in the notebook's kernel after its own cells: what `answers` holds, as data.
PROBE = """
import json
print(json.dumps([
    {"text": getattr(answer, "text", None), "device": getattr(answer, "device", None)}
    for answer in answers
]))
"""

Answer = dict[str, str | None]


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0, or 1 if a cell failed or an answer is not the expected one."""
    parser = argparse.ArgumentParser(description="Run a demo notebook and check its answers.")
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--devices", help="devices for every %%%%multigpu cell, such as cpu:2")
    parser.add_argument("--expect", help="words that the answers must hold, such as Paris,Berlin")
    options = parser.parse_args(arguments)

    notebook = nbformat.read(options.notebook, as_version=4)
    if options.devices:
        choose_devices(notebook, options.devices)
    try:
        answers = execute(notebook, options.notebook.parent, probe=options.expect is not None)
    except CellExecutionError as error:
        print(f"\nThe notebook failed.\n{error}")
        return 1
    finally:
        for path in save(notebook, options.notebook.stem):
            print(f"wrote {path}")
    if options.expect is None:
        return 0
    print()
    for answer in answers:
        print(f"{answer['device']}  {answer['text']}")
    wrong = problems(answers, options.expect.split(","), named_devices(options.devices))
    print("\n" + ("\n".join(wrong) or "All answers are right, and every device answered."))
    return 1 if wrong else 0


def choose_devices(notebook: Any, devices: str) -> None:
    """Adds `--devices` to each `%%multigpu` cell that does not choose its own."""
    for cell in notebook.cells:
        if cell.cell_type == "code" and "--devices" not in cell.source:
            cell.source = cell.source.replace("%%multigpu", f"%%multigpu --devices {devices}", 1)


def execute(notebook: Any, folder: Path, *, probe: bool) -> list[Answer]:
    """Runs the cells in `folder`, with a line of output each; returns `answers` if probed."""
    total = len(notebook.cells)

    def on_cell_start(cell: Any, cell_index: int) -> None:
        if cell.cell_type == "code" and cell_index < total:
            first = cell.source.partition("\n")[0]
            print(f"cell {cell_index + 1} of {total}: {first}", flush=True)

    client = NotebookClient(
        notebook,
        timeout=600,  # seconds a cell; loading is the longest
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        on_cell_start=on_cell_start,
    )
    if not probe:
        client.execute()
        return []
    notebook.cells.append(nbformat.v4.new_code_cell(PROBE))
    try:
        client.execute()
    finally:
        probed = notebook.cells.pop()
    return list(json.loads(probed.outputs[0].text))


def save(notebook: Any, name: str) -> list[Path]:
    """Writes the notebook and its HTML to `build/`; returns both paths."""
    build = Path("build")
    build.mkdir(exist_ok=True)
    executed, page = build / f"{name}.ipynb", build / f"{name}.html"
    nbformat.write(notebook, executed)
    page.write_text(HTMLExporter().from_notebook_node(notebook)[0], encoding="utf-8")
    return [executed.resolve(), page.resolve()]


def named_devices(devices: str | None) -> set[str]:
    """Labels of the devices that `--devices` names one by one; empty for `all` and the like."""
    match (devices or "all").partition(":"):
        case "cpu", ":", count:
            return {f"cpu:{index}" for index in range(int(count))}
        case indices, "", "" if indices not in {"all", "cpu"}:
            return {f"cuda:{index.strip()}" for index in indices.split(",")}
    return set()


def problems(answers: list[Answer], words: list[str], devices: set[str]) -> list[str]:
    """What is wrong with the answers, a sentence each."""
    wrong = []
    if len(answers) != len(words):
        wrong.append(f"There are {len(answers)} answers; {len(words)} were expected.")
    for index, (answer, word) in enumerate(zip(answers, words, strict=False)):
        if word not in (answer["text"] or ""):
            wrong.append(f"Answer {index} is {answer['text']!r}; it should name {word}.")
    idle = devices - {answer["device"] for answer in answers}
    if idle:
        wrong.append(f"No answer came from {', '.join(sorted(idle))}.")
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
