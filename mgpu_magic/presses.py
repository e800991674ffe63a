"""Ctrl-C and the stop button, counted where a KeyboardInterrupt would do harm.

```
 SIGINT ──> main thread, between any two instructions ──> count ──> act: posts to a loop
                                                            └────> raised by the block's end
```

Python raises a KeyboardInterrupt wherever its main thread is: with a lock taken that nobody lets
go then, with a widget half shown. Within the block of a `Presses` a press asks for the end, the
block comes to it in order, and then one error is raised. Imports nothing of the package.
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, TracebackType

STOP_SECONDS = 4.5  # from the first press to the end of the block, whatever hangs
HANG_SECONDS = 1.0  # of foreign code, which a press breaks then


class Presses:
    """Counts the presses while its block runs, and raises one KeyboardInterrupt at its end.

    A press is what the handler that was there answers with a KeyboardInterrupt, as Python's own
    does; one of an event loop or of the user may do something else, and goes on to do it. Signals
    reach the main thread alone: in others, and in a block within a block, nothing is counted.

    Args:
        act: Called with the count, at each press, between any two instructions: it may do no more
            than post.
        error: What to raise for them.

    Attributes:
        count: How many there were.
    """

    def __init__(
        self,
        act: Callable[[int], object] = lambda count: None,
        error: Callable[[], KeyboardInterrupt] = KeyboardInterrupt,
    ) -> None:
        self.count = 0
        self._act = act
        self._error = error
        self._before: Any = None
        self._overdue_at = self._hangs_at = float("inf")

    def __enter__(self) -> Presses:
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if callable(before):
                self._before = before
                signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        quiet = isinstance(error, KeyboardInterrupt | SystemExit)
        held = self._error() if self.count and not quiet else None
        if self._before is not None:
            try:
                signal.signal(signal.SIGINT, self._before)
            except KeyboardInterrupt:  # it is a function of Python's, which goes on from there
                self.count += 1
        if self.count and not quiet:
            raise held or self._error() from error

    @property
    def overdue(self) -> bool:
        """Whether the block should have come to its end after a press."""
        return time.monotonic() >= self._overdue_at

    @contextmanager
    def breaking(self, seconds: float = HANG_SECONDS) -> Iterator[None]:
        """Around foreign code: after so long a press raises a KeyboardInterrupt in it as well."""
        self._hangs_at = time.monotonic() + seconds
        try:
            yield
        finally:
            self._hangs_at = float("inf")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        try:
            self._before(number, frame)
        except KeyboardInterrupt:
            hangs = now >= min(self._overdue_at, self._hangs_at)
            if not self.count:
                self._overdue_at = now + STOP_SECONDS
            self.count += 1
            self._act(self.count)
            if hangs and not _finalizes(frame):  # Python prints what is raised there, and goes on
                raise


def _finalizes(frame: FrameType | None) -> bool:
    """Whether this is called by the garbage collector, as is likely where it takes long."""
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if frame.f_code.co_name == "__del__" or module in ("_weakrefset", "weakref"):
            return True
        frame = frame.f_back
    return False
