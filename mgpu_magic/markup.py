"""Pieces of HTML that every notebook front end shows, with or without its style.

Sanitisers decide what is possible. JupyterLab's, for notebooks that are not trusted, drops
`<svg>`, `<style>`, `role` and `aria-*`, and each declaration of a style that it does not know, such
as `clip-path` and anything with `var()`; GitHub drops all styles. So: inline styles alone; a row
is a `div`, so that it is one without its style too; what a colour says is also said by a sign and
a word; all text is in the front end's own colour, and the other colours, for marks, have a
contrast of 3:1 on black and on white.

Imports `snapshot` alone.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from mgpu_magic.snapshot import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BLUE = "#3484d6"
GREEN = "#1f9d61"
AMBER = "#c07c00"
RED = "#d9504a"
VIOLET = "#8e72d8"
GREY = "#808080"

CUT = "overflow:hidden;text-overflow:ellipsis"
TEXT_CHARS = 300

# The colour of text in JupyterLab and Notebook 7, in VS Code, in Colab; elsewhere as around it.
_INK = (
    "var(--jp-content-font-color1,var(--vscode-editor-foreground,"
    "var(--colab-primary-text-color,inherit)))"
)
_FONT = "var(--jp-ui-font-family,var(--vscode-font-family,system-ui,sans-serif))"
_SPARK_HEIGHT = 22
_FEWEST_STEPS = 8  # a curve of two points is not stretched over the whole width


def root(inner: str) -> str:
    """What is shown, in the front end's font and colour of text; its lines do not wrap."""
    return (
        f'<div style="font-size:14px;line-height:1.4;font-family:{_FONT};color:{_INK};'
        "font-variant-numeric:tabular-nums;white-space:nowrap;max-width:1400px;"
        f'padding:4px 0">{inner}</div>'
    )


def row(left: str, right: str = "") -> str:
    """A line with something at its left, cut where it is too long, and at its right."""
    # the space parts the two where styles are dropped
    return (
        '<div style="display:flex;justify-content:space-between;gap:8px">'
        f'<span style="{CUT}">{left}</span> <span>{right}</span></div>'
    )


def ends(left: str, right: str) -> str:
    """A line with something short at its left and at its right."""
    return f'<div>{left} <small style="float:right">{right}</small></div>'


def faint(text: str) -> str:
    """Text of lesser weight."""
    return f'<small style="opacity:.8">{text}</small>'


def mark(sign: str, colour: str) -> str:
    """A sign whose shape and colour say the same as the word after it."""
    return f'<span style="color:{colour}" aria-hidden="true">{sign}</span> '


def bar(parts: Iterable[tuple[float, str]], height: int, spoken: str = "") -> str:
    """A bar of coloured parts of its width.

    Args:
        parts: Size, 0 to 1, and colour of each.
        height: Pixels.
        spoken: Attributes for a screen reader, see `spoken`; none where text says the same.
    """
    inner = "".join(
        f'<div style="width:{100 * min(1.0, size):.1f}%;background:{colour}"></div>'
        for size, colour in parts
        if size > 0
    )
    return (
        f'<div{spoken} style="display:flex;height:{height}px;border-radius:3px;overflow:hidden;'
        f'background:#8883;margin:3px 0">{inner}</div>'
    )


def spoken(label: str, says: str, part: float | None = None) -> str:
    """Attributes of a progress bar.

    Args:
        label: What it measures.
        says: What it shows, in words.
        part: How far it is, 0 to 1; None: nobody knows.
    """
    now = "" if part is None else f' aria-valuenow="{100 * min(1.0, part):.0f}"'
    return f' role="progressbar" aria-label="{label}"{now} aria-valuetext="{says}"'


def hatched(colour: str) -> str:
    """A colour for what goes on without telling how far it is."""
    return f"repeating-linear-gradient(135deg,{colour} 0 5px,#8883 5px 10px)"


def spark(points: Sequence[float], top: float, colour: str) -> str:
    """A small curve over the run, filled; its place alone where there is nothing to draw.

    Args:
        points: Evenly spaced values.
        top: The value at its upper edge.
        colour: Of the area below it.
    """
    shape = ""
    if len(points) > 1 and top > 0:
        # var(), so that a sanitiser that takes the shape away takes the colour away too
        shape = f";background:var(--z,{colour});clip-path:polygon({_outline(points, top)})"
    return f'<div style="height:{_SPARK_HEIGHT}px{shape}"></div>'


def _outline(points: Sequence[float], top: float) -> str:
    """Corners of the area between the curve and the lower edge, which is a line to its end."""
    floor = _SPARK_HEIGHT - 1
    steps = max(len(points) - 1, _FEWEST_STEPS)
    ys = [round(floor * (1 - min(1.0, max(0.0, value / top)))) for value in points]
    ends = range(1, len(ys) - 1)
    turns = [0, *(i for i in ends if not ys[i - 1] == ys[i] == ys[i + 1]), len(ys) - 1]
    curve = [f"{100 * i / steps:.0f}% {ys[i]}px" for i in turns]
    if turns[-1] < steps:
        curve.append(f"{100 * turns[-1] / steps:.0f}% {floor}px")
    return ",".join(["0 100%", *curve, f"100% {floor}px", "100% 100%"])


def safe(text: str, width: int = TEXT_CHARS) -> str:
    """Text from elsewhere, on one line, at most so long, as text."""
    return escape(one_line(text, width))
