"""Prints the table of faults: `python -m faults [ROW ...]`, as `make faults` does."""

from __future__ import annotations

import os
import sys
import time
from string import ascii_lowercase
from typing import TYPE_CHECKING

from faults.pool import carry_out
from faults.struck import PHASES
from faults.table import ROWS

if TYPE_CHECKING:
    from faults.cell import Finding
    from faults.pool import Cell


def main(names: list[str]) -> int:
    """Carry out all cells, or those of some rows; returns how many failed."""
    rows = [row for row in ROWS.values() if not names or any(name in row.name for name in names)]
    cells = [(row.name, phase) for row in rows for phase in row.phases]
    began = time.monotonic()
    findings = carry_out(cells, _tell)
    bad = sum(not finding.good for finding in findings.values())
    reasons = list(dict.fromkeys(why for row in rows for why in row.senseless.values()))
    notes = {
        reason: f"- {letter}" for reason, letter in zip(reasons, ascii_lowercase, strict=False)
    }
    table = [["", *PHASES]]
    for row in rows:
        blank = {phase: notes[reason] for phase, reason in row.senseless.items()}
        table.append(
            [
                row.name,
                *(blank.get(phase) or _text(findings[row.name, phase]) for phase in PHASES),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for texts in table:
        cells_ = (f"{text:{width}}" for text, width in zip(texts, widths, strict=True))
        print("  ".join(cells_).rstrip())
    print(
        "\n40/41 ↻2: answers of prompts, restarts of workers; then seconds; what was left, if any"
    )
    for reason, note in notes.items():
        print(f"{note}: {reason}")
    print(
        f"\n{len(cells) - bad} of {len(cells)} cells as promised, in "
        f"{time.monotonic() - began:.0f} s; load of the machine {os.getloadavg()[0]:.1f}"
    )
    return bad


def _tell(cell: Cell, finding: Finding) -> None:
    print(f"{' · '.join(cell)}: {_text(finding)}", file=sys.stderr, flush=True)
    for line in (*finding.left, *finding.error.splitlines()[-12:]):
        print(f"    {line[:300]}", file=sys.stderr, flush=True)


def _text(finding: Finding) -> str:
    outcome = "MISSED" if finding.missed else finding.outcome
    left = f", {len(finding.left)} LEFT" if finding.left else ""
    return f"{outcome}, {finding.seconds:.1f} s{left}"


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
