"""One cell of the table in a process of its own: `python -m faults.cell ROW PHASE`.

Prints one line of JSON, a `Finding`.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from typing import cast

from faults.footprint import Footprint
from faults.strikes import prepare
from faults.struck import Missed, Phase
from faults.table import ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """How a cell went.

    Attributes:
        outcome: In short.
        seconds: From its start until nothing was left.
        left: What was left nevertheless.
        error: Why it failed; empty where it did not.
        missed: The phase was over too soon; it says nothing.
    """

    outcome: str
    seconds: float
    left: tuple[str, ...] = ()
    error: str = ""
    missed: bool = False

    @property
    def good(self) -> bool:
        """Whether all was as promised."""
        return not self.left and not self.error and not self.missed


def found(name: str, phase: Phase) -> Finding:
    """Carry a cell out."""
    row = ROWS[name]
    prepare()
    footprint = Footprint(inside=not row.outside)
    began = time.monotonic()
    outcome, error, missed = "FAILED", "", False
    try:
        outcome = row.run(phase)
    except Missed:
        missed = True
    except BaseException:  # noqa: BLE001  # it is what the table shows
        error = traceback.format_exc()
    left = footprint.left()
    return Finding(
        outcome=outcome,
        seconds=round(time.monotonic() - began, 1),
        left=tuple(left),
        error=error,
        missed=missed,
    )


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(found(sys.argv[1], cast("Phase", sys.argv[2])))) + "\n")
