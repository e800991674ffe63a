"""A submitted job, as seen by whoever waits for it.

Imports `presses`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, cast

from mgpu_magic.presses import Presses

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from mgpu_magic.ensemble import Results
    from mgpu_magic.snapshot import Snapshot

LOOK_SECONDS = 1.0
WAKE_SECONDS = 0.25


class Run:
    """A job that was submitted; `await` it, or ask for its `result()`.

    Args:
        stop: Has the session give this run up.
        snapshot: Asks the session how far it is.
    """

    def __init__(self, stop: Callable[[Run], None], snapshot: Callable[[], Snapshot]) -> None:
        self._stop = stop
        self._snapshot = snapshot
        self._future: Future[Results] = Future()
        self._future.set_running_or_notify_cancel()  # who gives up an `await` must not cancel it
        self._final: Snapshot | None = None
        self._outcome: Results | BaseException | None = None
        self._latch = threading.Lock()  # an interrupt of who waits for it leaves it as it is
        self._latch.acquire()

    @property
    def done(self) -> bool:
        """Whether it is over."""
        return self._outcome is not None

    @property
    def snapshot(self) -> Snapshot:
        """How far it is; after its end, the final state."""
        return self._final or self._snapshot()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end, `seconds` at most; returns whether it is over."""
        end = float("inf") if seconds is None else time.monotonic() + seconds
        while not self.done:
            left = end - time.monotonic()
            if left <= 0:
                return False
            if self._latch.acquire(timeout=min(left, LOOK_SECONDS)):
                self._latch.release()
        return True

    def result(self, seconds: float | None = None) -> Results:
        """Wait for the results.

        Raises:
            TimeoutError: It is not over after `seconds`.
            MultiGPUError: The job failed as a whole.
            JobInterrupted: It was stopped; the exception has the results until then.
        """
        if not self.wait(seconds):
            raise TimeoutError(f"not over after {seconds} s: {self._words()}")
        if self.error is not None:
            raise self.error
        return cast("Results", self._outcome)

    def then(self, act: Callable[[Run], None]) -> None:
        """Call `act` with this run once it is over: from the session's thread, or at once."""
        with Presses():  # an interrupt could leave the future's lock taken
            self._future.add_done_callback(lambda _: act(self))

    @property
    def error(self) -> BaseException | None:
        """What `result()` raises, once it is over; None where it raises nothing."""
        return self._outcome if isinstance(self._outcome, BaseException) else None

    def stop(self) -> None:
        """Give up what is not finished. The workers stay loaded."""
        if not self.done:
            self._stop(self)

    def settle(self, outcome: Results | BaseException, final: Snapshot) -> None:
        """What it came to; called once, by the session."""
        self._final = final
        self._outcome = outcome
        self._latch.release()
        if isinstance(outcome, BaseException):
            self._future.set_exception(outcome)
        else:
            self._future.set_result(outcome)

    def _words(self) -> str:
        job = self.snapshot.job
        text = f"{job.done:,} of {job.total:,} prompts"
        if not self.done:
            return f"still running: {text}; .result() waits for it"
        if self.error is None:
            return f"done: {text}; .result() has the results"
        return f"{job.state}: {text}; .result() raises {type(self.error).__name__}"

    def __repr__(self) -> str:
        return f"<{self._words()}>"

    # It stands where the results will be: who takes it for them should be told what it is.

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(f"a run has no {name!r}; it is {self._words()}")

    def __len__(self) -> int:
        raise TypeError(f"a run has no length; it is {self._words()}")

    def __getitem__(self, key: object) -> Any:
        raise TypeError(f"a run has no items; it is {self._words()}")

    def __iter__(self) -> Any:
        raise TypeError(f"a run has no items; it is {self._words()}")

    def __bool__(self) -> bool:
        return True

    def __await__(self) -> Generator[Any, None, Results]:
        return self._awaited().__await__()

    async def _awaited(self) -> Results:
        future = asyncio.wrap_future(self._future)
        try:
            # ipykernel 7 heeds an interrupt of an `await` when something else wakes its loop
            while not future.done():
                await asyncio.wait([future], timeout=WAKE_SECONDS)
            return future.result()
        finally:
            future.cancel()
