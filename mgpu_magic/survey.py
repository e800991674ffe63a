"""Looks around before a model is loaded: the GPUs and who uses them, the host, what is installed.

```
NVML (in a thread, for a moment) ──┐
host, variables, metadata ─────────┴──> World
```

Imports `budgets`, `findings`, `host`, `nvml`, `spec` and `weights`; `psutil` where it is used.
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import threading
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from mgpu_magic.budgets import GIB
from mgpu_magic.findings import Build, Occupant, Seen, World
from mgpu_magic.host import family, free_host_bytes, total_host_bytes
from mgpu_magic.nvml import Nvml, handles_of
from mgpu_magic.weights import hub_cache

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from mgpu_magic.spec import Device, WorkerSpec

READ_SECONDS = 2.0  # for a driver that hangs; an answer takes milliseconds

_PROC = Path("/proc")
_TRUE = ("1", "ON", "YES", "TRUE")


@dataclass(frozen=True, slots=True)
class Living:
    """A worker that lives: what it holds, its process, and whether it was told to go."""

    spec: WorkerSpec
    pid: int
    leaving: bool = False


def look_around(
    devices: Sequence[Device],
    living: Sequence[Living],
    environ: Mapping[str, str],
    seconds: float = READ_SECONDS,
) -> World:
    """What is known of the machine now.

    Args:
        devices: The devices of the job.
        living: Our workers; those on these devices will be gone before something is loaded.
        environ: The kernel's environment.
        seconds: How long the driver may take.
    """
    gpus = [device for device in devices if device.kind == "cuda"]
    seen, cuda = _gpus(gpus, living, seconds) if gpus else ({}, None)
    disk = None
    with suppress(OSError):
        disk = shutil.disk_usage(_existing(hub_cache(environ))).free
    return World(
        devices=devices,
        seen=seen,
        free_bytes=free_host_bytes() + _resident_bytes(devices, living),
        total_bytes=total_host_bytes(),
        driver_cuda=cuda,
        build=torch_build() if gpus else None,
        offline=offline(environ),
        disk_bytes=disk,
        cpu_cache_bytes=_cpu_cache_bytes(environ),
    )


def offline(environ: Mapping[str, str]) -> str:
    """The variable that forbids the hub, as one would set it; empty where none does."""
    if environ.get("VLLM_USE_MODELSCOPE", "").upper() in _TRUE:  # another hub
        return ""
    # The first that says anything counts, as the hub's own library reads them.
    names = [name for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if environ.get(name)]
    said = environ[names[0]] if names else ""
    return f"{names[0]}={said}" if said.upper() in _TRUE else ""


def torch_build() -> Build | None:
    """The installed torch and its CUDA, from its metadata: it is not imported."""
    try:
        torch = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        return None
    return Build(name=f"torch {torch.version}", cuda=built_for(torch.version, torch.requires or ()))


def built_for(version: str, requires: Collection[str]) -> tuple[int, int] | None:
    """The CUDA of a build: its version says so (`2.11.0+cu128`), or what it requires does."""
    if local := re.search(r"\+cu(\d+)(\d)$", version):
        return int(local[1]), int(local[2])
    if "+" in version:
        return None
    pattern = re.compile(r"nvidia-cuda-runtime(?:-cu\d+)?\s*\(?==\s*(\d+)\.(\d+)")
    for requirement in requires:
        if named := pattern.match(requirement):
            return int(named[1]), int(named[2])
    return None


# --- GPUs ------------------------------------------------------------------------------------


def _gpus(
    devices: Sequence[Device], living: Sequence[Living], seconds: float
) -> tuple[dict[str, Seen], tuple[int, int] | None]:
    """In a thread of its own: a driver that hangs stalls that, and no job."""
    answers: queue.SimpleQueue[tuple[dict[str, Seen], tuple[int, int] | None]] = queue.SimpleQueue()
    threading.Thread(
        target=lambda: answers.put(_read(devices, living)), name="mgpu-survey", daemon=True
    ).start()
    try:
        return answers.get(timeout=seconds)
    except queue.Empty:
        return {}, None


def _read(
    devices: Sequence[Device], living: Sequence[Living]
) -> tuple[dict[str, Seen], tuple[int, int] | None]:
    nvml = Nvml()
    seen = {}
    for label, handle in handles_of(nvml, devices).items():
        ours = [one for one in living if label in {device.label for device in one.spec.devices}]
        threads = any(one.spec.launcher == "thread" for one in ours)
        pids = family(one.pid for one in ours)
        if handle is not None:
            seen[label] = Seen(
                # The kernel's own memory is not all the thread's, and not all given back.
                reading=nvml.reading(handle, () if threads else pids),
                busy=bool(ours),
                others=tuple(
                    Occupant(pid=pid, name=process_name(pid), used_bytes=used)
                    for pid, used in nvml.users(handle)
                    if pid not in pids
                ),
            )
    cuda = nvml.cuda_version()
    nvml.close()
    return seen, cuda


def process_name(pid: int, proc: Path = _PROC) -> str:
    """What a process is called that the driver names; empty where it may be another's number.

    The driver counts as the machine does; a container counts its processes anew, and does not
    see the machine's own first thread.
    """
    if pid == os.getpid():
        return "this kernel"
    try:
        if (proc / "2/comm").read_text().strip() != "kthreadd":
            return ""
        command = (proc / str(pid) / "cmdline").read_bytes().split(b"\0")
        if b"mgpu_magic.worker" in command:
            return "a worker of another session"
        return (proc / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


# --- the host --------------------------------------------------------------------------------


def _resident_bytes(devices: Sequence[Device], living: Sequence[Living]) -> int:
    """Host memory of the workers that will be gone: those on CPU devices of the job."""
    import psutil

    cores = {core for device in devices for core in device.cores}
    leaving = [
        one.pid
        for one in living
        if one.spec.launcher == "process"
        and cores & {core for device in one.spec.devices for core in device.cores}
    ]
    total = 0
    for pid in family(leaving) if leaving else ():
        with suppress(psutil.Error):
            total += psutil.Process(pid).memory_info().rss
    return total


def _existing(folder: Path) -> Path:
    return next(one for one in (folder, *folder.absolute().parents) if one.exists())


def _cpu_cache_bytes(environ: Mapping[str, str]) -> int | None:
    asked = environ.get("VLLM_CPU_KVCACHE_SPACE", "")
    return int(asked) * GIB if asked.isdecimal() and int(asked) else None
