"""What a user sees and can catch when something goes wrong."""

from __future__ import annotations

import copy
import pickle
import traceback

import pytest

from mgpu_magic import errors
from mgpu_magic.errors import (
    EngineError,
    JobInterrupted,
    MultiGPUError,
    PlacementError,
    ProtocolError,
    ReportedError,
    RequestError,
    SpecError,
    WorkerError,
    WorkerLost,
    WorkerStartError,
    shortened,
)

REMOTE = [ReportedError, EngineError, WorkerError, WorkerStartError, WorkerLost, RequestError]


@pytest.mark.parametrize("error", [SpecError, PlacementError, ProtocolError, *REMOTE])
def test_all_errors_have_one_base(error: type[Exception]) -> None:
    """`except MultiGPUError` catches whatever this package raises."""
    assert issubclass(error, MultiGPUError)
    assert f" {error.__name__} " in (errors.__doc__ or "")


def test_the_tree() -> None:
    """A wrong prompt is a ValueError; a worker's death, early or late, is a WorkerError."""
    assert issubclass(SpecError, ValueError)
    assert issubclass(WorkerStartError, WorkerError)
    assert issubclass(WorkerLost, WorkerError)
    assert not issubclass(WorkerError, EngineError)


def test_a_loop_cannot_swallow_the_stop_button() -> None:
    """`except Exception` around a job lets an interrupt through."""
    assert issubclass(JobInterrupted, KeyboardInterrupt)
    assert not issubclass(JobInterrupted, Exception)


@pytest.mark.parametrize("kind", REMOTE)
def test_a_remote_error_tells_what_the_worker_said(kind: type[ReportedError]) -> None:
    """The message comes first, then the worker's traceback, then the end of its log."""
    error = kind(
        "cuda:0 failed",
        kind="ValueError",
        traceback="Traceback\n  ValueError: no\n",
        log_tail="line 1\nline 2\n",
        results=[1],
    )
    assert str(error) == (
        "cuda:0 failed\n\n"
        "In the worker (whole: the error's .traceback):\n    Traceback\n      ValueError: no\n\n"
        "Last lines of the worker's log (more: %multigpu logs):\n    line 1\n    line 2"
    )
    assert (error.kind, error.results) == ("ValueError", [1])


def test_a_long_log_shows_its_end() -> None:
    """The cause stands at the end of a log: of a long one the last twelve lines are shown."""
    lines = [f"line {i}" for i in range(20)]
    shown = str(WorkerLost("lost", log_tail="\n".join(lines))).splitlines()
    assert shown[-13:] == ["    ...", *(f"    {line}" for line in lines[8:])]


def test_a_long_error_is_shown_without_its_middle() -> None:
    """10,000 characters, in one line or many, do not flood the cell; whole they are kept."""
    for text in ("begin " + "x" * 10_000 + " end", "begin\n" + "x y\n" * 2_500 + "end"):
        error = EngineError(text, kind="ValueError", traceback=text, log_tail=text)
        shown = str(error)
        assert len(shown) < 3_500
        assert shown.startswith("begin")
        assert f"[... {len(text):,} characters in all ...]" in shown
        assert shown.endswith("end")
        assert (error.message, error.traceback, error.log_tail) == (text, text, text)


def test_text_that_fits_is_not_shortened() -> None:
    """One character more is."""
    assert shortened("x" * 100, 100) == "x" * 100
    assert len(shortened("x" * 101, 100)) == 100
    assert shortened("x" * 101, 100) != "x" * 100


def test_a_remote_error_without_details_is_one_line() -> None:
    """No traceback and no log: no empty headings."""
    assert str(WorkerLost("cuda:0 was lost")) == "cuda:0 was lost"


def test_a_notebook_shows_type_and_message_alone() -> None:
    """IPython gets these lines instead of a traceback; Python itself writes the type once."""
    error = EngineError("a\nb")
    assert error._render_traceback_() == ["EngineError: a", "b"]
    assert traceback.format_exception_only(error) == ["mgpu_magic.errors.EngineError: a\nb\n"]


def test_an_interrupt_carries_what_was_finished() -> None:
    """The answers of a stopped job are in the exception, which shows as one line."""
    error = JobInterrupted("stopped after 3 of 4 prompts", results=[1, 2, 3])
    assert error.results == [1, 2, 3]
    assert error._render_traceback_() == ["KeyboardInterrupt: stopped after 3 of 4 prompts"]


@pytest.mark.parametrize(
    "error",
    [
        SpecError("no"),
        RequestError("no", kind="TypeError", traceback="t", log_tail="l", results=[1]),
        JobInterrupted("no", results=[1]),
    ],
)
def test_errors_can_be_copied_and_sent(error: BaseException) -> None:
    """An error survives pickling and copying with all that it carries."""
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)
