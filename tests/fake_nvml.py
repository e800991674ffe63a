"""A fake `libnvidia-ml.so.1`, which the real `nvidia-ml-py` loads where there is no driver.

```python
library = fake_nvml.build(tmp_path)
config = tmp_path / "machine"
fake_nvml.write_config(config, [FakeGpu(name="Tesla T4", uuid="GPU-aaaa")])
subprocess.run([...], env={**os.environ, **fake_nvml.environment(library.parent, config)})
```

The library reads the configuration at every call: write it again, and a running process sees
other readings. The loader reads `LD_LIBRARY_PATH` when a process starts, hence the subprocess.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GIB = 1024**3

NOT_SUPPORTED = 3
DRIVER_NOT_LOADED = 9
NO_PERMISSION = 4
GPU_IS_LOST = 15
VERSION_MISMATCH = 18
NOT_AVAILABLE = 2**64 - 1


@dataclass(frozen=True, kw_only=True)
class FakeGpu:
    """A GPU as the fake library reports it; by default a Tesla T4 of 15 GiB at rest.

    Attributes:
        name: Product name.
        uuid: `GPU-...`, or `MIG-...` for a slice.
        capability: CUDA compute capability.
        memory_bus_bits: Width of the way to its memory.
        memory_clock_megahertz: The highest that its memory may have.
        total_bytes: Memory.
        used_bytes: What processes use of it.
        reserved_bytes: What the driver keeps for itself; version 1 of the call counts it as used.
        utilisation: Percent.
        temperature: Degrees Celsius.
        power_milliwatts: Power drawn.
        power_limit_milliwatts: Power that it may draw.
        errors: NVML code by what fails: `name`, `uuid`, `capability`, `bus`, `memory_clock`,
            `memory`, `utilisation`, `temperature`, `power`, `power_limit`, `mig`; `handle` for all
            that the GPU is asked.
        delays: Milliseconds that a function takes, by the same names.
        processes: Bytes by process id; None where the driver does not know how many.
        slices: Its MIG slices.
    """

    uuid: str
    name: str = "Tesla T4"
    capability: tuple[int, int] = (7, 5)
    memory_bus_bits: int = 256
    memory_clock_megahertz: int = 5001
    total_bytes: int = 15 * GIB
    used_bytes: int = 0
    reserved_bytes: int = 0
    utilisation: int = 0
    temperature: int = 40
    power_milliwatts: int = 10_000
    power_limit_milliwatts: int = 70_000
    errors: Mapping[str, int] = field(default_factory=dict)
    delays: Mapping[str, int] = field(default_factory=dict)
    processes: Mapping[int, int | None] = field(default_factory=dict)
    slices: tuple[FakeGpu, ...] = ()

    def lines(self, kind: str = "gpu") -> list[str]:
        """Its part of the configuration file."""
        return [
            kind,
            f"name {self.name}",
            f"uuid {self.uuid}",
            f"capability {self.capability[0]} {self.capability[1]}",
            f"bus {self.memory_bus_bits}",
            f"memory_clock {self.memory_clock_megahertz}",
            f"total {self.total_bytes}",
            f"used {self.used_bytes}",
            f"reserved {self.reserved_bytes}",
            f"utilisation {self.utilisation}",
            f"temperature {self.temperature}",
            f"power {self.power_milliwatts}",
            f"power_limit {self.power_limit_milliwatts}",
            *(f"error {function} {code}" for function, code in self.errors.items()),
            *(f"delay {function} {milliseconds}" for function, milliseconds in self.delays.items()),
            *(
                f"process {pid} {NOT_AVAILABLE if used is None else used}"
                for pid, used in self.processes.items()
            ),
            *(line for part in self.slices for line in part.lines("slice")),
        ]


def build(directory: Path, *, v2: bool = True) -> Path:
    """Compile the library into `directory` and return its path.

    Args:
        directory: An existing folder.
        v2: Whether it has `nvmlDeviceGetMemoryInfo_v2`, which older drivers lack.
    """
    library = directory / "libnvidia-ml.so.1"
    source = Path(__file__).with_suffix(".c")
    flags = [] if v2 else ["-DWITHOUT_MEMORY_V2"]
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-Wall", "-Werror", *flags, "-o", library, source], check=True
    )
    return library


def write_config(
    path: Path,
    gpus: Sequence[FakeGpu],
    init_error: int = 0,
    init_delay: int = 0,
    *,
    cuda: int = 0,
) -> None:
    """Say what the library answers from now on.

    Args:
        path: The file that `environment` names.
        gpus: The GPUs of the machine, in PCI order.
        init_error: NVML code that starting the library returns.
        init_delay: Milliseconds that starting the library takes.
        cuda: The newest CUDA that the driver runs, such as 12040; 0: it does not say.
    """
    head = [f"init {init_error}", f"delay init {init_delay}", f"cuda {cuda}"]
    lines = [*head, *(line for gpu in gpus for line in gpu.lines())]
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text("\n".join(lines) + "\n", encoding="utf-8")
    draft.replace(path)  # at once: a reader never meets half a file


def environment(directory: Path, config: Path) -> dict[str, str]:
    """The variables that a process needs to load the library in `directory`."""
    folders = [str(directory), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {"LD_LIBRARY_PATH": os.pathsep.join(folders), "FAKE_NVML_CONFIG": str(config)}
