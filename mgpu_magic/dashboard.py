"""Shows snapshots: an ipywidgets panel in a notebook, plain text everywhere else.

```
open_view() ─> SafeView ─┬─> Panel ──── render_html ─> one HTML widget
                         ├─> TextView ─ render_text ─> stdout     where no panel works
                         └─> Silent                               where nothing works
```

A run never depends on a display: whatever a view raises, the next one takes over. IPython and
ipywidgets are imported when a panel is shown, and by no other module but `magic`.
"""

from __future__ import annotations

import shutil
import sys
import time
from html import escape
from typing import TYPE_CHECKING, Any, TextIO

from mgpu_magic.snapshot import (
    device_line,
    job_figures,
    job_line,
    memory_text,
    model_basename,
    one_line,
    percent_text,
    phase_text,
    render_text,
    worker_speed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mgpu_magic.snapshot import DeviceView, JobView, Observer, Snapshot, WorkerView

_DRAW_SECONDS = 0.25
_TEXT_CHARS = 300
_MESSAGE_CHARS = 120  # on the card; the whole message is its tooltip

# JupyterLab's theme where there is one; the values behind the commas suit light and dark alike.
_INK = "var(--jp-content-font-color1,var(--vscode-foreground,inherit))"
_BLUE = "var(--jp-brand-color1,#2b8ae0)"
_GREEN = "var(--jp-success-color1,#2e9e5b)"
_AMBER = "var(--jp-warn-color1,#d98200)"
_RED = "var(--jp-error-color1,#e0453f)"
_GREY = "#888"
_FAINT = "opacity:.7"
_CUT = "overflow:hidden;text-overflow:ellipsis;white-space:nowrap"

_PHASE_COLOURS = {
    "running": _BLUE,
    "idle": _GREEN,
    "stopped": _GREY,
    "lost": _RED,
    "failed": _RED,
}
_JOB_COLOURS = {"running": _BLUE, "done": _GREEN, "interrupted": _AMBER, "failed": _RED}


# --- as HTML ---------------------------------------------------------------------------------


def render_html(snapshot: Snapshot) -> str:
    """The job as a header and each device as a card.

    Inline styles alone, so that the sanitisers of notebook viewers leave it whole; all text from
    elsewhere (names of models and devices, errors, notes) is escaped.
    """
    job = snapshot.job
    header = "" if job.state == "new" else _header(job)
    cards = "".join(_card(device) for device in snapshot.devices)
    notes = "".join(_faint(_safe(note)) for note in job.notes)
    return (
        f'<div style="font:13px/1.5 var(--jp-ui-font-family,system-ui,sans-serif);color:{_INK};'
        f'font-variant-numeric:tabular-nums;max-width:1200px;padding:4px 0">{header}'
        '<div style="display:grid;gap:8px;margin:8px 0;'
        f'grid-template-columns:repeat(auto-fit,minmax(210px,1fr))">{cards}</div>{notes}</div>'
    )


def _header(job: JobView) -> str:
    share = job.done / job.total if job.total else 1.0
    failed = job.failed / job.total if job.total else 0.0
    # a percentage that stands at 0 while models load says nothing; the seconds do
    percent = f" ({percent_text(share)})" if job.done else ""
    state = f"{_dot(_JOB_COLOURS.get(job.state, _GREY))}<b>{job.state.capitalize()}</b>"
    count = f"{job.done:,} of {job.total:,} prompts{percent}"
    bar = _bar("prompts of the job", 6, [(share - failed, _BLUE), (failed, _RED)])
    return _row(f"{state} &nbsp;{count}", " · ".join(job_figures(job))) + bar


def _card(device: DeviceView) -> str:
    name = _safe(device.name)
    title = (
        f'<div style="{_CUT}" title="{name}"><b>{_safe(device.label)}</b> &nbsp;'
        f'<span style="{_FAINT}">{name.removeprefix("NVIDIA ")}</span></div>'
    )
    work = f"<div>{_dot(_GREY)}no worker</div>" if device.worker is None else _work(device.worker)
    return (
        '<div style="display:flex;flex-direction:column;padding:8px 10px;'
        f'border:1px solid #8884;border-radius:6px;background:#8881">{title}{work}'
        f'<div style="margin-top:auto;padding-top:4px">{_sensors(device)}</div></div>'
    )


def _work(worker: WorkerView) -> str:
    full = _safe(worker.model)
    parts = [
        _row(_dot(_PHASE_COLOURS.get(worker.phase, _AMBER)) + phase_text(worker)),
        f'<div style="{_CUT}" title="{full}">{_safe(model_basename(worker.model))}</div>',
    ]
    if worker.message:
        short, whole = _safe(worker.message, _MESSAGE_CHARS), _safe(worker.message)
        parts.append(
            f'<div style="color:{_RED};overflow-wrap:anywhere" title="{whole}">{short}</div>'
        )
    if worker.total:
        own, others = worker.done / worker.total, worker.model_done - worker.done
        bar = [(own, _BLUE), (others / worker.total, f"{_BLUE};opacity:.35")]
        count = f"{worker.done:,} of {worker.total:,}"
        parts.append(_bar("prompts of its model", 4, bar))
        parts.append(_row(count, worker_speed(worker)))
    counts = {"running": worker.running, "waiting": worker.waiting, "failed": worker.failed}
    if queue := [f"{count:,} {word}" for word, count in counts.items() if count]:
        parts.append(_faint(" · ".join(queue)))
    return "".join(parts)


def _sensors(device: DeviceView) -> str:
    reading = device.reading
    if reading.lost:
        return _row(f"{_dot(_RED)}the driver no longer answers")
    bar = ""
    if reading.used_bytes is not None and reading.total_bytes:
        bar = _bar("memory", 4, [(reading.used_bytes / reading.total_bytes, _GREY)])
    more = []
    if reading.temperature is not None:
        more.append(f"{reading.temperature} °C")
    if reading.power_watts is not None:
        more.append(f"{reading.power_watts:.0f} W")
    figures = _row(memory_text(reading), f"{percent_text(reading.utilisation)} busy")
    return bar + figures + (_faint(" · ".join(more)) if more else "")


def _row(left: str, right: str = "") -> str:
    # a float, since it goes below where the card is too narrow for both
    return (
        f'<div>{left}<span style="float:right">{right}</span></div>'
        if right
        else f"<div>{left}</div>"
    )


def _faint(text: str) -> str:
    return f'<div style="{_FAINT}">{text}</div>'


def _dot(colour: str) -> str:
    return f'<span aria-hidden="true" style="color:{colour}">●</span> '


def _bar(label: str, height: int, parts: Sequence[tuple[float, str]]) -> str:
    widths = [min(100.0, max(0.0, 100 * part)) for part, _ in parts]
    filled = min(100.0, sum(widths))
    inner = "".join(
        f'<div style="width:{width:.1f}%;background:{colour}"></div>'
        for width, (_, colour) in zip(widths, parts, strict=True)
        if width
    )
    return (
        f'<div role="progressbar" aria-label="{label}" aria-valuenow="{filled:.0f}" '
        f'style="display:flex;height:{height}px;border-radius:3px;overflow:hidden;'
        f'background:#8883;margin:4px 0 2px">{inner}</div>'
    )


def _safe(text: str, width: int = _TEXT_CHARS) -> str:
    return escape(one_line(text, width))


# --- observers -------------------------------------------------------------------------------


class Panel:
    """An observer that shows the panel under the running cell.

    Args:
        clock: Seconds that never go back.

    Attributes:
        widget: The one widget, whose value is the panel.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        import ipywidgets

        self.widget: Any = ipywidgets.HTML()
        self._clock = clock
        self._drawn_at = float("-inf")
        self._display: Any = None

    def show(self) -> None:
        """Display it as output of the cell that runs now."""
        from IPython.display import display

        # not the widget itself, which before ipywidgets 8 displays itself without the display id
        view = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        bundle = {"application/vnd.jupyter.widget-view+json": view, "text/plain": "the panel"}
        self._display = display(bundle, raw=True, display_id=True)

    def update(self, snapshot: Snapshot) -> None:
        """Show how it is getting on, at most four times a second."""
        if self._clock() - self._drawn_at >= _DRAW_SECONDS:
            self._draw(render_html(snapshot))

    def finish(self, snapshot: Snapshot) -> None:
        """Show the final state, and leave it in the notebook as ordinary output.

        A saved notebook holds what was displayed, which of a widget is its empty beginning.
        """
        html = render_html(snapshot)
        self._draw(html)
        self._display.update({"text/html": html, "text/plain": render_text(snapshot)}, raw=True)

    def _draw(self, html: str) -> None:
        if self._display is None:
            self.show()
        if self.widget.comm is None:
            raise RuntimeError("its connection to the notebook is closed")
        self._drawn_at = self._clock()
        if html != self.widget.value:
            self.widget.value = html


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
        if not self._out.isatty():
            self._say_changes(snapshot)
        elif self._clock() - self._drawn_at >= _DRAW_SECONDS:
            self._redraw(snapshot)

    def finish(self, snapshot: Snapshot) -> None:
        """Print the final state."""
        if self._out.isatty():
            self._redraw(snapshot)
        else:
            self._say(render_text(snapshot, 120))

    @property
    def _out(self) -> TextIO:
        return self._stream or sys.stdout

    def _say(self, text: str) -> None:
        if self._opening:
            text, self._opening = f"{self._opening}\n{text}", ""
        # a surrogate, or a letter that the stream cannot encode, must not end the view
        encoding = getattr(self._out, "encoding", None) or "utf-8"
        self._out.write(text.encode(encoding, "replace").decode(encoding) + "\n")
        self._out.flush()

    def _redraw(self, snapshot: Snapshot) -> None:
        text = render_text(snapshot, shutil.get_terminal_size().columns - 1)
        up = f"\x1b[{self._lines}A" if self._lines else ""
        self._say(f"{up}\r\x1b[J{text}")
        self._lines, self._drawn_at = text.count("\n") + 1, self._clock()

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
    """

    def __init__(self, make: Callable[[], Observer]) -> None:
        self._make = make
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
        if isinstance(self._view, TextView):
            self._view = Silent()
        else:
            reason = one_line(f"{type(error).__name__}: {error}", _TEXT_CHARS)
            self._view = TextView(opening=f"no panel ({reason}); progress is printed instead")


def open_view() -> Observer:
    """The view for where we are: a panel in a notebook, text elsewhere."""
    return SafeView(Panel if _in_notebook() else TextView)


def _in_notebook() -> bool:
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None
