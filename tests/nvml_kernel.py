"""A process that finds and reads the GPUs of the fake NVML library, as a notebook's kernel would.

```
test ── Kernel.discover, .read ──pickle──> serve(): mgpu_magic.devices ──> nvidia-ml-py
 └───── Kernel.machine ──> configuration file <── fake libnvidia-ml.so.1 <──────┘
```
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fake_nvml

from mgpu_magic import devices
from mgpu_magic.devices import DeviceMonitor, Discovery, discover, monitor_for
from mgpu_magic.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fake_nvml import FakeGpu

    from mgpu_magic.snapshot import Reading


TESTS = Path(__file__).parent


class Kernel:
    """The process. Its calls are those of `mgpu_magic.devices`, and raise what those raise.

    Args:
        directory: Where the library is; the configuration is written there too.
    """

    def __init__(self, directory: Path) -> None:
        self._config = directory / "machine"
        self.machine()
        self._process = subprocess.Popen(
            [sys.executable, "-c", "import nvml_kernel; nvml_kernel.serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                **os.environ,
                "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}",
                **fake_nvml.environment(directory, self._config),
            },
        )

    def machine(self, *gpus: FakeGpu, init_error: int = 0) -> None:
        """Say which GPUs there are from now on."""
        fake_nvml.write_config(self._config, gpus, init_error)

    def discover(self, selection: str = "all", **environ: str) -> Discovery:
        found = self._call("discover", environ, selection)
        assert isinstance(found, Discovery)
        return found

    def open_monitor(self, found: Discovery) -> None:
        """Read the devices of `found` from now on."""
        self._call("open", found.devices)

    def read(self, pids: Mapping[str, Sequence[int]] | None = None) -> dict[str, Reading]:
        readings = self._call("read", pids or {})
        assert isinstance(readings, dict)
        return readings

    def use_cores(self, cores: set[int]) -> None:
        """Restrict the process to these cores."""
        self._call("cores", cores)

    def use_driver_folder(self, folder: Path) -> None:
        """Read what the kernel driver lists there, not in `/proc`."""
        self._call("driver", folder)

    def give_names_as_bytes(self) -> None:
        """Answer as older releases of `nvidia-ml-py` do."""
        self._call("bytes")

    def close(self) -> None:
        self._process.communicate()
        assert self._process.returncode == 0

    def _call(self, *command: Any) -> object:
        assert self._process.stdin
        assert self._process.stdout
        pickle.dump(command, self._process.stdin)
        self._process.stdin.flush()
        answer: object = pickle.load(self._process.stdout)
        if isinstance(answer, SpecError):
            raise answer
        return answer


@contextmanager
def running(directory: Path) -> Iterator[Kernel]:
    """A kernel that has ended, without an error of its own, when the block is left."""
    kernel = Kernel(directory)
    try:
        yield kernel
    finally:
        kernel.close()


def serve() -> None:
    """The process's side: answers calls until its input ends."""
    monitor: DeviceMonitor | None = None
    with suppress(EOFError):
        while True:
            answer: object = None
            match pickle.load(sys.stdin.buffer):
                case "discover", environ, selection:
                    answer = _discovery(environ, selection)
                case "open", chosen:
                    if monitor:
                        monitor.close()
                    monitor = monitor_for(chosen)
                case "read", pids:
                    answer = monitor and monitor.read(pids)
                case "cores", cores:
                    os.sched_setaffinity(0, cores)
                case "driver", folder:
                    devices._PROC_GPUS = folder
                case ("bytes",):
                    _answer_bytes()
            pickle.dump(answer, sys.stdout.buffer)
            sys.stdout.buffer.flush()


def _discovery(environ: Mapping[str, str], selection: str) -> Discovery | SpecError:
    try:
        return discover(environ, selection)
    except SpecError as error:
        return error


def _answer_bytes() -> None:
    import pynvml

    get_name: Callable[[Any], str] = pynvml.nvmlDeviceGetName
    pynvml.nvmlDeviceGetName = lambda handle: get_name(handle).encode()
