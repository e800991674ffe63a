"""Shows a job, or the devices alone, while they change: what draws never disturbs what runs.

Imports types alone.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from mgpu_magic.presses import Presses
    from mgpu_magic.run import Run
    from mgpu_magic.snapshot import Observer, Snapshot

log = logging.getLogger("mgpu_magic")

REFRESH_SECONDS = 0.25
WATCH_SECONDS = 2.0  # a device at rest changes little, and one at work has a panel of its own


def shown(show: Callable[[Snapshot], None], snapshot: Snapshot) -> bool:
    """Show a snapshot; returns whether that worked. A run does not depend on a display."""
    try:
        show(snapshot)
    except Exception:
        log.exception("the progress cannot be shown any more")
        return False
    return True


def see_through(run: Run, observer: Observer | None, presses: Presses) -> None:
    """Show a job to its end, for which nobody waits for ever after a press.

    Args:
        run: The job.
        observer: Shown it; None: what there is to say at its end is logged.
        presses: Counts them meanwhile, and breaks an observer that hangs.
    """
    while not run.done and not presses.overdue:
        if observer is not None:
            snapshot = run.snapshot
            with presses.breaking():
                observer = observer if shown(observer.update, snapshot) else None
        run.wait(REFRESH_SECONDS)
    if run.done and observer is not None:
        with presses.breaking():
            shown(observer.finish, run.snapshot)
    elif run.done:
        for note in run.snapshot.job.notes:
            log.warning(note)


def follow(run: Run, observer: Observer) -> None:
    """Show a submitted job to its end, from a thread of its own."""

    def show() -> None:
        showing = True
        while not run.wait(REFRESH_SECONDS):
            showing = showing and shown(observer.update, run.snapshot)
        if showing:
            shown(observer.finish, run.snapshot)

    threading.Thread(target=show, name="mgpu-view", daemon=True).start()


def watch(look: Callable[[], Snapshot | None], observer: Observer, over: threading.Event) -> None:
    """Show what `look` gives every two seconds, from a thread of its own.

    Args:
        look: The state now; None: there is nothing to look at any more.
        observer: Shown each state; its `finish` is called at the end.
        over: Set to end it.
    """

    def show() -> None:
        last = None
        while not over.is_set() and (now := look()) is not None:
            if not shown(observer.update, now):
                return
            last = now
            over.wait(WATCH_SECONDS)
        if last is not None:
            shown(observer.finish, last)

    threading.Thread(target=show, name="mgpu-watch", daemon=True).start()
