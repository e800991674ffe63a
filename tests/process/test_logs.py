"""What workers print goes to a file each, and nowhere else."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from mgpu_magic import EngineError, Session, SpecError
from mgpu_magic.launchers.process import ProcessLauncher
from process.jobs import echo, ensemble

if TYPE_CHECKING:
    from pathlib import Path


def test_a_flood_of_output_does_not_block(
    session: Session, capfd: pytest.CaptureFixture[str]
) -> None:
    """20 MB on a worker's output harm nobody; what is shown of them is a short tail."""
    results = echo(session, ["a", "b"], devices="cpu", engine_args={"print_bytes": 20_000_000})
    assert results.texts == ["a", "b"]
    ((name, tail),) = session.logs().items()
    assert name == "worker 0 (cpu:0, m)"
    assert 0 < len(tail) <= 16384
    assert set(tail.splitlines()) == {"echo " * 15}
    assert capfd.readouterr() == ("", "")


def test_an_error_shows_the_end_of_the_log(session: Session) -> None:
    """A failed load shows the last lines that its worker printed, a dozen at most."""
    args = {"print_bytes": 1_000_000, "fail_to_load": "no"}
    with pytest.raises(EngineError) as failed:
        echo(session, ["a", "b"], devices="cpu", engine_args=args)
    assert len(failed.value.log_tail) <= 4096
    _, _, shown = str(failed.value).partition("Last lines of the worker's log")
    assert [line.strip() for line in shown.splitlines()[1:]] == [
        "...",
        *[("echo " * 15).strip()] * 12,
    ]


def test_a_log_is_private(tmp_path: Path) -> None:
    """Prompts may show up in a log: only you can read it."""
    with Session("cpu", launcher=ProcessLauncher(tmp_path)) as session:
        echo(session, ["a"])
    (log,) = tmp_path.iterdir()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_logs_of_one_worker(session: Session) -> None:
    """`logs(number)` picks one; a number that never was is refused with those that were."""
    with pytest.raises(SpecError, match="there is no worker 0; there are none yet"):
        session.logs(0)
    ensemble(session, {"a": "m1", "b": "m2"}, ["x"])
    assert list(session.logs()) == ["worker 0 (cpu:0, a)", "worker 1 (cpu:1, b)"]
    assert list(session.logs(1)) == ["worker 1 (cpu:1, b)"]
    with pytest.raises(SpecError, match=r"there is no worker 2; there are \[0, 1\]"):
        session.logs(2)
