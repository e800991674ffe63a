"""Shows snapshots: an ipywidgets panel in a notebook, plain text everywhere else.

```
open_view() ─> SafeView ─┬─> Panel ──── cards, folds ─> three HTML widgets
                         ├─> TextView ─ render_text ──> stdout     where no panel works
                         └─> Silent                                where nothing works
```

A run never depends on a display: whatever a view raises, the next one takes over. IPython and
ipywidgets are imported when a panel is shown, and by no other module but `magic`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TextIO
from unicodedata import east_asian_width

from mgpu_magic.cards import compact_html, leaner, render_html
from mgpu_magic.clicks import prompt_button
from mgpu_magic.folds import BODIES_CLASS, HEADS, HEADS_CLASS, bodies_html, final_html
from mgpu_magic.snapshot import device_line, job_line, one_line, render_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mgpu_magic.snapshot import Observer, Snapshot

__all__ = [
    "Panel",
    "SafeView",
    "Silent",
    "TextView",
    "in_notebook",
    "open_background_view",
    "open_view",
    "render_html",
]

_DRAW_SECONDS = 0.25
_OFFER_SECONDS = 2.0  # a front end has its subshell by then
_FOLD_SECONDS = 2.0  # who reads a log does not want it to change faster
_FINAL_BYTES = 19_900  # HTML and text together
_WORDS_BYTES = 6_000  # of them, kept for failures and logs
_TEXT_CHARS = 300


class Panel:
    """An observer that shows the panel under the running cell.

    Few models, all of ipywidgets' core: a box, three HTML widgets, one layout and one style; a
    button where there is something that it can do while the kernel is free.

    Args:
        clock: Seconds that never go back.
        stop: Called by a click on the button; None: no button.
        button: What stands on it.
        counted: Whether `closed` shall know if it is seen.
        blocking: The kernel is busy meanwhile: no button, unless its clicks arrive nevertheless.

    Attributes:
        widget: What is displayed.
        main: The job and its devices.
        bodies: Failures and logs.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        stop: Callable[[], object] | None = None,
        button: str = "Stop",
        counted: bool = False,
        blocking: bool = False,
    ) -> None:
        import ipywidgets

        # ipywidgets' switch for counting views has no public name.
        self.main: Any = ipywidgets.HTML(_view_count=0 if counted else None)
        shared = {"layout": self.main.layout, "style": self.main.style}
        self._heads: Any = ipywidgets.HTML(HEADS, _dom_classes=[HEADS_CLASS], **shared)
        self.bodies: Any = ipywidgets.HTML(_dom_classes=[BODIES_CLASS], **shared)
        rows = [self.main, self._heads, self.bodies]
        self._button: Any = None
        self._stop = stop
        self._traits = {"description": button, "tooltip": button}
        self._offer_at = float("inf")
        if stop is not None and blocking:
            self._offer_at = clock() + _OFFER_SECONDS
        elif stop is not None:
            self._button = prompt_button(**self._traits) or ipywidgets.Button(**self._traits)
            self._button.on_click(self._clicked)
            rows.append(self._button)
        self.widget: Any = ipywidgets.VBox(rows, layout=self.main.layout)
        self._clock = clock
        self._drawn_at = self._folds_at = float("-inf")
        self._seen = False
        self._display: Any = None

    def show(self, snapshot: Snapshot) -> None:
        """Display it as output of the cell that runs now.

        What a notebook holds that is saved before the end is the state now, as ordinary output.
        """
        from IPython.display import display

        # not the widget itself, which before ipywidgets 8 displays itself without the display id
        view = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        bundle = {
            "application/vnd.jupyter.widget-view+json": view,
            "text/html": render_html(snapshot),
            "text/plain": render_text(snapshot),
        }
        self._display = display(bundle, raw=True, display_id=True)

    def update(self, snapshot: Snapshot) -> None:
        """Show how it is getting on: at most one message four times a second."""
        now = self._clock()
        if now - self._drawn_at < _DRAW_SECONDS:
            return
        if now >= self._offer_at:
            self._offer_at = float("inf")
            self._offer()
        if self._display is None:
            self.show(snapshot)
        elif now - self._folds_at >= _FOLD_SECONDS:
            self._folds_at = now
            if self._draw(self.bodies, bodies_html(snapshot)):
                return
        self._draw(self.main, render_html(snapshot))

    def finish(self, snapshot: Snapshot) -> None:
        """Show the final state, and leave it in the notebook as ordinary output.

        A saved notebook holds what was displayed, which of a widget is its empty beginning.
        """
        text = render_text(snapshot)
        room = _FINAL_BYTES - len(text.encode())
        html = final_html(_fitting(snapshot, room), snapshot, room)
        if self._display is None:
            self.show(snapshot)
        self._draw(self.main, html)
        self._display.update({"text/html": html, "text/plain": text}, raw=True)
        # The rest is part of the final state now. A box must not name children that are gone: a
        # front end that loads it anew, as Voila does, would load none of the kernel's widgets.
        self.widget.children = (self.main,)
        for part in (self._heads, self.bodies, self._button):
            if part is not None:
                part.close()

    @property
    def closed(self) -> bool:
        """Whether it was seen, and is in no front end any more: its output was cleared."""
        views = self.main._view_count
        self._seen = self._seen or bool(views)
        return self._seen and views == 0

    def _offer(self) -> None:
        """Add the button, hidden until the front end tells of it: then clicks arrive too."""
        # ipywidgets' switch for counting views, again
        button = prompt_button(**self._traits, layout={"display": "none"}, _view_count=0)
        if button is not None:
            self._button = button
            button.on_click(self._clicked)
            button.observe(self._heard, "_view_count")
            self.widget.children = (*self.widget.children, button)

    def _heard(self, change: Any) -> None:
        change.owner.unobserve(self._heard, "_view_count")
        change.owner.layout.display = None

    def _clicked(self, button: Any) -> None:
        button.disabled = True
        if self._stop is not None:
            self._stop()

    def _draw(self, part: Any, html: str) -> bool:
        """Give a widget its HTML; returns whether that was new."""
        if part.comm is None:
            raise RuntimeError("its connection to the notebook is closed")
        self._drawn_at = self._clock()
        if html == part.value:
            return False
        part.value = html
        return True


def _fitting(snapshot: Snapshot, room: int) -> str:
    """The job and its devices, as fine as leaves room for the words that there are."""
    has_words = bool(snapshot.job.failures or snapshot.job.state == "failed")
    most = room - _WORDS_BYTES * has_words
    for view in leaner(snapshot):
        html = render_html(view)
        if len(html.encode()) <= most:
            return html
    return compact_html(view)


class TextView:
    """An observer that prints: in place on a terminal, a line per change anywhere else.

    Args:
        stream: Where to; None: what `sys.stdout` is then.
        clock: Seconds that never go back.
        opening: A line to begin with.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        opening: str = "",
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._opening = opening
        self._drawn_at = float("-inf")
        self._lines = 0
        self._said: dict[str, object] = {}

    def update(self, snapshot: Snapshot) -> None:
        """Redraw on a terminal, at most four times a second; elsewhere say what is new."""
        if not self._in_place:
            self._say_changes(snapshot)
        elif self._clock() - self._drawn_at >= _DRAW_SECONDS:
            columns, rows = self._size()
            self._redraw(_fitted(snapshot, columns)[: rows - 1])

    def finish(self, snapshot: Snapshot) -> None:
        """Print the final state."""
        if self._in_place:
            self._redraw(_fitted(snapshot, self._size().columns))
        else:
            self._say(render_text(snapshot, 120))

    @property
    def _out(self) -> TextIO:
        return self._stream or sys.stdout

    @property
    def _in_place(self) -> bool:
        return self._out.isatty() and os.environ.get("TERM") != "dumb"

    def _size(self) -> os.terminal_size:
        """That of the stream's terminal, which need not be the one of `sys.stdout`."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            size = os.get_terminal_size(self._out.fileno())
            if size.columns and size.lines:
                return size
        return shutil.get_terminal_size()

    def _say(self, text: str) -> None:
        if self._opening:
            text, self._opening = f"{self._opening}\n{text}", ""
        # a surrogate, or a letter that the stream cannot encode, must not end the view
        encoding = getattr(self._out, "encoding", None) or "utf-8"
        self._out.write(text.encode(encoding, "replace").decode(encoding) + "\n")
        self._out.flush()

    def _redraw(self, lines: Sequence[str]) -> None:
        up = f"\x1b[{self._lines}A" if self._lines else ""
        # before it is written: what an interrupt leaves in the stream's buffer is printed next time
        self._lines, self._drawn_at = len(lines), self._clock()
        self._say(f"{up}\r\x1b[J" + "\n".join(lines))

    def _say_changes(self, snapshot: Snapshot) -> None:
        job = snapshot.job
        for note in job.notes:
            self._say_once(note, True, note)
        for device in snapshot.devices:
            if worker := device.worker:
                state = worker.phase, worker.model
                self._say_once(device.label, state, device_line(device))
        if job.done:
            self._say_once("job", 10 * job.done // max(1, job.total), job_line(job))

    def _say_once(self, subject: str, state: object, line: str) -> None:
        if self._said.get(subject) != state:
            self._said[subject] = state
            self._say(line)


def _fitted(snapshot: Snapshot, columns: int) -> list[str]:
    """Lines that a terminal does not wrap, also where letters are two columns wide."""
    lines = render_text(snapshot, columns - 1).splitlines()
    widths = ((2 if east_asian_width(char) in "WF" else 1 for char in line) for line in lines)
    fitting = (sum(end < columns for end in accumulate(each)) for each in widths)
    return [line[:count] for line, count in zip(lines, fitting, strict=True)]


class Silent:
    """An observer that shows nothing."""

    def update(self, snapshot: Snapshot) -> None:
        """Show nothing."""

    def finish(self, snapshot: Snapshot) -> None:
        """Show nothing."""


class SafeView:
    """An observer that draws on the first view that works; none of their errors gets out.

    Args:
        make: Makes the view to begin with, when there is something to show.
        quiet: Say only once, where it does not work at all, that there is none: what is printed
            later would stand in another cell.
    """

    def __init__(self, make: Callable[[], Observer], *, quiet: bool = False) -> None:
        self._make = make
        self._quiet = quiet
        self._view: Observer | None = None

    def update(self, snapshot: Snapshot) -> None:
        """Show how it is getting on."""
        self._draw(lambda view: view.update(snapshot))

    def finish(self, snapshot: Snapshot) -> None:
        """Show the final state."""
        self._draw(lambda view: view.finish(snapshot))

    def _draw(self, draw: Callable[[Observer], None]) -> None:
        try:
            if self._view is None:
                self._view = self._make()
            draw(self._view)
        except Exception as error:  # noqa: BLE001  # displays are foreign code; the run goes on
            self._fall_back(error)
            self._draw(draw)

    def _fall_back(self, error: Exception) -> None:
        reason = one_line(f"{type(error).__name__}: {error}", _TEXT_CHARS)
        if self._quiet:
            if self._view is None:
                _say_background(f"no panel ({reason})")
            self._view = Silent()
        elif isinstance(self._view, TextView):
            self._view = Silent()
        else:
            self._view = TextView(opening=f"no panel ({reason}); progress is printed instead")


def open_view(stop: Callable[[], object] | None = None) -> Observer:
    """The view of a running cell: a panel in a notebook, text elsewhere.

    Args:
        stop: Ends the run; a button that does so is shown if clicks arrive while the cell runs.
    """
    return SafeView(partial(Panel, stop=stop, blocking=True) if in_notebook() else TextView)


def open_background_view(stop: Callable[[], object]) -> Observer:
    """The view of a job that goes on after its cell: a panel with a Stop button, or one line."""
    if in_notebook():
        return SafeView(partial(Panel, stop=stop), quiet=True)
    _say_background("running in the background")
    return Silent()


def _say_background(what: str) -> None:
    print(f"{what}; %multigpu status shows how far it is, %multigpu stop ends it")  # noqa: T201  # STYLE.md: the text view's


def in_notebook() -> bool:
    """Whether there is a kernel, and so a front end that shows widgets."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None
