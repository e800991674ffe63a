"""Runs that are over but for the journal, which is still being written to the disk.

Not thread-safe: the session's loop alone calls it. Imports `errors` alone, else types.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mgpu_magic.errors import JobInterrupted

if TYPE_CHECKING:
    from mgpu_magic.ensemble import Results
    from mgpu_magic.journal import Journal
    from mgpu_magic.loop import Loop
    from mgpu_magic.run import Run
    from mgpu_magic.snapshot import Snapshot

END_SECONDS = 60.0  # for what is left to write, on a slow disk
STOP_SECONDS = 4.0  # the same where the user waits for the stop; less than `presses` waits


class Endings:
    """Hands the runs of a session what they came to.

    Args:
        loop: The session's loop.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._open: dict[int, tuple[Journal, Run, Results | BaseException, Snapshot]] = {}

    def hand_out(
        self,
        number: int,
        journal: Journal | None,
        run: Run,
        outcome: Results | BaseException,
        final: Snapshot,
    ) -> None:
        """Settle a run: at once, or when its journal is on the disk or late.

        Args:
            number: Number of the job within the session.
            journal: Its journal, if any.
            run: What waits for it.
            outcome: What it came to.
            final: Its last state.
        """
        if journal is None:
            run.settle(outcome, final)
            return
        self._open[number] = journal, run, outcome, final
        settle = partial(self._settle, number)  # so that a timer holds no results
        journal.end(partial(self._loop.post, settle))
        stopped = isinstance(outcome, JobInterrupted)
        self._loop.later(STOP_SECONDS if stopped else END_SECONDS, settle)

    def close(self) -> None:
        """Wait for the journals, and settle whoever waits for them; not from the loop."""
        for number, (journal, *_) in list(self._open.items()):
            journal.wait(STOP_SECONDS)
            self._loop.post(partial(self._settle, number))

    def _settle(self, number: int) -> None:
        if number in self._open:  # else it was late
            journal, run, outcome, final = self._open.pop(number)
            notes = tuple(dict.fromkeys((*final.job.notes, *journal.notes)))
            run.settle(outcome, replace(final, job=replace(final.job, notes=notes)))
