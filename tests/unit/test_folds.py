"""Failed prompts and the workers' logs, folded away."""

from __future__ import annotations

from dataclasses import replace

import pytest
from shown import DEVICE, EVIL, JOB, WORKER, Page

from mgpu_magic.cards import render_html
from mgpu_magic.folds import HEADS, bodies_html, final_html, plain_log
from mgpu_magic.snapshot import DeviceView, FailureView, JobView, Phase, Snapshot

FAILURES = tuple(
    FailureView(model="m", index=7 * n, error=f"ValueError: no {n}", prompt=f"prompt {n} ...")
    for n in range(20)
)


def with_log(label: str, log: str, phase: Phase = "running") -> DeviceView:
    """A device whose worker printed something."""
    return replace(DEVICE, label=label, worker=replace(WORKER, log=log, phase=phase))


def failed(count: int, *failures: FailureView) -> JobView:
    """A job with failed prompts, of which some are known."""
    return replace(JOB, failed=count, failures=failures)


def test_each_failure_has_its_index_error_and_how_its_prompt_begins() -> None:
    """What failed can be found and understood without another cell."""
    text = Page(bodies_html(Snapshot(failed(2, *FAILURES[:2]), ()))).text
    assert "✗ #0 ValueError: no 0 prompt 0 ...\n✗ #7 ValueError: no 1 prompt 1 ...\n" in text
    assert "more" not in text


def test_failures_of_an_ensemble_name_their_model() -> None:
    """Two models may fail at the same prompt."""
    other = replace(FAILURES[0], model="other", prompt="")
    text = Page(bodies_html(Snapshot(failed(2, FAILURES[0], other), ()))).text
    assert "✗ m #0 ValueError: no 0 prompt 0 ...\n✗ other #0 ValueError: no 0\n" in text


def test_a_million_failures_are_twenty_lines_and_a_count() -> None:
    """However much fails, the panel stays small and says how much it leaves out."""
    text = Page(bodies_html(Snapshot(failed(1_000_000, *FAILURES), ()))).text
    assert text.count("✗") == 20
    assert "and 999,980 more" in text


def test_each_worker_has_its_log_and_a_group_has_one() -> None:
    """What a worker printed is shown with its device, once."""
    group = replace(DEVICE, worker=replace(WORKER, log="from both"))
    snapshot = Snapshot(JOB, (group, replace(group, label="cuda:1"), with_log("cuda:2", "third")))
    text = Page(bodies_html(snapshot)).text
    assert "cuda:0\nfrom both\n" in text
    assert "cuda:2\nthird\n" in text
    assert text.count("from both") == 1


def test_where_there_is_nothing_the_folds_say_so() -> None:
    """An open fold is never an empty place."""
    text = Page(bodies_html(Snapshot(JOB, (DEVICE,)))).text
    assert "No prompt has failed." in text
    assert "The workers have printed nothing." in text


def test_nothing_in_the_folds_is_markup() -> None:
    """Errors, prompts and what workers print are text."""
    evil = FailureView(model=EVIL, index=1, error=EVIL, prompt=EVIL)
    other = replace(evil, model="m")
    snapshot = Snapshot(failed(2, evil, other), (with_log(EVIL, EVIL, "failed"),))
    for html in (bodies_html(snapshot), final_html("", snapshot, 10_000)):
        page = Page(html)
        assert page.tags <= {"div", "span", "b", "small", "pre", "details", "summary"}
        assert page.text.count('onerror="alert(1)"') >= 7
        assert "onerror" not in page.attributes


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        ("a\r\nb\n", "a\nb"),
        ("0 %\r50 %\r100 %\ndone", "100 %\ndone"),
        ("50 %\r", "50 %"),
        ("\x1b[1;31mred\x1b[0m \x1b]0;title\x07x\x1b[2K", "red x"),
        ("tab\tbell\x07 \ud800", "tab\tbell   "),
    ],
)
def test_a_log_is_shown_as_on_a_terminal_without_colours(log: str, shown: str) -> None:
    """Bars that redraw their line are one line, and no escape sequence is left."""
    assert plain_log(log) == shown


def test_the_heads_of_the_folds_need_only_the_keyboard() -> None:
    """Both are `<details>`, closed, without any text of the job."""
    assert HEADS.count("<details") == HEADS.count("<summary>") == 2
    assert "open>" not in HEADS


# --- what stays ------------------------------------------------------------------------------


def test_what_stays_holds_failures_and_logs_in_one_piece() -> None:
    """A reader without a kernel unfolds what the live panel had."""
    lost = with_log("cuda:1", "the end", "lost")
    snapshot = Snapshot(failed(1, FAILURES[0]), (with_log("cuda:0", "fine"), lost))
    html = final_html(render_html(snapshot), snapshot, 19_000)
    page = Page(html)
    assert html.startswith(render_html(snapshot))
    assert page.text.index("1 failed prompt\n✗ #0") < page.text.index("Log of cuda:1")
    assert page.text.index("Log of cuda:1") < page.text.index("Log of cuda:0")
    assert "the end" in page.text


def test_what_stays_is_bounded_and_keeps_what_matters_most() -> None:
    """Eight devices with twenty long failures and full logs: at most the bytes that it may have."""
    long = tuple(replace(failure, error="<" * 200, prompt="&" * 80) for failure in FAILURES)
    devices = (with_log("cuda:0", "l" * 4096), with_log("cuda:1", "<" * 4096, "failed"))
    snapshot = Snapshot(failed(30, *long), devices)
    for most in (9_000, 12_000, 19_000):
        html = final_html(render_html(snapshot), snapshot, most)
        assert len(html.encode()) <= most
        page = Page(html)
        shown = page.text.count("✗ #")
        assert shown >= 1
        assert f"and {30 - shown} more" in page.text
    assert shown == 10
    assert "Log of" not in page.text
    few = Snapshot(failed(1, FAILURES[0]), devices)
    assert "Log of cuda:0" in final_html(render_html(few), few, 19_000)
