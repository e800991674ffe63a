"""Nothing outlives the kernel, and nothing that a worker started outlives the worker."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from process.living import eventually, marked, start_script, wait_for

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import time, mgpu_magic

class Tell:
    def update(self, snapshot):
        phases = {card.worker.phase for card in snapshot.devices if card.worker}
        if when in phases:
            print("now", flush=True)
            time.sleep(60)
    def finish(self, snapshot): ...

with mgpu_magic.Session("cpu:2") as session:
    session.generate("m", ["a"] * 100, engine="echo", engine_args=args, observer=Tell())
"""


@pytest.mark.parametrize(
    ("when", "args"),
    [
        ("importing", {"import_delay": 60}),
        ("loading", {"load_delay": 60, "fork_child": True}),
        ("running", {"delay": 60, "fork_child": True}),
    ],
)
def test_a_killed_kernel_leaves_no_process(
    tmp_path: Path, mark: str, when: str, args: dict[str, float]
) -> None:
    """After `kill -9` on the kernel everything is gone within 5 s: all processes, its folder."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    body = f"when, args = {when!r}, {args!r}\n" + SCRIPT
    script = start_script(tmp_path, body, TMPDIR=str(temporary))
    wait_for(script, "now")
    children = sum("mgpu_magic.worker" in command for command in marked(mark))
    assert children == 2
    assert any("sleep 600" in command for command in marked(mark)) == ("fork_child" in args)
    assert len(list(temporary.iterdir())) == 1
    script.kill()
    script.communicate()
    assert eventually(lambda: not marked(mark), seconds=5)
    assert list(temporary.iterdir()) == []


def test_a_fork_of_the_kernel_keeps_no_worker(tmp_path: Path, mark: str) -> None:
    """A process that the kernel forked, which holds all that it had open, does not count."""
    fork = "import os, time\nfork = lambda: os.fork() or (time.sleep(60), os._exit(0))\n"
    settings = "when, args = 'loading', {'load_delay': 60}\n"
    body = SCRIPT.replace('print("now"', 'print(fork(), flush=True); print("now"')
    script = start_script(tmp_path, fork + settings + body)
    assert script.stdout is not None
    forked = int(script.stdout.readline())
    try:
        wait_for(script, "now")
        script.kill()
        script.wait()
        assert eventually(lambda: not any("mgpu_magic.worker" in c for c in marked(mark)), 5)
        assert marked(mark)
    finally:
        os.kill(forked, signal.SIGKILL)
        script.communicate()


def test_a_worker_that_is_born_when_the_kernel_is_dead(tmp_path: Path) -> None:
    """It goes at once, even where a fork of the kernel holds the lines to it open.

    With it goes the folder of the session.
    """
    folder = tmp_path / "session"
    folder.mkdir()
    ours, theirs = socket.socketpair()
    lifeline, held_open = os.pipe()
    with ours, theirs:
        worker = subprocess.Popen(
            [
                *(sys.executable, "-m", "mgpu_magic.worker"),
                *(f"{theirs.fileno()}", f"{lifeline}", "1", str(folder)),
            ],
            pass_fds=(theirs.fileno(), lifeline),
            start_new_session=True,
        )
        assert worker.wait(10) == -signal.SIGKILL
    assert not folder.exists()
    os.close(lifeline)
    os.close(held_open)
