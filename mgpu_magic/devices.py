"""Which devices exist and how full they are: NVML for GPUs, the host for CPU devices.

```
NVML ──────────────────┐
CUDA_VISIBLE_DEVICES ──┼─ visible_gpus ─┐
selection "0,1" ───────┘                ├─> Discovery ──> Device ...
selection "cpu:2" ───── split_cores ────┘                   │
                                              monitor_for ──┴──> DeviceMonitor ──> Reading
```

The only module that knows NVML. It never touches CUDA: the kernel stays without a context.
Imports `errors`, `spec` and `progress`; `pynvml` and `psutil` where they are used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mgpu_magic.errors import SpecError
from mgpu_magic.progress import Reading
from mgpu_magic.spec import Device

_CORES_PER_DEVICE = 8
_PROC_GPUS = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True, slots=True)
class Discovery:
    """The devices of a selection.

    Attributes:
        devices: At least one; in the order asked for.
        notes: What the user should know, a line each: running on the CPU instead, a lost GPU.
    """

    devices: tuple[Device, ...]
    notes: tuple[str, ...] = ()


class DeviceMonitor(Protocol):
    """Reads the sensors of a set of devices."""

    def read(self, pids: Mapping[str, Sequence[int]]) -> dict[str, Reading]:
        """Read all devices. What cannot be read is None; it never raises.

        Args:
            pids: Our workers' process ids on each device, by `Device.label`.

        Returns:
            A reading for every device, by `Device.label`.
        """

    def close(self) -> None:
        """Let go of the driver; the monitor is not used after that."""


def discover(environ: Mapping[str, str], selection: str) -> Discovery:
    """Find the devices that `selection` names.

    Args:
        environ: The kernel's environment. Its `CUDA_VISIBLE_DEVICES` is never widened.
        selection: `"all"` (every visible GPU, or else CPU devices), `"cpu"` (one device with
            every core that this process may use), `"cpu:N"` (those cores split into N devices),
            or positions among the visible GPUs: `"0,1"`, `"cuda:0,cuda:1"`.

    Raises:
        SpecError: The selection is malformed, or this machine cannot serve it.
    """
    cores = sorted(os.sched_getaffinity(0))
    match selection.strip().split(":"):
        case ["cpu"]:
            return Discovery(_cpu_devices(cores, 1))
        case ["cpu", count] if count.isdecimal():
            return Discovery(_cpu_devices(cores, int(count)))
        case ["all"]:
            positions = None
        case _:
            positions = _positions(selection)

    gpus, trouble = _survey()
    devices, remarks = visible_gpus(gpus, environ)
    if trouble:
        remarks += (f"GPU readings unavailable: {trouble}" if devices else trouble,)
    if positions is not None:
        devices = _pick(devices, positions, "; ".join(remarks))
    if devices:
        return Discovery(devices, tuple(f"{remark}." for remark in remarks))
    cpus = _cpu_devices(cores, max(len(cores) // _CORES_PER_DEVICE, min(len(cores), 2)))
    reason, count = "; ".join(remarks), _counted(len(cpus), "CPU device")
    return Discovery(cpus, (f"No NVIDIA GPU found ({reason}): running on {count}.",))


def monitor_for(devices: Sequence[Device]) -> DeviceMonitor:
    """The monitor for the devices of one `Discovery`: they are of one kind."""
    if any(device.kind == "cuda" for device in devices):
        return NvmlMonitor(devices)
    return HostMonitor(devices)


# --- selection -------------------------------------------------------------------------------


def split_cores(cores: Sequence[int], parts: int) -> tuple[tuple[int, ...], ...]:
    """Split into contiguous sets of even size; the first ones take what is left over."""
    size, extra = divmod(len(cores), parts)
    starts = [part * size + min(part, extra) for part in range(parts + 1)]
    return tuple(tuple(cores[starts[i] : starts[i + 1]]) for i in range(parts))


def _cpu_devices(cores: Sequence[int], count: int) -> tuple[Device, ...]:
    if not 1 <= count <= len(cores):
        raise SpecError(
            f"asked for {_counted(count, 'CPU device')}, this process may use "
            f"{_counted(len(cores), 'core')}; pass cpu:N with N from 1 to {len(cores)}"
        )
    total = _host_total()
    return tuple(
        Device(
            kind="cpu",
            index=index,
            name=f"CPU ({_counted(len(own), 'core')})",
            cores=own,
            total_bytes=total,
        )
        for index, own in enumerate(split_cores(cores, count))
    )


def _positions(selection: str) -> tuple[int, ...]:
    try:
        positions = [int(part.strip().removeprefix("cuda:")) for part in selection.split(",")]
    except ValueError:
        raise SpecError(
            f"devices {selection!r} is not understood; pass all, cpu, cpu:N, or positions of GPUs "
            "such as 0,1"
        ) from None
    for position in positions:
        if positions.count(position) > 1:
            raise SpecError(
                f"devices {selection!r} names device {position} twice; a device runs one worker"
            )
    return tuple(positions)


def _pick(
    devices: tuple[Device, ...], positions: tuple[int, ...], remarks: str
) -> tuple[Device, ...]:
    by_position = {device.index: device for device in devices}
    for position in positions:
        if not devices:
            raise SpecError(
                f"asked for device {position}, but no NVIDIA GPU was found ({remarks}); "
                "pass cpu:2 to run on CPU devices"
            )
        if position not in by_position:
            verb = "is" if len(devices) == 1 else "are"
            raise SpecError(
                f"asked for device {position}, {_counted(len(devices), 'device')} {verb} visible "
                f"({', '.join(map(str, by_position))})" + (remarks and f"; {remarks}")
            )
    return tuple(by_position[position] for position in positions)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


# --- which GPUs the mask leaves --------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """What the driver says about a GPU, or about a MIG slice of one.

    Attributes:
        entry: What names it in a mask: NVML's index, or the UUID of a slice.
        name: Product name.
        uuid: NVML's UUID, where known.
        total_bytes: Its memory, where known.
        capability: CUDA compute capability, where known.
        slices: Its MIG slices.
        trouble: Why it cannot be used; empty where it can.
        handle: NVML's handle.
    """

    entry: str
    name: str
    uuid: str | None = None
    total_bytes: int | None = None
    capability: tuple[int, int] | None = None
    slices: tuple[Gpu, ...] = ()
    trouble: str = ""
    handle: Any = field(default=None, compare=False, repr=False)


def visible_gpus(
    gpus: Sequence[Gpu], environ: Mapping[str, str]
) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Apply the kernel's mask to the GPUs of the machine.

    A lost GPU keeps its position, so that the other devices keep their names.

    Returns:
        The devices that can be used, and remarks for the user.
    """
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    if mask is None or not gpus:
        chosen = [(gpu.entry, gpu) for card in gpus for gpu in card.slices or (card,)]
        remark = ""
    else:
        chosen, remark = _masked(gpus, mask)
    remarks = [remark] if remark else []
    remarks += [
        f"GPU {entry} is left out ({gpu.trouble})" for entry, gpu in chosen if gpu.trouble
    ]
    order = environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    by_number = any(entry.isdigit() for entry, _ in chosen)
    if order != "PCI_BUS_ID" and by_number and len({gpu.name for gpu in gpus}) > 1:
        remarks.append(
            f"CUDA_DEVICE_ORDER={order} and the GPUs differ: names and readings follow the PCI "
            "order and may be those of another GPU; unset it, or list UUIDs in "
            "CUDA_VISIBLE_DEVICES"
        )
    devices = tuple(
        Device(
            kind="cuda",
            index=position,
            name=gpu.name,
            mask=entry,
            uuid=gpu.uuid,
            total_bytes=gpu.total_bytes,
            capability=gpu.capability,
        )
        for position, (entry, gpu) in enumerate(chosen)
        if not gpu.trouble
    )
    return devices, tuple(remarks)


def _masked(gpus: Sequence[Gpu], mask: str) -> tuple[list[tuple[str, Gpu]], str]:
    """The GPUs that the mask names, by CUDA's rules, and what to say about the mask."""
    known = _with_slices(gpus)
    chosen: list[tuple[str, Gpu]] = []
    for entry in map(str.strip, mask.split(",")):
        gpu = _named(entry, known)
        if gpu is None:
            if entry not in ("", "-1"):
                return chosen, (
                    f"CUDA_VISIBLE_DEVICES is {mask!r}: {entry!r} names no GPU of this machine, "
                    "so it and what follows is ignored"
                )
            return chosen, "" if chosen else f"CUDA_VISIBLE_DEVICES is {mask!r}"
        if any(gpu == other for _, other in chosen):
            return [], f"CUDA_VISIBLE_DEVICES is {mask!r}: CUDA shows no GPU if one is named twice"
        chosen.append((entry, gpu))
    return chosen, ""


def _named(entry: str, known: Sequence[Gpu]) -> Gpu | None:
    if entry.isascii() and entry.isdigit():
        found = [gpu for gpu in known if gpu.entry == str(int(entry))]
    elif entry.startswith(("GPU-", "MIG-")):
        found = [gpu for gpu in known if gpu.uuid and gpu.uuid.startswith(entry)]
        # A lost GPU cannot tell its UUID; the one that nobody has must be its.
        found = found or [gpu for gpu in known if gpu.trouble]
    else:
        found = []
    return found[0] if len(found) == 1 else None


def _with_slices(gpus: Sequence[Gpu]) -> list[Gpu]:
    return [gpu for card in gpus for gpu in (card, *card.slices)]


# --- what the driver says --------------------------------------------------------------------


def _survey() -> tuple[tuple[Gpu, ...], str]:
    """The GPUs of the machine in PCI order, and what kept NVML from telling."""
    try:
        nvml = _Nvml()
    except _NoAnswer as error:
        return gpus_of_driver(_PROC_GPUS), str(error)
    gpus = nvml.gpus()
    nvml.close()
    return gpus, "" if gpus else "the driver reports none"


def gpus_of_driver(folder: Path) -> tuple[Gpu, ...]:
    """The GPUs that the kernel driver lists: CUDA can work where NVML does not.

    Containers are often given CUDA alone, and a driver update breaks NVML first.

    Args:
        folder: `/proc/driver/nvidia/gpus`, with a folder for each GPU, named by its PCI address.
    """
    gpus = []
    for index, path in enumerate(sorted(folder.glob("*/information"))):
        pairs = (line.partition(":") for line in path.read_text().splitlines())
        lines = {key.strip(): value.strip() for key, _, value in pairs}
        uuid = lines.get("GPU UUID")
        gpus.append(
            Gpu(
                entry=str(index),
                name=lines.get("Model", f"GPU {index}"),
                uuid=None if uuid is None or "?" in uuid else uuid,  # not initialised yet
            )
        )
    return tuple(gpus)


class _NoAnswer(Exception):
    """NVML or one of its GPUs does not answer at all; the text says why."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error).rstrip("."))


class _Nvml:
    """NVML, started. Every answer is optional: drivers, cards and bindings differ in them."""

    def __init__(self) -> None:
        import pynvml

        self._api = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise _NoAnswer(error) from error

    def close(self) -> None:
        with suppress(self._api.NVMLError):
            self._api.nvmlShutdown()

    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(self._gpu(index) for index in range(self._ask("nvmlDeviceGetCount") or 0))

    def reading(self, handle: Any) -> Reading:
        try:
            memory = self._memory(handle)
            load = self._ask("nvmlDeviceGetUtilizationRates", handle)
            power = self._ask("nvmlDeviceGetPowerUsage", handle)
            limit = self._ask("nvmlDeviceGetEnforcedPowerLimit", handle)
            return Reading(
                used_bytes=memory and memory.used,
                total_bytes=memory and memory.total,
                utilisation=load and load.gpu / 100,
                temperature=self._ask("nvmlDeviceGetTemperature", handle, 0),
                power_watts=power and power / 1000,
                power_limit_watts=limit and limit / 1000,
            )
        except _NoAnswer:
            return Reading(lost=True)

    def _gpu(self, index: int) -> Gpu:
        try:
            handle = self._api.nvmlDeviceGetHandleByIndex(index)
        except self._api.NVMLError as error:
            return Gpu(entry=str(index), name=f"GPU {index}", trouble=str(_NoAnswer(error)))
        try:
            return self._described(handle, str(index), slices=tuple(self._slices(handle)))
        except _NoAnswer as error:
            return Gpu(entry=str(index), name=f"GPU {index}", trouble=str(error))
