"""The end of a kernel, by whatever: nothing that it started remains, and the next one works."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from notebook.live import Notebook
from process.jobs import echo

from faults.footprint import Footprint
from faults.strikes import ORDERS
from faults.struck import NEXT, Missed
from mgpu_magic import Session

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable

    from faults.struck import Phase

GONE_SECONDS = 10.0


def signalled(number: signal.Signals, phase: Phase) -> str:
    """The kernel gets a signal."""
    return _ended(phase, lambda kernel: kernel.send_signal(number))


def exits(phase: Phase) -> str:
    """The kernel ends itself without a word to anyone."""
    return _ended(phase, lambda _: None, "os._exit(0)")


def killed_with_deaf_workers(strike: Callable[[int], None], phase: Phase) -> str:
    """The kernel is killed when its workers can run no code any more: the next session ends them.

    They themselves see to it otherwise, and there is nobody else.
    """

    def act(kernel: subprocess.Popen[str]) -> None:
        for child in psutil.Process(kernel.pid).children():
            strike(child.pid)
        time.sleep(0.3)  # until the order is carried out
        kernel.kill()

    return _ended(phase, act, deaf=True)


def _ended(
    phase: Phase,
    act: Callable[[subprocess.Popen[str]], None],
    end: str = "",
    *,
    deaf: bool = False,
) -> str:
    footprint = Footprint()
    with subprocess.Popen(
        [sys.executable, "-m", "faults.kernel", phase, end],
        stdout=subprocess.PIPE,
        text=True,
    ) as kernel:
        assert kernel.stdout is not None
        if kernel.stdout.readline() != "now\n":
            raise Missed(phase)
        began = time.monotonic()
        act(kernel)
        kernel.wait()
    if deaf:
        _next()
    left = footprint.left(GONE_SECONDS)
    seconds = time.monotonic() - began
    assert not left, f"after {seconds:.1f} s there are {left}"
    _next()
    return f"gone in {seconds:.1f} s"


def _next() -> None:
    with Session("cpu:2") as session:
        assert echo(session, NEXT).texts == NEXT


def restarted(phase: Phase) -> str:
    """The restart button in the middle of a run."""

    def act(notebook: Notebook) -> None:
        notebook.manager.restart_kernel(now=False)
        notebook.client.wait_for_ready(timeout=30)
        notebook.load()
        cell = notebook.run(f"%%multigpu m -o answers\nprompts = {NEXT!r}")
        assert not cell.errors
        assert notebook.value("answers.texts") == NEXT

    return _in_jupyter(act)


def shut_down(phase: Phase) -> str:
    """The notebook is closed in the middle of a run."""
    return _in_jupyter(lambda notebook: notebook.manager.shutdown_kernel())


def _in_jupyter(act: Callable[[Notebook], None]) -> str:
    notebook = Notebook(Path(os.environ[ORDERS]))
    try:
        notebook.load()
        cell = notebook.begin(
            "%%multigpu m\n"
            'prompts = [f"prompt {i}" for i in range(40)]\n'
            'engine_args = {"delay": 0.2, "fork_child": True}'
        )
        cell.until(lambda cell: cell.panel.count("● running") == 2)
        old = notebook.processes()
        began = time.monotonic()
        act(notebook)
        while set(old) & set(notebook.processes()):
            assert time.monotonic() - began < GONE_SECONDS
            time.sleep(0.05)
        seconds = time.monotonic() - began
    finally:
        notebook.close()
    return f"gone in {seconds:.1f} s"
