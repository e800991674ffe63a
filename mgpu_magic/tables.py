"""Small tables for a terminal and for a notebook, from any text.

Text of users and models is shown as it is, on one line and clipped; what a terminal or a page
would obey (control characters, markup, lone surrogates) is shown in words instead. No colours of
its own: a table is as readable on a dark page as on a light one.
Pure. Imports nothing of the package.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_TABLE = "border-collapse:collapse;margin:4px 0"
_CELL = "text-align:left;vertical-align:top;padding:2px 12px 2px 0"
_HEAD = f"{_CELL};border-bottom:1px solid var(--jp-border-color2,currentColor)"


@dataclass(frozen=True, slots=True)
class Table:
    """Lines and rows to show.

    Attributes:
        headlines: Lines above the table.
        header: Names of the columns.
        rows: Cells, as many as the header has; without rows only the headlines are shown.
    """

    headlines: Sequence[str]
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        """Aligned columns for a terminal."""
        lines = list(self.headlines)
        if self.rows:
            table = [self.header, *self.rows]
            widths = [max(map(len, column)) for column in zip(*table, strict=True)]
            for cells in table:
                padded = map(str.ljust, cells, widths)
                lines.append("  ".join(padded).rstrip())
        return "\n".join(lines)

    def html(self) -> str:
        """The same for a notebook, with inline styles alone: those survive sanitising."""
        parts = [f"<div>{escape(line)}</div>" for line in self.headlines]
        if self.rows:
            parts.append(f'<table style="{_TABLE}"><tr>')
            parts += [f'<th style="{_HEAD}">{escape(name)}</th>' for name in self.header]
            for cells in self.rows:
                parts.append("</tr><tr>")
                parts += [f'<td style="{_CELL}">{escape(cell)}</td>' for cell in cells]
            parts.append("</tr></table>")
        return "".join(parts)


def clipped(text: str, width: int) -> str:
    """One line of at most `width` characters that can be encoded and printed anywhere."""
    start = text[: 4 * width]  # enough of it, however long the text
    line = "".join(map(_visible, " ".join(start.split())))
    return line if len(line) <= width and start == text else line[: width - 1] + "…"


def figure(value: float | None, spec: str, *, unit: float = 1) -> str:
    """`value / unit` by a format specification; `"n/a"` for None."""
    return "n/a" if value is None else format(value / unit, spec)


def preview(count: int, *, head: int, tail: int) -> list[int | None]:
    """Indices of the rows to show of `count`; None stands for those left out."""
    if count <= head + tail:
        return list(range(count))
    return [*range(head), None, *range(count - tail, count)]


def _visible(character: str) -> str:
    if unicodedata.category(character) in {"Cc", "Cs"}:
        return repr(character)[1:-1]
    return character
