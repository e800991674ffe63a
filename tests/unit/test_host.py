"""CPU devices: how cores are split among them, and what memory and load they show."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from mgpu_magic import host
from mgpu_magic.devices import discover, free_host_bytes, monitor_for
from mgpu_magic.errors import SpecError
from mgpu_magic.host import (
    CoreTime,
    MemoryLimit,
    mean_load,
    memory_limits,
    split_cores,
    total_host_bytes,
    usual_count,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 1024**2


@pytest.fixture
def restricted() -> Iterator[int]:
    """This process may use one core only."""
    before = os.sched_getaffinity(0)
    core = max(before)
    os.sched_setaffinity(0, {core})
    yield core
    os.sched_setaffinity(0, before)


def test_a_cpu_device_has_the_cores_that_the_kernel_may_use(restricted: int) -> None:
    """On a machine that others share, only the cores granted to the notebook are used."""
    (device,) = discover({}, "cpu").devices
    assert (device.label, device.name, device.cores) == ("cpu:0", "CPU (1 core)", (restricted,))
    assert device.total_bytes == total_host_bytes()
    assert discover({}, "cpu:1").devices == (device,)


@pytest.mark.parametrize(
    ("selection", "asked"), [("cpu:2", "2 CPU devices"), ("cpu:0", "0 CPU devices")]
)
@pytest.mark.usefixtures("restricted")
def test_more_cpu_devices_than_cores_are_refused(selection: str, asked: str) -> None:
    """Two workers never share a core: you are told how many devices the cores allow."""
    with pytest.raises(SpecError) as error:
        discover({}, selection)
    assert str(error.value) == (
        f"asked for {asked}, this process may use 1 core; pass cpu:N with N from 1 to 1"
    )


def test_cpu_devices_share_out_every_core() -> None:
    """`cpu:N` gives each device its own cores, and all of them together are yours."""
    cores = sorted(os.sched_getaffinity(0))
    found = discover({}, f"cpu:{len(cores)}")
    assert [device.cores for device in found.devices] == [(core,) for core in cores]
    assert [device.index for device in found.devices] == list(range(len(cores)))
    assert [device.cores for device in discover({}, "cpu").devices] == [tuple(cores)]


@pytest.mark.parametrize(
    ("cores", "parts", "sets"),
    [
        ((0, 1), 2, ((0,), (1,))),
        ((0, 1, 2, 3), 2, ((0, 1), (2, 3))),
        ((2, 3, 5, 7, 8, 9, 11), 3, ((2, 3, 5), (7, 8), (9, 11))),
        ((4, 5, 6), 1, ((4, 5, 6),)),
    ],
)
def test_cores_are_split_evenly(
    cores: tuple[int, ...], parts: int, sets: tuple[tuple[int, ...], ...]
) -> None:
    """Neighbouring cores stay together, and no device has over one core more than another."""
    assert split_cores(cores, parts) == sets


@pytest.mark.parametrize(
    ("cores", "count"), [(1, 1), (2, 2), (3, 2), (8, 2), (16, 2), (23, 2), (24, 3), (64, 8)]
)
def test_without_gpus_there_are_two_devices_or_more(cores: int, count: int) -> None:
    """Everything can be tried on two devices where there are two cores."""
    assert usual_count(cores) == count


HOLD = """
import subprocess, sys
held = bytearray(b"x" * (40 << 20))
program, *generations = sys.argv[1:] or [None]
if program:
    child = subprocess.Popen([sys.executable, "-c", program, *generations])
    child.wait()
else:
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_cpu_device_shows_what_its_workers_hold() -> None:
    """The memory of a CPU device is that of its workers and all that they started."""
    (device,) = discover({}, "cpu").devices
    monitor = monitor_for([device])
    parent = subprocess.Popen(
        [sys.executable, "-c", HOLD, HOLD, HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with parent:
        assert parent.stdout
        assert parent.stdout.readline() == b"ready\n"
        worker = psutil.Process(parent.pid)
        (child,) = worker.children()
        (grandchild,) = child.children()
        resident = sum(process.memory_info().rss for process in (worker, child, grandchild))
        used = monitor.read({"cpu:0": [parent.pid]})["cpu:0"].used_bytes
        parent.communicate()
    assert resident > 120 * MIB
    assert used == pytest.approx(resident, rel=0.05)
    assert monitor.read({"cpu:0": [parent.pid]})["cpu:0"].used_bytes is None
    idle = monitor.read({})["cpu:0"]
    assert idle.used_bytes == 0
    assert idle.total_bytes == total_host_bytes()
    monitor.close()


def test_a_busy_cpu_device_shows_its_load() -> None:
    """The utilisation of a CPU device is that of its own cores since the last reading."""
    (device,) = discover({}, "cpu").devices
    monitor = monitor_for([device])
    start = psutil.Process().cpu_times().user
    while psutil.Process().cpu_times().user < start + 0.1:
        pass
    load = monitor.read({})["cpu:0"].utilisation
    assert load is not None
    assert 0 < load <= 1


def test_the_load_is_that_of_the_devices_own_cores() -> None:
    """Another device's work does not show; cores that the host does not list are unknown."""
    before = [CoreTime(10, 90), CoreTime(20, 80), CoreTime(0, 100)]
    after = [CoreTime(14, 90), CoreTime(20, 84), CoreTime(1, 103)]
    assert mean_load(before, after, (0,)) == 1.0
    assert mean_load(before, after, (1,)) == 0.0
    assert mean_load(before, after, (0, 1, 2)) == 5 / 12
    assert mean_load(before, after, (2, 3)) is None


def test_a_load_needs_time_and_stays_within_its_bounds() -> None:
    """Read twice at once the load is unknown, and a counter that runs backwards does no harm."""
    times = [CoreTime(10, 90)]
    assert mean_load(times, times, (0,)) is None
    assert mean_load(times, [CoreTime(9, 94)], (0,)) == 0.0
    assert mean_load(times, [CoreTime(12, 89)], (0,)) == 1.0


def cgroup(folder: Path, files: dict[str, str]) -> None:
    """Write a cgroup as the kernel shows it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")


def test_the_limits_of_a_container_bound_its_memory(tmp_path: Path) -> None:
    """Each limit above the notebook counts, with cached files as free; `max` is no limit."""
    root, membership = tmp_path / "cgroup", tmp_path / "membership"
    membership.write_text("0::/pod/notebook\n")
    cgroup(tmp_path, {"memory.max": "1", "memory.current": "1", "memory.stat": "anon 1"})
    cgroup(
        root / "pod",
        {
            "memory.max": "4000",
            "memory.current": "1500",
            "memory.stat": "anon 7\ninactive_file 500",
        },
    )
    cgroup(
        root / "pod/notebook",
        {"memory.max": "max", "memory.current": "900", "memory.stat": "inactive_file 1"},
    )
    assert memory_limits(root, membership) == [MemoryLimit(total=4000, unused=3000)]
    (root / "pod/notebook/memory.max").write_text("2000\n")
    assert memory_limits(root, membership) == [
        MemoryLimit(total=2000, unused=1101),
        MemoryLimit(total=4000, unused=3000),
    ]


def test_the_limits_of_an_older_container_bound_its_memory(tmp_path: Path) -> None:
    """The first version of cgroups is understood, seen from the host or from inside."""
    root, membership = tmp_path / "cgroup", tmp_path / "membership"
    membership.write_text("5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n")
    cgroup(
        root / "memory",
        {
            "memory.limit_in_bytes": "3000",
            "memory.usage_in_bytes": "2500",
            "memory.stat": "inactive_file 1\ntotal_inactive_file 2000",
        },
    )
    assert memory_limits(root, membership) == [MemoryLimit(total=3000, unused=2500)]


def test_a_machine_without_cgroups_has_no_limit(tmp_path: Path) -> None:
    """Where nothing is limited, the host's own figures hold."""
    assert memory_limits(tmp_path, tmp_path / "none") == []
    membership = tmp_path / "membership"
    membership.write_text("0::/\n")
    assert memory_limits(tmp_path, membership) == []


def test_memory_is_what_the_host_and_its_limits_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads are planned with memory that is there and that this process may use."""
    total = total_host_bytes()
    assert 0 < free_host_bytes() < total <= psutil.virtual_memory().total
    limits = [MemoryLimit(total=3 * MIB, unused=2 * MIB), MemoryLimit(total=9 * MIB, unused=MIB)]
    monkeypatch.setattr(host, "memory_limits", lambda: limits)
    assert (free_host_bytes(), total_host_bytes()) == (MIB, 3 * MIB)
    limits.append(MemoryLimit(total=9 * MIB, unused=-1))
    assert free_host_bytes() == 0
