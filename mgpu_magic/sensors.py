"""Reads the devices in a thread of its own: a driver that hangs stalls this, and no job.

```
loop ── ask(pids, tell) ──> thread ── monitor.read ──> tell(readings)
```
"""

from __future__ import annotations

import contextlib
import queue
import threading
from functools import partial
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


WAIT_SECONDS = 2.0


class Sensors:
    """The sensors of the devices that are shown. One thread at a time calls it."""

    def __init__(self) -> None:
        self._monitor: DeviceMonitor | None = None
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._answer, name="mgpu-monitor", daemon=True).start()

    def use(self, devices: Sequence[Device]) -> None:
        """Read these from now on."""
        self._release()
        self._monitor = monitor_for(devices)

    def ask(self, pids: Pids, tell: Tell) -> None:
        """Have them read and `tell` called in the thread; not while an earlier ask waits."""
        if self._monitor is not None and self._asked.empty():
            self._asked.put(partial(_read, self._monitor, pids, tell))

    def read(self, pids: Pids, tell: Tell) -> None:
        """Have them read, and wait for it; not for ever, where a driver hangs."""
        told: queue.SimpleQueue[None] = queue.SimpleQueue()  # an interrupt leaves no lock taken
        if self._monitor is not None:
            self._asked.put(partial(_read, self._monitor, pids, tell))
            self._asked.put(partial(told.put, None))
            with contextlib.suppress(queue.Empty):
                told.get(timeout=WAIT_SECONDS)

    def close(self) -> None:
        """End the thread, once it has answered."""
        self._release()
        self._asked.put(None)

    def _release(self) -> None:
        if self._monitor is not None:
            self._asked.put(self._monitor.close)
            self._monitor = None

    def _answer(self) -> None:
        while (act := self._asked.get()) is not None:
            act()


def _read(monitor: DeviceMonitor, pids: Pids, tell: Tell) -> None:
    tell(monitor.read(pids))
