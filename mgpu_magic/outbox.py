"""Gathers outcomes of an engine whose steps are short into messages worth their cost.

```
step ── put ──> Outbox ──> one message for all that ended within HOLD_SECONDS
```

What comes after a pause is sent at once, so that steps of an engine that takes longer than that
are told one by one. What is held is lost with a process that is killed meanwhile, and asked
again, as what it was working on is. Imports `messages` and `outcomes` alone.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Self

from mgpu_magic.messages import Outcomes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mgpu_magic.outcomes import Outcome

# A message costs both sides as much as some fifty outcomes; an engine on a device needs more than
# this for a step, and a person sees no such delay.
HOLD_SECONDS = 0.005


class Outbox:
    """Sends outcomes; use it in a `with` block, at whose end nothing is held back any more.

    Args:
        send: Sends a message; from any thread.
    """

    def __init__(self, send: Callable[[Outcomes], None]) -> None:
        self._send = send
        self._lock = threading.Lock()  # of what is held, and of the order of messages
        self._job = 0
        self._held: list[Outcome] = []
        self._sent_at = 0.0
        self._holding = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._tend, name="mgpu-outbox", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed = True
        self._holding.set()
        self._thread.join()
        self.flush()

    def put(self, job: int, outcomes: Iterable[Outcome]) -> None:
        """Send outcomes now or a little later, after those that are held."""
        with self._lock:
            if job != self._job:
                self._flush()
            self._job = job
            self._held += outcomes
            if not self._held:
                return
            if time.monotonic() - self._sent_at >= HOLD_SECONDS:
                self._flush()
            elif not self._holding.is_set():
                self._holding.set()

    def flush(self) -> None:
        """Send what is held."""
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        self._holding.clear()
        if self._held:
            self._send(Outcomes(self._job, tuple(self._held)))
            self._held.clear()
            self._sent_at = time.monotonic()

    def _tend(self) -> None:
        """Send what is held although no further outcome comes: the next step may be a long one."""
        with contextlib.suppress(Exception):  # whoever puts the next one meets it too
            while not self._closed:  # set before `_holding` is, for the last time
                self._holding.wait()
                time.sleep(HOLD_SECONDS)
                self.flush()
