"""What a journal saves when a job does not reach its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mgpu_magic import EngineError, JobInterrupted, ResultSet, Session, SpecError
from mgpu_magic.options import Options
from process.jobs import echo, ensemble, job, lines
from process.living import eventually, start_script

if TYPE_CHECKING:
    from mgpu_magic import Run


def done(run: Run) -> int:
    """How many prompts are done."""
    return run.snapshot.job.done


def test_a_job_that_was_stopped_goes_on(session: Session, tmp_path: Path) -> None:
    """What was answered is not asked again; what was not is no line of the journal."""
    journal = tmp_path / "answers.jsonl"
    prompts = [f"prompt {i}" for i in range(400)]
    args = {"delay": 0.01}
    run = session.submit(job(prompts, engine_args=args, journal=journal))
    assert eventually(lambda: done(run) >= 50, 30)
    run.stop()
    with pytest.raises(JobInterrupted) as stopped:
        run.result(10)
    answered = [text for text in stopped.value.results.texts if text is not None]
    assert sorted(line["texts"][0] for line in lines(journal)) == sorted(answered)

    again = session.submit(job(prompts, engine_args=args, journal=journal))
    assert done(again) >= len(answered)  # from the first moment
    results = again.result(30)
    assert isinstance(results, ResultSet)
    assert results.texts == prompts
    assert again.snapshot.job.notes == (
        f"{len(answered)} of 400 answers came from the journal {journal}.",
    )
    assert len(lines(journal)) == 400
    assert results.stats.recorded == len(answered)
    assert f"{len(answered)} from the journal" in results.stats.headline


def test_nothing_is_started_where_nothing_is_left(tmp_path: Path) -> None:
    """The answers of a finished job come without a worker, of an ensemble too."""
    models = {"a": "left", "b": {"model": "right", "sampling": {"max_tokens": 1}}}
    prompts, journal = ["a b", "c"], tmp_path / "answers.jsonl"
    with Session("cpu:2") as first:
        before = ensemble(first, models, prompts, journal=journal)
    with Session("cpu:2") as second:
        after = ensemble(second, models, prompts, journal=journal)
        assert second.models == []
    assert {name: after[name].texts for name in after} == {"a": ["a b", "c"], "b": ["a", "c"]}
    assert [list(after[name]) for name in after] == [list(before[name]) for name in before]


def test_failures_are_tried_again(session: Session, tmp_path: Path) -> None:
    """A journal holds the answers and the errors; only answers are taken from it."""
    journal = tmp_path / "answers.jsonl"
    first = echo(session, ["a", "bad", "b"], engine_args={"fail_on": "bad"}, journal=journal)
    assert first.texts == ["a", None, "b"]
    failed = next(line for line in lines(journal) if "error" in line)
    assert (failed["prompt"], failed["error"], failed["attempts"]) == ("bad", "ValueError", 1)
    again = echo(session, ["a", "bad", "b"], engine_args={"fail_on": "bad"}, journal=journal)
    assert again.stats.recorded == 2
    assert again.failures == first.failures


def test_a_model_that_cannot_be_loaded_any_more(session: Session, tmp_path: Path) -> None:
    """It is an error, though the journal holds answers; they are in its results."""
    journal = tmp_path / "answers.jsonl"
    echo(session, ["a"], journal=journal)
    args = {"fail_to_load": "no space"}
    with pytest.raises(EngineError, match="no space") as caught:
        echo(session, ["a", "b"], journal=journal, engine_args=args)
    assert caught.value.results.texts == ["a", None]
    assert len(lines(journal)) == 1


def test_a_refused_job_leaves_the_journal_to_others(session: Session, tmp_path: Path) -> None:
    """Whatever it is refused for: two jobs at once, or no device for its model."""
    journal = tmp_path / "answers.jsonl"
    run = session.submit(job(["a"] * 1000, engine_args={"delay": 0.01}))
    with pytest.raises(SpecError, match="a job is running in this session"):
        echo(session, ["b"], journal=journal)
    run.stop()
    with pytest.raises(ValueError, match="device"):
        echo(session, ["b"], journal=journal, devices="7")
    assert echo(session, ["b"], journal=journal).texts == ["b"]


FUNCTIONS = """
import json, mgpu_magic, numpy as np
class Point:
    def __init__(self, x): self.x = x
factor = {factor}
def twice(x):
    return factor * x
def predict(state, batch):
    arrays = [np.full(2, twice(point.x), np.float32) for point in batch]
    return [dict(array=array, pair=(p.x, "ä")) for p, array in zip(batch, arrays)]
prompts = [Point(x) for x in range(6)]
with mgpu_magic.Session("cpu:2") as session:
    results = session.generate(
        prompts=prompts, predict=predict, launcher="{launcher}", journal="values.jsonl"
    )
    array = np.array([value["array"] for value in results.values])
    print(json.dumps([
        results.stats.recorded, array.tolist(), str(array.dtype),
        [repr(value["pair"]) for value in results.values],
    ]))
"""


def test_functions_are_known_by_their_code(tmp_path: Path) -> None:
    """In another kernel, in threads or processes; with another value in them they are others."""

    def ran(factor: int, launcher: str) -> Any:
        body = FUNCTIONS.replace("{factor}", str(factor)).replace("{launcher}", launcher)
        script = start_script(tmp_path, body)
        output, _ = script.communicate(timeout=30)
        assert script.returncode == 0
        return json.loads(output)

    def expected(recorded: int, factor: int) -> list[Any]:
        arrays = [[factor * x] * 2 for x in range(6)]
        return [recorded, arrays, "float32", [f"({x}, 'ä')" for x in range(6)]]

    assert ran(2, "process") == expected(0, 2)
    assert ran(2, "process") == expected(6, 2)
    assert ran(2, "thread") == expected(6, 2)
    assert ran(3, "process") == expected(0, 3)


EDITED = """
import importlib, json, mgpu_magic, os, pathlib, sys
sys.dont_write_bytecode = True
def write(x):
    file = pathlib.Path("helper.py")
    file.write_text(f"def times(x): return {x} * x\\n")
write(2)
sys.path.insert(0, os.getcwd())
import helper
def predict(state, batch):
    return [helper.times(x) for x in batch]
def lazy(state, batch):
    from helper import times
    return [times(x) for x in batch]
found = []
with mgpu_magic.Session("cpu:1") as session:
    def ask(function):
        answers = session.generate(
            prompts=[1, 2], predict=function, launcher=launcher, journal="values.jsonl"
        )
        found.append([answers.stats.recorded, list(map(int, answers.values))])
    for function in (predict, lazy):
        ask(function)
        write(3)
        try:
            ask(function)
        except mgpu_magic.SpecError as error:
            found.append("importlib.reload(helper)" in str(error))
        importlib.reload(helper)
        ask(function)
        write(2)
        importlib.reload(helper)
        ask(function)
print(json.dumps(found))
"""


@pytest.mark.parametrize("launcher", ["process", "thread"])
def test_a_module_beside_the_notebook_that_is_edited(tmp_path: Path, launcher: str) -> None:
    """Each answer is that of the text that it stands for, also from a worker that is warm."""
    script = start_script(tmp_path, f"launcher = {launcher!r}\n{EDITED}")
    output, errors = script.communicate(timeout=60)
    assert script.returncode == 0, errors
    one = [[0, [2, 4]], True, [0, [3, 6]], [2, [2, 4]]]
    assert json.loads(output) == one * 2


def test_results_that_are_no_data_are_said(session: Session, tmp_path: Path) -> None:
    """They are in the results as ever, and not in the journal."""

    def predict(_: object, batch: list[str]) -> list[object]:
        return [Path(text) if text == "odd" else text for text in batch]

    run = session.submit(
        Options(
            prompts=["odd", "a", "odd"], predict=predict, journal=tmp_path / "values.jsonl"
        ).job()
    )
    results = run.result(30)
    assert isinstance(results, ResultSet)
    assert results.values == [Path("odd"), "a", Path("odd")]
    _, first, second = run.snapshot.job.notes
    assert first.startswith("predict returns pathlib.PosixPath; the journal keeps JSON data")
    assert second == "2 results of this run not in the journal: pathlib.PosixPath."
    assert [line["value"] for line in lines(tmp_path / "values.jsonl")] == ["a"]
