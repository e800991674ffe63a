"""Which processes live, and scripts as processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable

TESTS = Path(__file__).parents[1]
MARK = "MGPU_MAGIC_TEST"  # in the environment of whatever a test starts


def workers() -> set[int]:
    """Process ids of the living workers of this process."""
    found = set()
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if "mgpu_magic.worker" in child.cmdline():
                found.add(child.pid)
    return found


def marked(mark: str) -> list[str]:
    """Command lines of the living processes that a test started, whoever their parent is now."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.append(" ".join(process.cmdline()))
    return found


def eventually(condition: Callable[[], object], seconds: float = 5.0) -> bool:
    """Whether it comes true in that time."""
    for _ in range(round(seconds / 0.02)):
        if condition():
            return True
        time.sleep(0.02)
    return False


def start_script(folder: Path, body: str, **environ: str) -> subprocess.Popen[str]:
    """Start a plain script, without a main guard; it may import the modules of the tests."""
    script = folder / "script.py"
    script.write_text(body, encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(TESTS), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_script(folder: Path, body: str, **environ: str) -> Any:
    """Run a script to its end; returns what it printed, which is JSON."""
    return outcome(start_script(folder, body, **environ))


def outcome(script: subprocess.Popen[str], seconds: float = 30) -> Any:
    """Wait for the end of a script; returns the last that it printed, which is JSON."""
    output, errors = script.communicate(timeout=seconds)
    assert script.returncode == 0, errors
    assert errors == ""
    return json.loads(output)


def wait_for(script: subprocess.Popen[str], line: str) -> None:
    """Wait until a script prints that line."""
    assert script.stdout is not None
    assert script.stdout.readline() == line + "\n"
