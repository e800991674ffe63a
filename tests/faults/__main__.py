"""Prints the table of faults: `python -m faults [ROW ...]`, as `make faults` does."""

from __future__ import annotations

import os
import sys
import time
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
    bad = {cell: finding for cell, finding in findings.items() if not finding.good}
    width = max(len(row.name) for row in rows)
    print(f"{'':{width}}", *(f"{phase:24}" for phase in PHASES), sep="  ")
    for row in rows:
        texts = (_text(findings.get((row.name, phase))) for phase in PHASES)
        print(f"{row.name:{width}}", *(f"{text:24}" for text in texts), sep="  ")
    print(
        f"{len(cells) - len(bad)} of {len(cells)} cells as promised, in "
        f"{time.monotonic() - began:.0f} s; load of the machine {os.getloadavg()[0]:.1f}"
    )
    return len(bad)


def _tell(cell: Cell, finding: Finding) -> None:
    print(f"{' · '.join(cell)}: {_text(finding)}", file=sys.stderr, flush=True)
    for line in (*finding.left, *finding.error.splitlines()[-12:]):
        print(f"    {line[:300]}", file=sys.stderr, flush=True)


def _text(finding: Finding | None) -> str:
    if finding is None:
        return "-"
    outcome = "missed" if finding.missed else finding.outcome
    return f"{outcome} {finding.seconds:.1f} s, left {len(finding.left)}"


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
