"""The view of a job on a terminal, in a script and in a log."""

from __future__ import annotations

import io
from dataclasses import replace

from shown import JOB, SNAPSHOT, Clock, Terminal, after

from mgpu_magic.dashboard import TextView
from mgpu_magic.snapshot import Snapshot


def test_without_a_terminal_a_line_is_printed_per_change_and_not_per_tick() -> None:
    """A log of a run with 1000 prompts has a line per phase and per tenth of the prompts."""
    stream = io.StringIO()
    view = TextView(stream, Clock())
    view.update(after(0, "loading"))
    for done in range(1001):
        view.update(after(done))
    view.finish(after(1000, "idle"))
    lines = stream.getvalue().splitlines()
    assert [line.split()[:2] for line in lines[:2]] == [
        ["cuda:0", "loading"],
        ["cuda:0", "running"],
    ]
    assert [line.split()[1] for line in lines[2:-2]] == ["1"] + [
        f"{done:,}" for done in range(100, 1001, 100)
    ]
    assert lines[-2].startswith("cuda:0   idle")
    assert lines[-1].startswith("running  1,000 of 1,000 prompts")


def test_a_note_is_printed_once() -> None:
    """What the user should know is said when it comes up."""
    stream = io.StringIO()
    view = TextView(stream, Clock())
    for _ in range(3):
        view.update(Snapshot(replace(JOB, done=0, notes=("No NVIDIA GPU found.",)), ()))
    assert stream.getvalue() == "No NVIDIA GPU found.\n"


def test_on_a_terminal_the_view_is_redrawn_in_place() -> None:
    """The second drawing covers the first, at most four times a second."""
    clock, stream = Clock(), Terminal()
    view = TextView(stream, clock)
    view.update(SNAPSHOT)
    first = stream.getvalue()
    view.update(SNAPSHOT)
    assert stream.getvalue() == first
    clock.now = 0.25
    view.update(SNAPSHOT)
    view.finish(SNAPSHOT)
    assert first.startswith("\r\x1b[Jcuda:0")
    assert first.count("\n") == 3
    assert stream.getvalue() == first + 2 * ("\x1b[3A" + first)


def test_a_stream_that_knows_only_ascii_is_no_obstacle() -> None:
    """A model with an accent in its name does not end the view."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    TextView(stream, Clock()).finish(Snapshot(replace(JOB, notes=("modèle \ud800",)), ()))
    assert raw.getvalue().splitlines()[-1] == b"mod?le  "
