"""Plain scripts, and where their workers run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mgpu_magic import EngineError
from process.jobs import echo, warm_up
from process.living import run_script, workers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mgpu_magic import Session


def test_a_script_needs_no_main_guard(tmp_path: Path) -> None:
    """`generate` and `Session` work at the top level of a script, which runs once."""
    script = """
import json, mgpu_magic
open("runs", "a").write("once")
one = mgpu_magic.generate("m", ["a", "b"], engine="echo", devices="cpu:2")
with mgpu_magic.Session("cpu") as session:
    two = session.generate({"model": "m", "delay": 0.01}, "hello", engine="echo")
    three = session.generate(models={"x": "m1", "y": "m2"}, prompts=["c"], engine="echo")
print(json.dumps([one.texts, two.texts, {name: of.texts for name, of in three.items()}]))
"""
    answers = run_script(tmp_path, script)
    assert answers == [["a", "b"], ["hello"], {"x": ["c"], "y": ["c"]}]
    assert (tmp_path / "runs").read_text() == "once"


def test_a_script_that_forgets_to_close(tmp_path: Path) -> None:
    """The workers of an open session end with the script, without a message."""
    script = """
import json, mgpu_magic
session = mgpu_magic.Session("cpu:2")
print(json.dumps(session.generate("m", ["a"], engine="echo").texts))
"""
    assert run_script(tmp_path, script) == ["a"]


def test_a_script_that_fails(tmp_path: Path) -> None:
    """An error in the middle of a `with` block ends the job that still runs."""
    script = """
import json, mgpu_magic
from mgpu_magic.options import Options
job = Options(model="m", prompts=["a"], engine="echo", engine_args={"delay": 60}).job()
try:
    with mgpu_magic.Session("cpu:2") as session:
        run = session.submit(job)
        1 / 0
except ZeroDivisionError:
    print(json.dumps(run.done))
"""
    assert run_script(tmp_path, script) is True


def test_workers_import_what_the_script_would(tmp_path: Path) -> None:
    """A module beside the script is found by the worker; one beside the shell is not."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "pickle.py").write_text("raise RuntimeError('not the one of the library')")
    (tmp_path / "mine.py").write_text("class Picture: pass")
    script = """
import json, os, mgpu_magic, mine
os.chdir("elsewhere")
prompt = {"prompt": "x", "multi_modal_data": mine.Picture()}
print(json.dumps(mgpu_magic.generate("m", [prompt], engine="echo", devices="cpu").texts))
"""
    assert run_script(tmp_path, script) == ["x"]


def affinities(pid: int) -> Iterator[tuple[str, str]]:
    """Name and allowed cores of each thread of a process."""
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        yield lines["Name"].strip(), lines["Cpus_allowed_list"].strip()


def test_each_worker_keeps_to_its_cores(session: Session) -> None:
    """On CPU devices every thread of a worker runs on the worker's own core."""
    warm_up(session, expand=True, delay=0.02)
    results = echo(session, ["$OMP_NUM_THREADS"] * 20, engine_args={"expand": True, "delay": 0.02})
    assert set(results.texts) == {"1"}
    assert len(workers()) == 2
    cores = []
    for pid in workers():
        threads = list(affinities(pid))
        assert len(threads) >= 3  # main, lifeline, stats
        (core,) = {allowed for _, allowed in threads}
        cores.append(int(core))
    assert sorted(cores) == sorted(os.sched_getaffinity(0))[:2]


def test_a_worker_is_the_kernels_python(session: Session) -> None:
    """Workers run the interpreter of the kernel, in a session of their own."""
    echo(session, ["a"], devices="cpu")
    (pid,) = workers()
    assert Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0] == sys.executable
    assert os.getsid(pid) == pid != os.getsid(0)


def test_a_process_that_cannot_be_started(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no process can be made the error says so, and the session can be used again."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(EngineError, match=r"the worker process cannot be started: .*nowhere"):
        echo(session, ["a", "b"])
    monkeypatch.undo()
    assert echo(session, ["a", "b"]).texts == ["a", "b"]
