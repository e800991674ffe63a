"""NVML: the GPUs that the driver knows, and their sensors.

The only module that knows NVML's binding. Imports `host` and `snapshot`; `pynvml` where it is used.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mgpu_magic.host import family
from mgpu_magic.snapshot import Reading

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from mgpu_magic.spec import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """What the driver says about a GPU, or about a MIG slice of one.

    Attributes:
        entry: What names it in a mask: NVML's index, or the UUID of a slice.
        name: Product name.
        uuid: NVML's UUID, where known.
        total_bytes: Its memory, where known.
        capability: CUDA compute capability, where known.
        memory_bandwidth: Bytes per second, where known; never of a slice.
        slices: Its MIG slices.
        trouble: Why it cannot be used; empty where it can.
        handle: NVML's handle.
    """

    entry: str
    name: str
    uuid: str | None = None
    total_bytes: int | None = None
    capability: tuple[int, int] | None = None
    memory_bandwidth: float | None = None
    slices: tuple[Gpu, ...] = ()
    trouble: str = ""
    handle: Any = field(default=None, compare=False, repr=False)


def with_slices(gpus: Sequence[Gpu]) -> list[Gpu]:
    """The GPUs, each followed by its MIG slices."""
    return [gpu for card in gpus for gpu in (card, *card.slices)]


def without_handles(gpu: Gpu) -> Gpu:
    """What is known of a GPU, to be kept: a handle is of one start of NVML."""
    return replace(gpu, handle=None, slices=tuple(map(without_handles, gpu.slices)))


class Nvml:
    """NVML, started. Each answer is optional: drivers, cards and bindings differ.

    Attributes:
        trouble: Why it could not be started; empty if it was.
    """

    def __init__(self) -> None:
        import pynvml

        self._api = pynvml
        self.trouble = ""
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self.trouble = _reason(error)

    def close(self) -> None:
        """Let NVML go."""
        if not self.trouble:
            with suppress(self._api.NVMLError):
                self._api.nvmlShutdown()

    def gpus(self) -> tuple[Gpu, ...]:
        """All GPUs, in PCI order."""
        count = 0 if self.trouble else self._ask("nvmlDeviceGetCount")
        return tuple(self._gpu(index) for index in range(count or 0))

    def cuda_version(self) -> tuple[int, int] | None:
        """The newest CUDA that the driver runs, libraries for forward compatibility included."""
        if self.trouble:
            return None
        version = self._ask("nvmlSystemGetCudaDriverVersion_v2")  # what programs will find
        version = version or self._ask("nvmlSystemGetCudaDriverVersion")
        return (version // 1000, version % 1000 // 10) if version else None

    def users(self, handle: Any) -> tuple[tuple[int, int | None], ...]:
        """Process ids, as the driver counts, and the memory of each; empty in some containers."""
        try:
            running = self._ask("nvmlDeviceGetComputeRunningProcesses", handle) or ()
        except self._api.NVMLError:
            return ()
        return tuple((process.pid, process.usedGpuMemory) for process in running)

    def reading(self, handle: Any, pids: Collection[int]) -> Reading:
        """What the sensors say; `pids` are the processes whose memory is counted as our own."""
        try:
            memory = self._memory(handle)
            load = self._ask("nvmlDeviceGetUtilizationRates", handle)
            power = self._ask("nvmlDeviceGetPowerUsage", handle)  # in milliwatts, as the limit
            limit = self._ask("nvmlDeviceGetEnforcedPowerLimit", handle)
            return Reading(
                used_bytes=memory and memory.used,
                own_bytes=self._own_bytes(handle, pids),
                total_bytes=memory and memory.total,
                utilisation=load and load.gpu / 100,
                temperature=self._ask(
                    "nvmlDeviceGetTemperature", handle, self._api.NVML_TEMPERATURE_GPU
                ),
                power_watts=power and power / 1000,
                power_limit_watts=limit and limit / 1000,
            )
        except self._api.NVMLError:
            return Reading(lost=True)

    def _own_bytes(self, handle: Any, pids: Collection[int]) -> int | None:
        """Memory of these processes; None where NVML does not see them, as in a container."""
        running = self._ask("nvmlDeviceGetComputeRunningProcesses", handle) or ()
        sizes = [process.usedGpuMemory for process in running if process.pid in pids]
        return sum(sizes) if sizes and None not in sizes else None

    def _gpu(self, index: int) -> Gpu:
        try:
            handle = self._api.nvmlDeviceGetHandleByIndex(index)
            card = self._described(handle, str(index))
            bandwidth = self._memory_bandwidth(handle)
            return replace(card, memory_bandwidth=bandwidth, slices=tuple(self._slices(card)))
        except self._api.NVMLError as error:
            return Gpu(entry=str(index), name=f"GPU {index}", trouble=_reason(error))

    def _slices(self, card: Gpu) -> Iterator[Gpu]:
        mode = self._ask("nvmlDeviceGetMigMode", card.handle)
        if not mode or not mode[0]:
            return
        for index in range(self._ask("nvmlDeviceGetMaxMigDeviceCount", card.handle) or 0):
            handle = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", card.handle, index)
            part = handle and self._described(handle, f"{card.entry}.{index}")
            if part and part.uuid:
                capability = part.capability or card.capability
                yield replace(part, entry=part.uuid, capability=capability)

    def _described(self, handle: Any, entry: str) -> Gpu:
        uuid = self._ask("nvmlDeviceGetUUID", handle)
        memory = self._memory(handle)
        capability = self._ask("nvmlDeviceGetCudaComputeCapability", handle)
        return Gpu(
            entry=entry,
            name=_text(self._ask("nvmlDeviceGetName", handle) or f"GPU {entry}"),
            uuid=_text(uuid) if uuid else None,
            total_bytes=memory and memory.total,
            capability=tuple(capability) if capability else None,
            handle=handle,
        )

    def _memory_bandwidth(self, handle: Any) -> float | None:
        width = self._ask("nvmlDeviceGetMemoryBusWidth", handle)  # in bits
        clock = self._ask("nvmlDeviceGetMaxClockInfo", handle, self._api.NVML_CLOCK_MEM)  # in MHz
        return 2e6 * clock * width / 8 if clock and width else None  # two transfers a clock

    def _memory(self, handle: Any) -> Any:
        # Version 1 counts what the driver reserves for itself as used.
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle, self._api.nvmlMemory_v2)
        memory = memory or self._ask("nvmlDeviceGetMemoryInfo", handle)
        return memory if memory and memory.total else None

    def _ask(self, function: str, *args: Any) -> Any:
        """The answer, or None where there is none; an `NVMLError` where the GPU is lost."""
        query = getattr(self._api, function, None)
        try:
            return query and query(*args)
        except self._api.NVMLError as error:
            if error.value == self._api.NVML_ERROR_GPU_IS_LOST:
                raise
            return None


def _text(answer: str | bytes) -> str:
    return answer.decode() if isinstance(answer, bytes) else answer  # older bindings give bytes


def _reason(error: Exception) -> str:
    return str(error).rstrip(".")


def handles_of(nvml: Nvml, devices: Sequence[Device]) -> dict[str, Any]:
    """NVML's handle of each device by its label; None where NVML does not know it."""
    handles = {gpu.uuid or gpu.entry: gpu.handle for gpu in with_slices(nvml.gpus())}
    return {device.label: handles.get(device.uuid or device.mask) for device in devices}


class NvmlMonitor:
    """Reads GPUs through NVML; everything is unknown where NVML cannot be started.

    A GPU's memory is all that is used on it, not only by us. What is ours is known where NVML's
    process ids are those of this machine: in a container they are the host's, or missing.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        self._nvml = Nvml()
        # Kept, because NVML finds no GPU by its UUID while any GPU is lost.
        self._handles = handles_of(self._nvml, devices)

    def read(self, pids: Mapping[str, Sequence[int]]) -> dict[str, Reading]:
        """Read all devices; see `DeviceMonitor`."""
        return {
            label: self._nvml.reading(handle, family(pids.get(label, ()))) if handle else Reading()
            for label, handle in self._handles.items()
        }

    def close(self) -> None:
        """Release NVML."""
        self._nvml.close()
