"""How a script ends that is interrupted or terminated: soon, in order, and nothing stays."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from process.living import eventually, marked, start_script, wait_for

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

BUSY = """
import signal, sys, threading, time
from mgpu_magic import Session
from process.jobs import job

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run with a `&`
session = Session("cpu:2")
slow = job(["a"] * 9, engine_args={"delay": 30})  # longer than a worker may take to leave

def running(run):  # by the word of a worker, which can't leave before its answer is ready
    return any(card.worker and card.worker.running for card in run.snapshot.devices)

def begin():
    run = session.submit(slow)
    while not running(run):
        time.sleep(0.01)
    return run
"""

WAIT = """
begin().stop()
threading.Timer(1, print, ["now"], {"flush": True}).start()
session.run(slow)
"""
HANDLER = """
slow = job(["a"] * 9, engine_args={"delay": 2})
def leave(number, frame):
    sys.exit(7)
signal.signal(signal.SIGTERM, leave)
"""
AT_EXIT = """
begin()
print("now", flush=True)
"""
CLOSE = """
begin()
print("now", flush=True)
try:
    session.close()
except KeyboardInterrupt:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a press that comes after the end
    session.close()
    print("once", flush=True)
"""
HANGING_VIEW = """
class View:
    def update(self, snapshot):
        print("now", flush=True)
        time.sleep(60)
    def finish(self, snapshot):
        print("not called", flush=True)
try:
    session.run(slow, View())
except KeyboardInterrupt as error:
    print(error.results.texts, flush=True)
session.restart()
"""


def start(folder: Path, body: str) -> subprocess.Popen[str]:
    """A script that has come so far that it can be signalled."""
    (folder / "tmp").mkdir()
    script = start_script(folder, BUSY + body, TMPDIR=str(folder / "tmp"))
    wait_for(script, "now")
    return script


def assert_nothing_stays(folder: Path, mark: str) -> None:
    """No process, no file."""
    assert eventually(lambda: not marked(mark), 10)
    assert list((folder / "tmp").iterdir()) == []


def test_a_script_that_is_terminated(tmp_path: Path, mark: str) -> None:
    """Its workers end, and its temporary files go, though nothing of it runs any more."""
    script = start(tmp_path, WAIT)
    script.terminate()
    assert script.wait(5) == -signal.SIGTERM
    script.communicate()
    assert_nothing_stays(tmp_path, mark)


def test_a_script_that_exits_when_it_is_terminated(tmp_path: Path, mark: str) -> None:
    """`sys.exit` in a signal handler closes the session in order, wherever the script is."""
    script = start(tmp_path, HANDLER + WAIT)
    script.terminate()
    assert script.communicate(timeout=20) == ("", "")
    assert script.returncode == 7
    assert_nothing_stays(tmp_path, mark)


@pytest.mark.parametrize("presses", [1, 3])
@pytest.mark.parametrize(("body", "output"), [(AT_EXIT, ""), (CLOSE, "once\n")])
def test_an_interrupt_of_the_end(
    tmp_path: Path, mark: str, body: str, output: str, presses: int
) -> None:
    """Workers that take long to leave are killed then; closing goes on to its end, silently."""
    script = start(tmp_path, body)
    time.sleep(0.3)
    began = time.monotonic()
    for _ in range(presses):
        script.send_signal(signal.SIGINT)
        time.sleep(0.002)  # before its end, which is quick
    assert script.communicate(timeout=20) == (output, "")
    assert time.monotonic() - began < 5
    assert script.returncode == 0
    assert_nothing_stays(tmp_path, mark)


def test_a_view_that_hangs(tmp_path: Path, mark: str) -> None:
    """One press ends the job and what draws it; that is not asked again."""
    script = start(tmp_path, HANGING_VIEW)
    time.sleep(1.2)
    began = time.monotonic()
    script.send_signal(signal.SIGINT)
    assert script.communicate(timeout=20) == (f"{[None] * 9}\n", "")
    assert time.monotonic() - began < 5
    assert_nothing_stays(tmp_path, mark)
