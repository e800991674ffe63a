"""What is seen of a session's devices and workers: readings, logs, progress.

```
 sensors thread ── readings ──┐
 log files ───────────────────┼──> Progress ──> snapshots
 events (session) ────────────┘
```

All but `status` and `close` are called by the session's loop alone.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from mgpu_magic.devices import Discovery, discover
from mgpu_magic.launchers.process import log_tail
from mgpu_magic.progress import Progress
from mgpu_magic.scratch import shorten
from mgpu_magic.sensors import WAIT_SECONDS, Sensors
from mgpu_magic.snapshot import Reading
from mgpu_magic.survey import Living

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mgpu_magic.fleet import Fleet, Worker
    from mgpu_magic.loop import Loop
    from mgpu_magic.snapshot import Snapshot

READING_SECONDS = 0.5
SILENT_SECONDS = 2.5


class Instruments:
    """Reads the devices and the logs while there is something to see.

    Args:
        fleet: The workers.
        loop: The session's loop.
        busy: Whether a job runs.

    Attributes:
        progress: What is known; another one once other devices are shown.
        known: The last discovery in which there were GPUs.
    """

    def __init__(self, fleet: Fleet, loop: Loop, busy: Callable[[], bool]) -> None:
        self.progress = Progress((), time.monotonic)
        self.known: Discovery | None = None
        self._fleet = fleet
        self._loop = loop
        self._busy = busy
        self._discovery: Discovery | None = None
        self._unread: Mapping[str, Reading] = {}  # of the devices, where their driver hangs
        self._sensors = Sensors()
        self._sampling = False
        self._log_bytes: dict[int, int] = {}  # of the logs, as they were shown

    def status(self, devices: str) -> Snapshot:
        """Read now and wait for it, though not for ever; not from the loop.

        Args:
            devices: Which ones to show where none are shown yet.
        """
        if self._discovery is None:
            found = discover(os.environ, devices, before=self.known, patience=WAIT_SECONDS)
            self._loop.call(lambda: self.show(found))
            if not found.final:  # ask again the next time
                self._discovery = None
                return self.look()
        if not self._sensors.read(self._loop.call(self._pids), self._on_readings):
            self._on_readings(self._unread)
        return self.look()

    def look(self) -> Snapshot:
        """The state now; not from the loop."""
        return self._loop.call(lambda: self.progress.snapshot())

    def close(self) -> None:
        """Read no more."""
        self._sensors.close()

    def show(self, discovery: Discovery) -> None:
        """Show these devices from now on."""
        if self._discovery is None or self._discovery.devices != discovery.devices:
            self._sensors.use(discovery.devices)
            self.progress = Progress(discovery.devices, time.monotonic)
            for worker in self._fleet:
                if set(worker.spec.devices) <= set(discovery.devices):
                    labels = [device.label for device in worker.spec.devices]
                    self.progress.assign(worker.number, worker.spec.model_label, labels)
                    if worker.ready is not None:
                        self.progress.apply(worker.number, worker.ready)
        self._discovery = discovery
        self._unread = {device.label: Reading() for device in discovery.devices}
        if discovery.gpus:
            self.known = discovery

    def follow(self) -> None:
        """A job begins: read the devices and logs until none runs."""
        if not self._sampling:
            self._sample()

    def show_logs(self) -> None:
        """Hand what the workers printed since to those who show it."""
        for worker in self._fleet:
            if (size := log_bytes(worker)) != self._log_bytes.get(worker.number, 0):
                self._log_bytes[worker.number] = size
                if worker.handle is not None:
                    self.progress.logged(worker.number, log_tail(worker.handle.log))
                    shorten(worker.handle.log, size)

    def living(self) -> list[Living]:
        """The workers that have a process or thread."""
        return [
            Living(worker.spec, worker.handle.pid, worker.leaving)
            for worker in self._fleet
            if worker.handle is not None
        ]

    def _sample(self) -> None:
        self._sampling = self._busy()
        if self._sampling:
            self._sensors.ask(self._pids(), self._on_readings)
            if self._sensors.silent_seconds > SILENT_SECONDS:  # what was read is long past
                self.progress.read(self._unread)
            self.show_logs()
            self._loop.later(READING_SECONDS, self._sample)

    def _on_readings(self, readings: Mapping[str, Reading]) -> None:
        self._loop.post(lambda: self.progress.read(readings))

    def _pids(self) -> dict[str, list[int]]:
        pids: dict[str, list[int]] = {}
        for one in self.living():
            for device in one.spec.devices:
                pids.setdefault(device.label, []).append(one.pid)
        return pids


def log_bytes(worker: Worker) -> int:
    """Size of its log; 0 where there is none yet."""
    with contextlib.suppress(OSError):
        return 0 if worker.handle is None else worker.handle.log.stat().st_size
    return 0
