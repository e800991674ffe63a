"""Reads the devices in a thread of its own: a driver that hangs stalls this, and no job.

```
loop ── ask(pids, tell) ──> thread ── monitor.read ──> tell(readings)
```

Each set of devices has its thread: one whose driver hangs is left behind.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import TYPE_CHECKING

from mgpu_magic.devices import monitor_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    from mgpu_magic.devices import DeviceMonitor
    from mgpu_magic.snapshot import Reading
    from mgpu_magic.spec import Device

    Pids: TypeAlias = Mapping[str, Sequence[int]]  # of the workers, by device label
    Tell: TypeAlias = Callable[[Mapping[str, Reading]], None]
    Asked: TypeAlias = queue.SimpleQueue[Callable[[DeviceMonitor], None] | None]

log = logging.getLogger("mgpu_magic")

WAIT_SECONDS = 2.0


class Sensors:
    """The sensors of the devices that are shown. One thread at a time calls it."""

    def __init__(self) -> None:
        self._asked: Asked = queue.SimpleQueue()
        self._since: float | None = None  # when the reading was asked for that is not there yet
        self._used = False

    def use(self, devices: Sequence[Device]) -> None:
        """Read these from now on."""
        self.close()
        self._asked, self._since, self._used = queue.SimpleQueue(), None, True
        answering = threading.Thread(
            target=_answer, args=(self._asked, devices), name="mgpu-monitor", daemon=True
        )
        answering.start()

    @property
    def silent_seconds(self) -> float:
        """How long a reading has been waited for."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    def ask(self, pids: Pids, tell: Tell) -> None:
        """Have them read and `tell` called in the thread; not while an earlier ask waits."""
        if self._used and self._since is None:
            self._since = time.monotonic()
            self._asked.put(lambda monitor: self._tell(monitor, pids, tell))

    def read(self, pids: Pids, tell: Tell) -> bool:
        """Have them read, and wait for it; False where the driver hangs for too long."""
        told = threading.Event()

        def act(monitor: DeviceMonitor) -> None:
            tell(monitor.read(pids))
            told.set()

        self._asked.put(act)
        return told.wait(WAIT_SECONDS)

    def close(self) -> None:
        """End the thread, once it has answered."""
        if self._used:
            self._asked.put(None)

    def _tell(self, monitor: DeviceMonitor, pids: Pids, tell: Tell) -> None:
        try:
            tell(monitor.read(pids))
        finally:
            self._since = None


def _answer(asked: Asked, devices: Sequence[Device]) -> None:
    monitor = monitor_for(devices)
    while (act := asked.get()) is not None:
        try:
            act(monitor)
        except Exception:  # the next reading may be better
            log.exception("the devices cannot be read")
    monitor.close()
