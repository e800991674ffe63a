"""How a job went, as a picture: memory, utilisation and speed of each device over the time.

```
GiB  |   /------- cuda:0        legend: a line per device;
 %   |  /~~~~~~~~ cuda:1        shaded: when models were loaded
t/s  | /~~~~~~~~~
     +------------ seconds
```

The one module that imports matplotlib, at its top: so it is itself imported when something is
drawn. It does without pyplot, whose figures are global. The page may be light or dark: no
background, and colours that can be seen on both. Imports `markup` and `snapshot` alone.
"""

from __future__ import annotations

import io
import itertools
from math import nan
from statistics import median
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from mgpu_magic.markup import AMBER, BLUE, GREEN, GREY, RED, VIOLET

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes

    from mgpu_magic.snapshot import DeviceHistory

_INCHES = (9.0, 6.0)
_SHARPNESS = 1.5  # pixels of the picture per pixel of the page
_INK = "#777777"  # of text: the grey that stands out from black as much as from white
_COLOURS = (BLUE, AMBER, GREEN, VIOLET, RED)
_STYLES = ("-", "--", ":")  # the sixth device has the first one's colour, and dashes
_ALL_LOADING = 0.35  # how dark it is where every device loads
_PAUSE = 4  # so many times the usual interval without a reading is a gap


class Picture(Figure):
    """A figure that notebooks show, also where pyplot has not told them how."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        width, height = (self.get_size_inches() * self.dpi).round()
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=_SHARPNESS * self.dpi)
        return file.getvalue(), {"width": int(width), "height": int(height)}


def draw(histories: Sequence[DeviceHistory]) -> Picture:
    """Three axes above each other: memory, utilisation, and output tokens (else prompts) a second.

    Args:
        histories: How it went on each device; each has a point or more.
    """
    figure = Picture(figsize=_INCHES, layout="constrained", facecolor="none")
    memory, busy, speed = figure.subplots(3, sharex=True)
    _prepare(memory, "memory [GiB]")
    _prepare(busy, "busy [%]")
    generates = any(any(history.tokens_per_second) for history in histories)
    _prepare(speed, "tokens/s" if generates else "prompts/s")
    _lines(memory, histories, lambda history: _times(history.used_bytes, 2**-30))
    _lines(busy, histories, lambda history: _times(history.utilisation, 100))
    _lines(
        speed,
        histories,
        lambda history: history.tokens_per_second if generates else history.prompts_per_second,
    )
    busy.set_ylim(0, 105)
    memory.set_ylim(bottom=0)
    speed.set_ylim(bottom=0)
    speed.set_xlabel("seconds since the job began")
    end = max(max(history.seconds) for history in histories)
    speed.set_xlim(0, max(1.0, end, *(span[1] for h in histories for span in h.loading)))
    handles: list[Any] = list(memory.get_lines())
    if _shade((memory, busy, speed), histories):
        handles.append(Patch(color=GREY, alpha=_ALL_LOADING, linewidth=0, label="loading"))
    figure.legend(
        handles=handles, loc="outside right upper", frameon=False, labelcolor=_INK, markerscale=0
    )
    figure.align_ylabels()
    return figure


def _prepare(axes: Axes, label: str) -> None:
    axes.set_facecolor("none")
    axes.set_ylabel(label)
    for part in (axes.xaxis, axes.yaxis):
        part.label.set_color(_INK)
    axes.tick_params(colors=_INK)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.grid(visible=True, color=GREY, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)


def _lines(
    axes: Axes,
    histories: Sequence[DeviceHistory],
    values: Callable[[DeviceHistory], Sequence[float | None]],
) -> None:
    """A line per device; words where nothing is known of any."""
    known = False
    for number, history in enumerate(histories):
        seconds, figures = _with_gaps(history.seconds, values(history))
        known = known or any(figure == figure for figure in figures)
        axes.plot(
            seconds,
            figures,
            label=history.device,
            color=_COLOURS[number % len(_COLOURS)],
            linestyle=_STYLES[number // len(_COLOURS) % len(_STYLES)],
            linewidth=1.6,
            marker=".",
            markevery=_alone(figures),  # else a reading between two gaps is not seen
        )
    if not known:
        axes.text(0.5, 0.5, "n/a", transform=axes.transAxes, color=_INK, ha="center", va="center")


def _with_gaps(
    seconds: Sequence[float], values: Sequence[float | None]
) -> tuple[list[float], list[float]]:
    """Where to draw what: NaN where a value is not known, also where readings were left out."""
    steps = [after - before for before, after in itertools.pairwise(seconds)]
    longest = _PAUSE * median(steps) if steps else 0.0
    at: list[float] = []
    figures: list[float] = []
    for second, value in zip(seconds, values, strict=True):
        if at and second - at[-1] > longest:
            at.append((at[-1] + second) / 2)
            figures.append(nan)
        at.append(second)
        figures.append(nan if value is None else value)
    return at, figures


def _alone(figures: Sequence[float]) -> list[int]:
    """Which figures have no neighbour to be joined with."""
    known = [False, *(figure == figure for figure in figures), False]
    return [i for i in range(len(figures)) if known[i + 1] and not (known[i] or known[i + 2])]


def _shade(every: Sequence[Axes], histories: Sequence[DeviceHistory]) -> bool:
    """Shade when models were loaded; returns whether any was."""
    each = 1 - (1 - _ALL_LOADING) ** (1 / len(histories))
    spans = [span for history in histories for span in history.loading]
    for axes, (start, end) in itertools.product(every, spans):
        axes.axvspan(start, end, color=GREY, alpha=each, linewidth=0, zorder=0)
    return bool(spans)


def _times(values: Sequence[float | None], factor: float) -> list[float | None]:
    return [None if value is None else value * factor for value in values]
