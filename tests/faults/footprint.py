"""What a session holds in the world, so that what it leaves there is seen."""

from __future__ import annotations

import os
import re
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
from process.living import MARK

SECONDS = 10.0
SAMPLE_SECONDS = 0.5


class Footprint:
    """All that this process, and those that it starts from now on, leave.

    Args:
        inside: Whether what is in this process counts too: descriptors and threads.
    """

    def __init__(self, *, inside: bool = True) -> None:
        self._inside = inside
        self._blocks: set[str] = set()  # of shared memory that ours used; others have theirs
        self._over = threading.Event()
        threading.Thread(target=self._sample, name="blocks", daemon=True).start()
        self._before = self._now()

    def left(self, seconds: float = SECONDS) -> list[str]:
        """What is there that was not before, once it had time to go."""
        deadline = time.monotonic() + seconds
        while (left := self._now() - self._before) and time.monotonic() < deadline:
            time.sleep(0.1)
        return sorted(left.elements())

    def close(self) -> None:
        """Look no more."""
        self._over.set()

    def _now(self) -> Counter[str]:
        inside = [*descriptors(), *threads()] if self._inside else []
        blocks = [f"block {path}" for path in self._blocks.copy() if os.path.exists(path)]
        return Counter([*inside, *processes(), *files(), *blocks])

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            for process in psutil.Process().children(recursive=True):
                with suppress(OSError):
                    maps = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")
                    self._blocks |= set(re.findall(r"/dev/shm/\S+", maps))


def descriptors() -> list[str]:
    """What this process has open, without numbers."""
    found = []
    for entry in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the listing itself, or of a look into /proc
            target = os.readlink(f"/proc/self/fd/{entry}")
            if not target.startswith("/proc/"):
                found.append("descriptor " + re.sub(r":\[\d+\]", "", target))
    return found


def threads() -> list[str]:
    """The threads of the package in this process."""
    names = (thread.name for thread in threading.enumerate())
    return [f"thread {name}" for name in names if name.startswith("mgpu-")]


def processes() -> list[str]:
    """All that this process started, those that wait to be reaped and orphans among them."""
    found = {child.pid: _described(child) for child in psutil.Process().children(recursive=True)}
    mark = os.environ[MARK]
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found[process.pid] = _described(process)
    return list(found.values())


def files() -> list[str]:
    """What is in the folder for temporary files, which is this process's own."""
    return [f"file {path}" for path in paths(tempfile.gettempdir())]


def paths(folder: str | Path) -> list[str]:
    """All files and folders in a folder that may change meanwhile."""
    return [
        os.path.join(where, name)
        for where, folders, names in os.walk(folder)
        for name in (*folders, *names)
    ]


def _described(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        what = " ".join(process.cmdline()) or process.name()
        return f"process ({process.status()}) " + re.sub(r"\d+", "N", what)
    return "process that just ended"
