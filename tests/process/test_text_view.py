"""The progress of a script: in place on a real terminal, few lines in a file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from process.living import start_script
from process.screen import TerminalScript

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import mgpu_magic, sys
from mgpu_magic.dashboard import TextView
from mgpu_magic.options import Options
print("before")
job = Options(
    model="MODEL", prompts=["a b"] * COUNT, engine="echo", engine_args={"delay": 0.02}
).job()
with mgpu_magic.Session("cpu:2") as session:
    try:
        session.run(job, TextView(STREAM))
    except mgpu_magic.JobInterrupted as error:
        print("stopped")
print("after")
"""


def script(count: int = 100, model: str = "m", stream: str = "") -> str:
    """A script with so many prompts."""
    values = {"COUNT": str(count), "MODEL": model, "STREAM": stream}
    return re.sub("|".join(values), lambda found: values[found[0]], SCRIPT)


def test_on_a_terminal_each_device_has_one_line(tmp_path: Path) -> None:
    """Whatever was drawn before, at the end there is one line per device and one of the job."""
    terminal = TerminalScript(tmp_path, script())
    before, first, second, job, after = terminal.end()
    assert terminal.output.count("\x1b[J") >= 4
    assert (before, after) == ("before", "after")
    assert re.fullmatch(r"cpu:0    idle \d+ s +\d+ of 100  \d+ tokens/s  .* m", first)
    assert re.fullmatch(r"cpu:1    idle \d+ s +\d+ of 100  \d+ tokens/s  .* m", second)
    assert re.fullmatch(r"done     100 of 100 prompts  \d+ s  \d+ tokens/s", job)


@pytest.mark.parametrize("columns", [20, 60, 250])
def test_a_line_is_no_longer_than_the_terminal_is_wide(tmp_path: Path, columns: int) -> None:
    """A wrapped line would be left over by the next drawing."""
    body = script(model="Qwen2.5-" + "very-" * 20 + "long")
    lines = TerminalScript(tmp_path, body, columns=columns).end()
    assert [line[:5] for line in lines] == ["befor", "cpu:0", "cpu:1", "done ", "after"]
    assert max(map(len, lines)) < columns
    assert lines[1].endswith("long" if columns == 250 else "...")


def test_letters_of_two_columns_are_counted_as_two(tmp_path: Path) -> None:
    """A Chinese model's name does not wrap a line."""
    lines = TerminalScript(tmp_path, script(model="模型" * 40), columns=100).end()
    assert [line[:5] for line in lines] == ["befor", "cpu:0", "cpu:1", "done ", "after"]
    assert lines[1].count("模型") >= 4


def test_a_terminal_of_few_rows_is_not_filled_with_copies(tmp_path: Path) -> None:
    """Lines that scrolled out cannot be redrawn, so there are none while it runs."""
    lines = TerminalScript(tmp_path, script(), rows=3).end()
    assert [line[:5] for line in lines] == ["befor", "cpu:0", "cpu:1", "done ", "after"]


def test_an_interrupt_leaves_the_last_state(tmp_path: Path) -> None:
    """After Ctrl-C the lines say how far it came, and neither ^C nor a copy is left."""
    terminal = TerminalScript(tmp_path, script(3000))
    terminal.until("cpu:1    running", seconds=60)
    terminal.press_interrupt()
    lines = terminal.end()
    assert "^C" in terminal.output
    before, first, second, job, *rest = lines
    assert re.match(r"interrupted  \d+ of 3,000 prompts", job), terminal.output
    assert first.startswith("cpu:0    idle")
    assert second.startswith("cpu:1    idle")
    assert (before, rest) == ("before", ["stopped", "after"])


def test_a_view_of_stderr_has_the_width_of_its_terminal(tmp_path: Path) -> None:
    """Also where stdout is a file: then the progress is on the terminal, and not in the file."""
    body = script(stream="sys.stderr").replace(
        'print("before")', 'sys.stdout = open("out", "w"); print("before")'
    )
    lines = TerminalScript(tmp_path, body, columns=40).end()
    assert [line[:5] for line in lines] == ["cpu:0", "cpu:1", "done "]
    assert max(map(len, lines)) == 39
    assert (tmp_path / "out").read_text() == "before\nafter\n"


def test_a_dumb_terminal_gets_lines(tmp_path: Path) -> None:
    """Where a terminal says that it cannot redraw, nothing is sent but text."""
    terminal = TerminalScript(tmp_path, script(), TERM="dumb")
    terminal.end()
    assert "\x1b" not in terminal.output
    assert "100 of 100 prompts" in terminal.output


def test_a_file_has_a_line_per_change(tmp_path: Path) -> None:
    """One per device and phase, one per tenth of the job, and the final state."""
    running = start_script(tmp_path, script(400))
    output, errors = running.communicate(timeout=60)
    assert (running.returncode, errors) == (0, "")
    assert "\x1b" not in output
    before, *lines, first, second, job, after = output.splitlines()
    assert (before, after) == ("before", "after")
    assert [line.split()[:2] for line in (first, second, job)] == [
        ["cpu:0", "idle"],
        ["cpu:1", "idle"],
        ["done", "400"],
    ]
    tenths = [int(line.split()[1]) // 40 for line in lines if line.startswith("running")]
    assert len(tenths) >= 5
    assert tenths == sorted(set(tenths))
    phases = [tuple(line.split()[:2]) for line in lines if not line.startswith("running")]
    assert set(phases) >= {("cpu:0", "running"), ("cpu:1", "running")}
    repeated = [one for one in set(phases) if phases.count(one) > 1]
    assert repeated == []
