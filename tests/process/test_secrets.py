"""What the machine tells about itself and about you: no open door, no token, no readable file."""

from __future__ import annotations

import os
import socket
import stat
from typing import TYPE_CHECKING, Any

import pytest

from mgpu_magic import EngineError, Failure, ResultSet, Returned, Session
from mgpu_magic.options import Options
from process.jobs import echo, job
from process.living import eventually, listening, workers

if TYPE_CHECKING:
    from pathlib import Path

    from mgpu_magic import Run

TOKEN = "hf_" + "aB3" * 11
KEY = "a-key-of-mine"


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token and a key are set in the notebook."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("SOME_API_KEY", KEY)


def careless(state: Any, batch: list[str]) -> list[str]:
    """Prints its secrets, and fails with them for some prompts."""
    del state
    said = f"sent {os.environ['HF_TOKEN']} and {os.environ['SOME_API_KEY']}"
    print(said)  # noqa: T201  # that is the point
    if "bad" in batch[0]:
        raise RuntimeError(said)
    return batch


def careless_load(device: str) -> None:
    """Fails with its secrets."""
    careless(device, ["bad"])


def everything(session: Session, run: Run) -> str:
    """What can be seen of a job: the panel's state, the logs."""
    return f"{run.snapshot!r} {session.logs()!r} {session.status()!r}"


def hides(text: str) -> bool:
    """Whether no secret is in the text, and it was not simply left out."""
    return "aB3" not in text and KEY not in text and "sent hf_*** and ***" in text


def test_what_a_worker_tells_holds_no_secret(session: Session) -> None:
    """Not the panel, the logs, nor a failed prompt's row; prompts and answers are as they were."""
    prompts = [f"good {TOKEN}", "bad 1", f"good {KEY}", "bad 2"]
    options: dict[str, Any] = {"engine": "python", "batch_size": 1, "predict": careless}
    session.generate(prompts=prompts, **options)  # so that it is warm, and its log is there
    run = session.submit(Options(prompts=prompts, **options).job())
    results = run.result(30)
    assert isinstance(results, ResultSet)
    assert [row.value for row in results if isinstance(row, Returned)] == [prompts[0], prompts[2]]
    failures = [row for row in results if isinstance(row, Failure)]
    assert [row.index for row in failures] == [1, 3]
    assert all(hides(repr(row)) for row in failures)
    assert hides(everything(session, run).replace(prompts[0], "").replace(prompts[2], ""))


def test_an_error_holds_no_secret(session: Session) -> None:
    """Neither its message, nor the worker's traceback, nor the end of its log."""
    with pytest.raises(EngineError) as failed:
        session.generate(
            prompts=["a"], engine="python", predict=careless, load=careless_load, devices="cpu"
        )
    error = failed.value
    assert all(map(hides, (str(error), error.traceback, error.log_tail)))
    assert hides(repr(session.logs()))
    assert hides(repr(session.status()))


def repeats(state: Any, batch: list[str]) -> list[str]:
    """Fails with what it is given."""
    del state
    raise RuntimeError(batch[0])


def test_a_secret_that_the_worker_does_not_know(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that the notebook sets while the worker is warm: not in a row, nor in the journal."""
    options: dict[str, Any] = {"engine": "python", "predict": repeats}
    journal = tmp_path / "values.jsonl"
    session.generate(prompts=["a"], **options, journal=journal)
    monkeypatch.setenv("LATE_KEY", "set-later-on")
    results: Any = session.generate(prompts=["b set-later-on"], **options, journal=journal)
    (failure,) = results
    assert (failure.error.message, "set-later-on" in repr(failure)) == ("b ***", False)
    line = journal.read_text(encoding="utf-8").splitlines()[-1]
    assert '"message":"b ***"' in line
    assert '"prompt":"b set-later-on"' in line  # prompts are as they are


def test_nothing_listens(session: Session) -> None:
    """Workers and kernel talk through inherited pipes: there is no door for others."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listening(os.getpid()) == [f"tcp 0100007F:{port:04X}"]  # it would be seen
    echo(session, ["a", "b"])
    run = session.submit(job(["a"] * 1000, engine_args={"delay": 0.05}))
    assert eventually(lambda: run.snapshot.job.done > 2, 30)
    assert [listening(pid) for pid in (os.getpid(), *workers())] == [[]] * (1 + len(workers()))
    run.stop()


@pytest.mark.parametrize("launcher", ["process", "thread"])
def test_files_are_private(tmp_path: Path, launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs may hold prompts: only you can read them, and the folder that they are in."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = os.umask(0)
    try:
        with Session("cpu:2") as session:
            results = session.generate("m", ["a"], engine="echo", launcher=launcher)
            assert len(results) == 1
            folders = list(tmp_path.iterdir())
            files = [path for folder in folders for path in folder.rglob("*")]
            modes = {stat.S_IMODE(path.stat().st_mode) for path in files if path.is_file()}
            assert modes == {0o600}
            assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}
    finally:
        os.umask(before)
    assert list(tmp_path.iterdir()) == []
