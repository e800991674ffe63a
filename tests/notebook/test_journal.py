"""A cell that keeps a journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from notebook.live import Notebook

JOB = """
    %%multigpu -o answers --journal answers.jsonl
    model = "m"
    prompts = ["a b", "c", "a b"]
"""


def test_a_cell_that_is_run_again(notebook: Notebook) -> None:
    """Its panel says that the answers came from the journal, and no worker is needed for them."""
    first = notebook.run(JOB)
    place = notebook.value("__import__('os').path.abspath('answers.jsonl')")
    assert f"new journal {place}" in first.panel
    notebook.run("%multigpu free")
    again = notebook.run(JOB)
    assert "3 of 3 prompts" in again.panel
    assert "3 of 3 answers came from the journal answers.jsonl." in again.panel
    assert notebook.value("answers.texts") == ["a b", "c", "a b"]
    assert notebook.workers() == []
    table = notebook.run("answers").result or ""
    assert table.startswith("3 prompts, 3 answered, 3 from the journal")


def test_a_cell_whose_journal_is_something_else(notebook: Notebook) -> None:
    """It is refused in one line, before anything starts, and the file is as it was."""
    notebook.run("open('train.csv', 'w').write('text,label')")
    cell = notebook.run(JOB.replace("answers.jsonl", "train.csv"))
    assert cell.stderr.startswith(
        "UsageError: journal train.csv: there is such a file, and it is no journal of mgpu_magic; "
        "it was not touched."
    )
    assert notebook.workers() == []
    assert notebook.value("open('train.csv').read()") == "text,label"


def test_a_background_job_keeps_one_too(notebook: Notebook) -> None:
    """A job that is stopped there goes on in another cell."""
    slow = JOB.replace("answers.jsonl", "answers.jsonl --background").replace(
        'model = "m"', 'model = {"model": "m", "delay": 0.02}'
    )
    slow = slow.replace('["a b", "c", "a b"]', "[f'{i}' for i in range(200)]")
    notebook.run(slow)
    notebook.run("import time\nwhile answers.snapshot.job.done < 20: time.sleep(0.05)")
    notebook.run("%multigpu stop")
    notebook.run("while type(answers).__name__ == 'Run': time.sleep(0.05)")
    done = notebook.value("sum(text is not None for text in answers.texts)")
    assert 20 <= done < 200
    cell = notebook.run(slow.replace("--background", ""))
    assert f"{done} of 200 answers came from the journal answers.jsonl." in cell.panel
    assert notebook.value("answers.texts == [f'{i}' for i in range(200)]")
