"""Which devices exist and how full they are: NVML for GPUs, the host for CPU devices.

```
NVML ──────────────────┐
CUDA_VISIBLE_DEVICES ──┴─ visible_gpus ─┐
                                        ├─> Discovery ── monitor_for ──> DeviceMonitor
host ──────────────────── cpu_devices ──┘       │                              │
                                             Devices                        Readings
```

It never touches CUDA, so the kernel stays without a context.
Imports `errors`, `host`, `nvml` and `spec`.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mgpu_magic.errors import SpecError
from mgpu_magic.host import HostMonitor, counted, cpu_devices, free_host_bytes
from mgpu_magic.nvml import Gpu, Nvml, NvmlMonitor, with_slices, without_handles
from mgpu_magic.spec import Device

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mgpu_magic.snapshot import Reading

__all__ = [
    "DeviceMonitor", "Discovery", "HostMonitor", "NvmlMonitor", "discover", "free_host_bytes",
    "monitor_for",
]  # fmt: skip

_PROC_GPUS = Path("/proc/driver/nvidia/gpus")
DRIVER_SECONDS = 5.0  # for NVML to answer, where the GPUs are known without it
LONE_DRIVER_SECONDS = 20.0  # where they are not: some drivers take long to wake eight GPUs


@dataclass(frozen=True, slots=True)
class Discovery:
    """The devices of a selection.

    Attributes:
        devices: At least one; in the order asked for.
        notes: What the user should know, a line each: running on the CPU instead, a lost GPU.
        gpus: All that NVML reported, for a time when it does not answer.
        final: False where NVML did not answer in time: the next time there may be more.
    """

    devices: tuple[Device, ...]
    notes: tuple[str, ...] = ()
    gpus: tuple[Gpu, ...] = field(default=(), compare=False, repr=False)
    final: bool = field(default=True, compare=False, repr=False)


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


def discover(
    environ: Mapping[str, str],
    selection: str,
    *,
    before: Discovery | None = None,
    patience: float | None = None,
) -> Discovery:
    """Find the devices that `selection` names.

    Args:
        environ: The kernel's environment. Its `CUDA_VISIBLE_DEVICES` is never widened.
        selection: `"all"` (every visible GPU, or else CPU devices), `"cpu"` (one device with
            every core that this process may use), `"cpu:N"` (those cores split into N devices),
            or positions among the visible GPUs: `"0,1"`, `"cuda:0,cuda:1"`.
        before: What was found earlier; its GPUs count where NVML fails now.
        patience: Seconds to wait for NVML at most; None: long enough for a slow driver.

    Raises:
        SpecError: The selection is malformed, or this machine cannot serve it.
    """
    match selection.strip().split(":"):
        case ["cpu"]:
            return Discovery(cpu_devices(1))
        case ["cpu", count] if count.isdecimal():
            return Discovery(cpu_devices(int(count)))
        case ["all"]:
            positions = None
        case _:
            positions = _positions(selection)

    survey = _survey(before, patience)
    gpus, trouble = survey.gpus, survey.trouble
    devices, remarks = visible_gpus(gpus, environ)
    if trouble:
        remarks += (f"GPU readings unavailable: {trouble}" if devices else trouble,)
    if positions is not None:
        devices = _pick(devices, positions, "; ".join(remarks))
    if devices:
        notes = tuple(f"{remark}." for remark in remarks)
        return Discovery(devices, notes, gpus, survey.answered)
    cpus = cpu_devices()
    reason, count = "; ".join(remarks), counted(len(cpus), "CPU device")
    note = f"No NVIDIA GPU found ({reason}): running on {count}."
    return Discovery(cpus, (note,), gpus, survey.answered)


def monitor_for(devices: Sequence[Device]) -> DeviceMonitor:
    """The monitor for the devices of one `Discovery`: they are of one kind."""
    if any(device.kind == "cuda" for device in devices):
        return NvmlMonitor(devices)
    return HostMonitor(devices)


# --- selection -------------------------------------------------------------------------------


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
    missing = [position for position in positions if position not in by_position]
    if not missing:
        return tuple(by_position[position] for position in positions)
    if not devices:
        raise SpecError(
            f"asked for device {missing[0]}, but no NVIDIA GPU was found ({remarks}); pass cpu:2 "
            "to run on two CPU devices"
        )
    are = "is" if len(devices) == 1 else "are"
    raise SpecError(
        f"asked for device {missing[0]}, {counted(len(devices), 'device')} {are} visible "
        f"({', '.join(map(str, by_position))})" + (remarks and f"; {remarks}")
    )


# --- which GPUs the mask leaves --------------------------------------------------------------


def visible_gpus(
    gpus: Sequence[Gpu], environ: Mapping[str, str]
) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Apply the kernel's mask to the GPUs of the machine.

    A lost GPU keeps its position, so that the other devices keep their names.

    Returns:
        The devices that can be used, and remarks for the user.
    """
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    remark = ""
    chosen = [(gpu.entry, gpu) for card in gpus for gpu in card.slices or (card,)]
    if mask is not None and gpus:
        chosen, remark = _masked(mask, with_slices(gpus))
    remarks = [remark] if remark else []
    remarks += [f"{gpu.name} is left out: {gpu.trouble}" for _, gpu in chosen if gpu.trouble]
    order = environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    unequal = len({gpu.name for gpu in gpus if not gpu.trouble}) > 1
    if order != "PCI_BUS_ID" and unequal and any(entry.isdigit() for entry, _ in chosen):
        remarks.append(
            f"CUDA_DEVICE_ORDER={order} and the GPUs differ: names and readings follow the PCI "
            "order and may be another GPU's; unset it, or list UUIDs in CUDA_VISIBLE_DEVICES"
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
            memory_bandwidth=gpu.memory_bandwidth,
        )
        for position, (entry, gpu) in enumerate(chosen)
        if not gpu.trouble
    )
    return devices, tuple(remarks)


def _masked(mask: str, known: Sequence[Gpu]) -> tuple[list[tuple[str, Gpu]], str]:
    """The GPUs that the mask names, by CUDA's rules, and what to say about the mask."""
    said = f"CUDA_VISIBLE_DEVICES is {mask!r}"
    chosen: list[tuple[str, Gpu]] = []
    for entry in map(str.strip, mask.split(",")):
        gpu = _named(entry, known)
        if gpu is None and entry in ("", "-1"):
            return chosen, "" if chosen else said
        if gpu is None:
            return chosen, f"{said}: {entry!r} names no GPU here, so CUDA ignores all from it on"
        if any(gpu == other for _, other in chosen):
            return [], f"{said}: CUDA shows no GPU where one is named twice"
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


# --- what the driver says --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Survey:
    """The GPUs of the machine in PCI order, and why NVML cannot tell more."""

    gpus: tuple[Gpu, ...]
    trouble: str = ""
    answered: bool = True


def _survey(before: Discovery | None, patience: float | None) -> _Survey:
    known = gpus_of_driver(_PROC_GPUS)
    if before is not None and before.gpus:
        known = before.gpus
    if patience is None:
        patience = DRIVER_SECONDS if known else LONE_DRIVER_SECONDS
    answer: Future[_Survey] = Future()
    threading.Thread(target=_ask, args=(answer,), name="mgpu-survey", daemon=True).start()
    try:
        survey = answer.result(patience)
    except TimeoutError:
        return _Survey(known, f"NVML has not answered for {patience:g} s", answered=False)
    if survey.trouble:
        return replace(survey, gpus=known)
    return survey if survey.gpus else replace(survey, trouble="the driver reports none")


def _ask(answer: Future[_Survey]) -> None:
    """In a thread of its own: a call into a driver that hangs never comes back."""
    try:
        nvml = Nvml()
        gpus = tuple(map(without_handles, nvml.gpus()))
        nvml.close()
        answer.set_result(_Survey(gpus, nvml.trouble))
    except Exception as error:  # noqa: BLE001  # raised where the answer is waited for
        answer.set_exception(error)


def gpus_of_driver(folder: Path) -> tuple[Gpu, ...]:
    """The GPUs that the kernel driver lists, for where CUDA works and NVML does not.

    Containers are often given CUDA alone, and a driver update breaks NVML first.

    Args:
        folder: `/proc/driver/nvidia/gpus`: a folder for each GPU, named by its PCI address.
    """
    gpus = []
    for index, path in enumerate(sorted(folder.glob("*/information"))):
        pairs = (line.partition(":") for line in path.read_text().splitlines())
        fields = {key.strip(): value.strip() for key, _, value in pairs}
        uuid = fields.get("GPU UUID", "?")
        gpus.append(
            Gpu(
                entry=str(index),
                name=fields.get("Model", f"GPU {index}"),
                uuid=None if "?" in uuid else uuid,  # question marks until first used
            )
        )
    return tuple(gpus)
