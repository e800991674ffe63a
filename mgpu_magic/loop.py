"""A thread that owns state: others hand it functions to call, one after the other.

Imports `errors` alone.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import os
import queue
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from mgpu_magic.errors import MultiGPUError, SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

log = logging.getLogger("mgpu_magic")


class Loop:
    """Calls what it is given, in order, in a thread of its own.

    Args:
        name: Name of the thread.
        on_error: Called in that thread with an error that nobody expected.
    """

    def __init__(self, name: str, on_error: Callable[[Exception], None]) -> None:
        self._on_error = on_error
        self._inbox: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._closed = False
        self._owner = os.getpid()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def post(self, act: Callable[[], object]) -> None:
        """Have `act` called; returns at once. A signal handler may call it."""
        self._inbox.put(act)

    def call(self, act: Callable[[], T]) -> T:
        """Have `act` called; returns or raises what it does.

        Raises:
            SpecError: The loop is closed, or not of this process.
        """
        if self._closed:
            raise SpecError("this session is closed; make a new one")
        if os.getpid() != self._owner:  # a fork has no such thread
            raise SpecError("this session is of another process, our parent; make a new one")
        answer: Future[T] = Future()
        ready: queue.SimpleQueue[None] = queue.SimpleQueue()

        def answered() -> None:
            try:
                answer.set_result(act())
            except MultiGPUError as error:
                answer.set_exception(error)
            except Exception as error:
                answer.set_exception(error)
                raise
            finally:
                ready.put(None)

        self.post(answered)
        ready.get()  # unlike the future's own wait, an interrupt leaves no lock taken in this one
        return answer.result()

    def later(self, seconds: float, act: Callable[[], object]) -> None:
        """From its own thread: have `act` called after that time."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), act))

    def close(self) -> None:
        """End the thread once it has called what is there."""
        self._closed = True
        self._inbox.put(None)

    def _run(self) -> None:
        while (act := self._next()) is not None:
            try:
                act()
            except Exception as error:  # whoever waits must not wait for ever
                log.exception("%s failed", threading.current_thread().name)
                self._on_error(error)

    def _next(self) -> Callable[[], object] | None:
        while True:
            wait = self._timers[0][0] - time.monotonic() if self._timers else None
            if wait is not None and wait <= 0:  # first: an inbox may never be empty
                return heapq.heappop(self._timers)[2]
            with contextlib.suppress(queue.Empty):
                return self._inbox.get(timeout=wait)
