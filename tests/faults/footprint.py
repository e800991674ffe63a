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
from typing import TYPE_CHECKING

import psutil
from process.living import MARK

if TYPE_CHECKING:
    from collections.abc import Callable

SHARED_MEMORY = Path("/dev/shm")
SECONDS = 10.0


def footprint() -> Counter[str]:
    """All that this process, and those that it started, hold now, by kind and name."""
    return Counter([*descriptors(), *threads()]) + outside()


def outside() -> Counter[str]:
    """The same without what is in this process."""
    return Counter([*processes(), *files(), *shared_memory()])


def left_since(
    before: Counter[str],
    look: Callable[[], Counter[str]] = footprint,
    seconds: float = SECONDS,
) -> list[str]:
    """What is there beyond `before`, once it had time to go, and did not just come by others."""
    deadline = time.monotonic() + seconds
    left = look() - before
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        left &= look() - before
    return sorted(left.elements())


def descriptors() -> list[str]:
    """What this process has open."""
    found = []
    for entry in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the listing itself
            target = os.readlink(f"/proc/self/fd/{entry}")
            if target != f"/proc/{os.getpid()}/fd":
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
    return [f"file {path}" for path in Path(tempfile.gettempdir()).rglob("*")]


def shared_memory() -> list[str]:
    """Blocks of shared memory that are in no use by processes besides ours."""
    used = _used_by_others()
    return [f"block {path}" for path in SHARED_MEMORY.iterdir() if str(path) not in used]


def _used_by_others() -> set[str]:
    mark = os.environ[MARK]
    used = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(MARK) != mark:
                maps = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")
                used |= set(re.findall(r"/dev/shm/\S+", maps))
    return used


def _described(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        what = " ".join(process.cmdline()) or process.name()
        return f"process ({process.status()}) {what}"
    return "process that just ended"
