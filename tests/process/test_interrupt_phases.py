"""An interrupt in each phase of a job: to the process and to its group, once and again."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from process.living import TESTS, outcome
from process.pressing import STAGES, TIMES

SCRIPT = "import sys; from process.pressing import main; main(*sys.argv[1:])"


@cache  # one script for all stages
def rows(launcher: str, times: str) -> Any:
    """What came of the interrupts of each stage."""
    return outcome(
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, launcher, times],
            env={**os.environ, "PYTHONPATH": str(TESTS)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # it interrupts its whole group
        ),
        seconds=100,
    )


@pytest.mark.parametrize("signalled", ["alone", "group"])
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    ("launcher", "times"), [*(("process", times) for times in TIMES), ("thread", "once")]
)
def test_an_interrupt(launcher: str, times: str, stage: str, signalled: str) -> None:
    """One error, within five seconds, with the answers until then; the next cell is right.

    The workers stay, unless it was pressed again before the cell was over: then all of them go.
    """
    row = rows(launcher, times)[f"{stage}, {signalled}"]
    assert row["error"] == ("JobInterrupted" if STAGES[stage].begun else "KeyboardInterrupt")
    assert row["seconds"] < 5
    assert row["next"] == ["x", "y z"]
    assert len(row["texts"]) == len(row["prompts"])
    assert all(
        text in (None, want) for text, want in zip(row["texts"], row["prompts"], strict=True)
    )
    assert row["kinds"] in ([], ["Interrupted"])
    assert row["last"]
    if launcher == "process":
        assert len(row["before"]) == 2
        stayed = set(row["before"]) & set(row["after"])
        assert len(stayed) == 2 or (times != "once" and not stayed)
    match stage:
        case "importing" | "loading":
            assert set(row["texts"]) == {None}
        case "running" | "waiting to load":
            assert 3 <= sum(text is not None for text in row["texts"]) < 40
        case "the tail":
            assert row["texts"] == [*row["prompts"][:-1], None]
        case "first display" if times != "once" and launcher == "process":
            assert not stayed
        case "last display":
            assert row["texts"] == row["prompts"]
