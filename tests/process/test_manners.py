"""Small things that make a session pleasant to work with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mgpu_magic import EngineError, ResultSet, Session, SpecError
from process.jobs import job, result
from process.living import eventually, workers

if TYPE_CHECKING:
    from mgpu_magic.snapshot import Snapshot


def test_a_broken_display_does_not_hurt_the_run(session: Session) -> None:
    """An observer that raises is not asked again; the answers come all the same."""

    class Broken:
        calls = 0

        def update(self, snapshot: Snapshot) -> None:
            self.calls += 1
            raise OSError("no display")

        finish = update

    observer = Broken()
    results = session.run(job(["a"] * 8, engine_args={"delay": 0.1}), observer)
    assert isinstance(results, ResultSet)
    assert results.texts == ["a"] * 8
    assert observer.calls == 1


def test_notes_are_logged_where_nothing_shows_them(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    """A script hears what a panel would say: here, that it runs on the CPU."""
    session.run(job(["a"], devices="all"))
    assert "No NVIDIA GPU found" in caplog.text


def test_devices_can_be_written_in_any_form() -> None:
    """A session takes what a job takes."""
    with Session(["cpu:2"]) as session:
        assert len(session.status().devices) == 2


def test_an_error_of_one_prompt_repeated_is_no_error_of_the_job(session: Session) -> None:
    """Where all prompts are the same they may well be at fault: rows. Else: one error."""
    args = {"fail_on": "bad"}
    same = session.run(job(["bad", "bad"], engine_args=args))
    assert isinstance(same, ResultSet)
    assert [failure.error.kind for failure in same.failures] == ["ValueError", "ValueError"]
    with pytest.raises(EngineError, match="all 2 prompts failed alike: ValueError"):
        session.run(job(["bad", "bad luck"], engine_args=args))


def test_freeing_what_is_not_loaded_names_what_is(session: Session) -> None:
    """A misspelt name frees nothing, and says so."""
    session.run(job(["a"]))
    with pytest.raises(SpecError, match="no worker holds 'n'; loaded: m"):
        session.free("n")


def test_shared_memory_is_not_needed(session: Session) -> None:
    """Containers may have 64 MB of it: neither the kernel nor a worker uses any."""
    run = session.submit(job(["x" * 1_000_000] * 20, engine_args={"delay": 0.05}))
    assert eventually(lambda: run.snapshot.job.done > 4)
    for pid in (os.getpid(), *workers()):
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
        assert [line for line in maps.splitlines() if "/dev/shm" in line] == []  # ours?
    assert len(result(run)) == 20
