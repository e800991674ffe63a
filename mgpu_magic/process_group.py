"""Ends a process group so that nothing of it stays: no process, no shared memory.

Python's resource tracker, a process of the group too, unlinks the shared memory and semaphores of
processes that were killed, once the last of them is gone. So it is spared until it has done that.
Reads `/proc`; used on both sides of the line. Imports nothing of the package.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

GONE_SECONDS = 5.0
_POLL_SECONDS = 0.02
_TRACKER = b"multiprocessing.resource_tracker"


def members(group: int) -> list[int]:
    """Living processes of a group (one that only waits to be reaped holds nothing)."""
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # gone meanwhile
            # The name, in brackets, may hold anything; state, parent and group come after it.
            state, _, of = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[:3]
            if int(of) == group and state not in ("Z", "X"):
                found.append(int(pid))
    return found


def kill(group: int, *, spare: Collection[int] = ()) -> bool:
    """Kill the members of a group, trackers aside; returns whether there were any."""
    victims = [pid for pid in members(group) if pid not in spare and not _is_tracker(pid)]
    for pid in victims:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return bool(victims)


def end(group: int) -> None:
    """Kill what is left of a group and wait, within a limit, until it is gone."""
    deadline = time.monotonic() + GONE_SECONDS
    while (kill(group) or members(group)) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)  # a tracker that hangs


def started_with(argument: str) -> list[int]:
    """Processes whose last argument that is; as leaders of their groups they are named by them."""
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # gone meanwhile
            arguments = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
            if argument.encode() in arguments[-2:] and os.getpgid(int(pid)) == int(pid):
                found.append(int(pid))
    return found


def _is_tracker(pid: int) -> bool:
    try:
        return _TRACKER in Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return False
