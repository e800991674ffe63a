"""The host as a device: its cores split among CPU devices, its memory, its load.

The memory is what we may use: containers are often limited to part of the machine.
Imports `errors`, `snapshot` and `spec`; `psutil` where it is used.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mgpu_magic.errors import SpecError
from mgpu_magic.snapshot import Reading
from mgpu_magic.spec import Device

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_CORES_PER_DEVICE = 8


def cpu_devices(count: int | None = None) -> tuple[Device, ...]:
    """Split the cores that this process may use into `count` devices.

    Args:
        count: How many; None: `usual_count`.

    Raises:
        SpecError: Fewer than one device, or more devices than cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    if count is None:
        count = usual_count(len(cores))
    if not 1 <= count <= len(cores):
        raise SpecError(
            f"asked for {counted(count, 'CPU device')}, this process may use "
            f"{counted(len(cores), 'core')}; pass cpu:N with N from 1 to {len(cores)}"
        )
    total = total_host_bytes()
    return tuple(
        Device(
            kind="cpu",
            index=index,
            name=f"CPU ({counted(len(own), 'core')})",
            cores=own,
            total_bytes=total,
        )
        for index, own in enumerate(split_cores(cores, count))
    )


def usual_count(cores: int) -> int:
    """CPU devices where nobody says how many: one per 8 cores, but two from two cores on."""
    return max(cores // _CORES_PER_DEVICE, min(cores, 2))


def split_cores(cores: Sequence[int], parts: int) -> tuple[tuple[int, ...], ...]:
    """Split into contiguous sets of even size; the first ones take what is left over."""
    size, extra = divmod(len(cores), parts)
    starts = [part * size + min(part, extra) for part in range(parts + 1)]
    return tuple(tuple(cores[starts[i] : starts[i + 1]]) for i in range(parts))


def counted(count: int, noun: str) -> str:
    """`"1 core"`, `"2 cores"`."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


@dataclass(frozen=True, slots=True)
class CoreTime:
    """Seconds that a core was busy and idle since the machine started."""

    busy: float
    idle: float


class HostMonitor:
    """Reads CPU devices: the memory of our workers on each, and the load of its cores."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = tuple(devices)
        self._total = total_host_bytes()
        # Ours, because `psutil.cpu_percent` keeps its own for each thread, shared with all users.
        self._times = _core_times()

    def read(self, pids: Mapping[str, Sequence[int]]) -> dict[str, Reading]:
        """Read all devices; see `DeviceMonitor`."""
        before, self._times = self._times, _core_times()
        return {
            device.label: Reading(
                used_bytes=_resident_bytes(pids.get(device.label, ())),
                total_bytes=self._total,
                utilisation=mean_load(before, self._times, device.cores),
            )
            for device in self._devices
        }

    def close(self) -> None:
        """Nothing to release."""


def mean_load(
    before: Sequence[CoreTime], after: Sequence[CoreTime], cores: Sequence[int]
) -> float | None:
    """Part of the time between two moments that `cores` were busy, 0 to 1.

    None where no time passed, or a core is not listed: some containers number theirs anew.
    """
    if max(cores) >= min(len(before), len(after)):
        return None
    # The kernel's counters of waiting and stolen time can run backwards.
    busy = max(0.0, sum(after[core].busy - before[core].busy for core in cores))
    idle = max(0.0, sum(after[core].idle - before[core].idle for core in cores))
    return busy / (busy + idle) if busy + idle > 0 else None


def free_host_bytes() -> int:
    """Memory of the host that we may still use, in bytes, within our cgroup's limit."""
    import psutil

    available = psutil.virtual_memory().available
    return max(0, min([available, *(limit.unused for limit in memory_limits())]))


def total_host_bytes() -> int:
    """Memory of the host, in bytes, or our cgroup's limit where that is less."""
    import psutil

    return min([psutil.virtual_memory().total, *(limit.total for limit in memory_limits())])


def _core_times() -> list[CoreTime]:
    import psutil

    return [
        CoreTime(
            busy=core.user + core.nice + core.system + core.irq + core.softirq + core.steal,
            idle=core.idle + core.iowait,
        )
        for core in psutil.cpu_times(percpu=True)
    ]


def family(pids: Iterable[int]) -> set[int]:
    """The processes that live, with all their descendants.

    Of this process (a worker is a thread of it) itself alone: its other workers are among those
    below.
    """
    import psutil

    found: set[int] = set()
    for pid in pids:
        with suppress(psutil.Error):
            root = psutil.Process(pid)
            below = [] if pid == os.getpid() else root.children(recursive=True)
            found.update(process.pid for process in (root, *below))
    return found


def _resident_bytes(pids: Sequence[int]) -> int | None:
    """Resident memory of the processes and all their descendants; None: all are gone."""
    import psutil

    sizes = []
    for pid in family(pids):
        with suppress(psutil.Error):
            sizes.append(psutil.Process(pid).memory_info().rss)
    return sum(sizes) if sizes or not pids else None


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A cgroup's memory limit and what is left of it, in bytes."""

    total: int
    unused: int


def memory_limits(
    root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> list[MemoryLimit]:
    """The limits that hold for this process: of its memory cgroup and of those above it.

    Args:
        root: Where the cgroup file systems are mounted, of version 1 or 2.
        membership: Lists the cgroups of this process. In a container these can be the host's
            paths, which do not exist there; the top folder is then the container's own.
    """
    if not membership.exists():
        return []
    found = (
        _memory_limit(folder, files)
        for line in membership.read_text().splitlines()
        for folder, files in _memory_groups(root, *line.split(":", 2))
    )
    return [limit for limit in found if limit]


def _memory_groups(
    root: Path, number: str, controllers: str, path: str
) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    if number == "0":
        top, files = root, ("memory.max", "memory.current", "inactive_file")
    elif controllers == "memory":
        top = root / "memory"
        files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    else:
        return
    group = top / path.lstrip("/")
    yield from ((up, files) for up in (group, *group.parents) if up.is_relative_to(top))


def _memory_limit(folder: Path, files: tuple[str, str, str]) -> MemoryLimit | None:
    limit_file, usage_file, cached = files
    with suppress(OSError, ValueError):  # not there, or "max": no limit
        limit = int((folder / limit_file).read_text())
        usage = int((folder / usage_file).read_text())
        lines = (folder / "memory.stat").read_text().splitlines()
        stat = dict(line.split(maxsplit=1) for line in lines)
        # Cached files count as usage but give way; a model's weights were just read from some.
        return MemoryLimit(limit, limit - usage + int(stat.get(cached, 0)))
    return None
