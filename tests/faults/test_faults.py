"""The quick form of the table of faults, and a short soak."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from faults.pool import TESTS, carry_out
from faults.table import ROWS

if TYPE_CHECKING:
    from faults.cell import Finding
    from faults.pool import Cell
    from faults.struck import Phase

QUICK = [(row.name, phase) for row in ROWS.values() for phase in row.quick]


@pytest.fixture(scope="module")
def findings() -> dict[Cell, Finding]:
    """How each cell went; they go on at the same time."""
    return carry_out(QUICK)


@pytest.mark.timeout(300)  # the first one waits for all
@pytest.mark.parametrize(("name", "phase"), QUICK)
def test_a_fault(findings: dict[Cell, Finding], name: str, phase: Phase) -> None:
    """No hang, no lost answer, nothing left in the world, and the next job works."""
    finding = findings[name, phase]
    assert finding.error == ""
    assert finding.left == ()
    assert not finding.missed


@pytest.mark.timeout(180)
def test_a_short_soak() -> None:
    """Jobs, faults and interrupts in any order: each prompt has one right outcome."""
    soak = subprocess.run(
        [sys.executable, "-m", "faults.soak", "--seconds", "20", "--seed", "7"],
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert soak.returncode == 0, soak.stdout + soak.stderr
