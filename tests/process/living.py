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
        env={**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}", **environ},
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


def listening(pid: int) -> list[str]:
    """Where a process waits for connections: `"tcp 0100007F:1F90"`, `"unix /tmp/x"`."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            inodes.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
    found = []
    for kind in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:  # TCP_LISTEN
                found.append(f"{kind} {fields[1]}")
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if int(fields[3], 16) & 0x10000 and fields[6] in inodes:  # __SO_ACCEPTCON
            found.append(f"unix {fields[7] if len(fields) > 7 else ''}")
    return found
