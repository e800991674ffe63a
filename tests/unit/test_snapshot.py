"""A snapshot as text."""

from __future__ import annotations

import pytest
from followed import GIB, Job, failure, prediction

from mgpu_magic.messages import (
    Exited,
    Started,
)
from mgpu_magic.progress import Reading, render_text
from mgpu_magic.snapshot import (
    memory_text,
    model_basename,
    one_line,
    seconds_text,
    speed_text,
)

# --- text ------------------------------------------------------------------------------------


def test_the_text_has_a_line_per_device_one_for_the_job_and_the_notes() -> None:
    """The text view says what the panel says."""
    job = Job(total=1000)
    job.run(500)
    for _ in range(42):
        job.clock.now += 1
        job.answer(3, tokens=40)
    job.progress.recorded("m", 0, [failure()])
    job.progress.read(
        {"cuda:0": Reading(used_bytes=9 * GIB, total_bytes=15 * GIB, utilisation=0.97)}
    )
    job.progress.note("a note")
    assert render_text(job.progress.snapshot(), 120).splitlines() == [
        "cuda:0   running 42 s    127 of 1,000  120 tokens/s  9.0 of 15.0 GiB  97 % busy  m",
        "cuda:1   memory n/a  n/a busy",
        "running  127 of 1,000 prompts  42 s  ETA 4 min 47 s  120 tokens/s  1 failed",
        "a note",
    ]


def test_the_text_counts_prompts_where_there_are_no_tokens() -> None:
    """A classifier's line says prompts/s, while it runs and afterwards."""
    job = Job(total=1000)
    job.run(500)
    for _ in range(4):
        job.clock.now += 1
        job.progress.recorded("m", 0, [prediction()] * 56)
    lines = [
        "cuda:0   running 4 s     224 of 1,000  56.0 prompts/s  memory n/a  n/a busy  m",
        "running  224 of 1,000 prompts  4 s  ETA 13 s  56.0 prompts/s",
    ]
    first, _, last = render_text(job.progress.snapshot(), 120).splitlines()
    assert [first, last] == lines
    job.progress.finish("done")
    assert "  56.0 prompts/s  " in render_text(job.progress.snapshot(), 120)
    assert "tokens/s" not in render_text(job.progress.snapshot(), 120)


def test_the_text_names_the_reason_of_a_loss_and_a_device_that_is_gone() -> None:
    """A lost worker and a lost device are told apart in words."""
    job = Job()
    job.run()
    job.say(Exited(None, "SIGSEGV"), Started(2), Exited(3, None))
    job.progress.read({"cuda:1": Reading(lost=True)})
    text = render_text(job.progress.snapshot(), 200)
    assert "failed 0 s" in text
    assert "exit code 3" in text
    assert "cuda:1   the driver no longer answers" in text
    assert "1 restart" in text


def test_no_line_is_wider_than_asked() -> None:
    """Lines never wrap on a terminal, whatever the names are."""
    job = Job()
    job.progress.assign(3, "org/" + "x" * 300, ["cuda:1"])
    job.progress.note("y" * 300)
    lines = render_text(job.progress.snapshot(), 60).splitlines()
    assert max(map(len, lines)) == 60
    assert lines[1].endswith("...")


def test_text_from_elsewhere_stays_printable_and_on_its_line() -> None:
    """Newlines, escapes and lone surrogates cannot break the display."""
    assert one_line("a\nb\x1b[31mc\ud800d", 80) == "a b [31mc d"
    assert one_line("abcdef", 5) == "ab..."
    one_line("a\ud800", 80).encode()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (59.9, "59 s"), (62.0, "1 min 02 s"), (7500.0, "2 h 05 min")],
)
def test_durations_are_readable(seconds: float, text: str) -> None:
    """Seconds, minutes and hours, as people say them."""
    assert seconds_text(seconds) == text


def test_figures_are_readable() -> None:
    """Small rates keep a decimal; what is not known is n/a; a model goes by its last name."""
    assert [speed_text(9, rate, 5.0) for rate in (0.0, 3.14, 1234.5)] == [
        "0 tokens/s",
        "3.1 tokens/s",
        "1,234 tokens/s",
    ]
    assert [speed_text(0, 0.0, rate) for rate in (0.0, 56.04, 1234.5)] == [
        "0 prompts/s",
        "56.0 prompts/s",
        "1,234 prompts/s",
    ]
    assert memory_text(Reading(used_bytes=GIB)) == "1.0 of n/a GiB"
    assert [model_basename(name) for name in ("m", "org/m", "/dir/m/", "/")] == ["m", "m", "m", "/"]
