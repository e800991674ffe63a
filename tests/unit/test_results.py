"""What a job gives back, in whatever order the answers came."""

from __future__ import annotations

import pickle
import random
import re
import sys
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

from mgpu_magic.errors import ProtocolError, RequestError
from mgpu_magic.outcomes import Completion, Failure, RemoteError
from mgpu_magic.results import Collector, Ensemble, ResultSet, RunStats, WorkerStats
from mgpu_magic.tables import clipped

if TYPE_CHECKING:
    from mgpu_magic.outcomes import Outcome

TOO_LONG = RemoteError("VLLMValidationError", "the prompt is too long", "Traceback ...")
INTERRUPTED = RemoteError("Interrupted", "stopped by the user")


def answer(index: int, *texts: str, reason: str = "stop", device: str = "cuda:0") -> Completion:
    """The answer to the prompt at `index`."""
    return Completion(
        index=index,
        texts=texts or (f"answer {index}",),
        finish_reasons=(reason,) * max(len(texts), 1),
        prompt_tokens=10,
        output_tokens=4,
        seconds=0.5,
        device=device,
    )


def two_of_three() -> ResultSet:
    """Prompts a, b, c, of which b failed and c was cut."""
    outcomes: list[Outcome] = [
        answer(0, "A"),
        Failure(1, TOO_LONG),
        answer(2, "C", reason="length"),
    ]
    return ResultSet(outcomes, ["a", "b", "c"])


def many(count: int) -> ResultSet:
    """Answers to as many prompts."""
    return ResultSet([answer(i) for i in range(count)], [f"prompt {i}" for i in range(count)])


class Cells(HTMLParser):
    """The texts of a page's cells, row by row, and all tags that it opens."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows:
            self.rows[-1][-1] += data


# --- collecting ------------------------------------------------------------------------------


def test_answers_in_any_order_come_back_in_prompt_order() -> None:
    """`results[i]` belongs to `prompts[i]`, whichever device was quicker."""
    collector = Collector([f"prompt {i}" for i in range(50)])
    indices = list(range(50))
    random.Random(7).shuffle(indices)
    for index in indices:
        collector.add(answer(index))
    assert collector.remaining == 0
    results = collector.results()
    assert results.texts == [f"answer {i}" for i in range(50)]
    assert [outcome.index for outcome in results] == list(range(50))


def test_unfinished_results_are_as_long_as_the_prompts() -> None:
    """At any moment there is a row per prompt; what has no answer says why."""
    collector = Collector(["a", "b", "c"])
    collector.add(answer(2))
    assert collector.remaining == 2
    assert collector.outcomes == (None, None, answer(2))
    partial = collector.results()
    assert partial.texts == [None, None, "answer 2"]
    assert [(f.index, f.error.kind, f.attempts) for f in partial.failures] == [
        (0, "NotFinished", 0),
        (1, "NotFinished", 0),
    ]
    assert collector.results(missing=INTERRUPTED).failures[0].error == INTERRUPTED
    collector.add(answer(0))
    assert collector.results().texts == ["answer 0", None, "answer 2"]
    assert partial.texts == [None, None, "answer 2"]


@pytest.mark.parametrize("second", [answer(0), Failure(0, TOO_LONG)])
def test_a_prompt_has_one_outcome(second: Completion | Failure) -> None:
    """A second outcome never replaces the first."""
    collector = Collector(["a"])
    collector.add(answer(0, "first"))
    with pytest.raises(ProtocolError, match="a second outcome of prompt 0"):
        collector.add(second)
    assert collector.results().texts == ["first"]
    assert collector.remaining == 0


@pytest.mark.parametrize("index", [-1, 2])
def test_an_outcome_of_no_prompt_is_refused(index: int) -> None:
    """An outcome with an index outside the prompts is an error, not a wrong row."""
    with pytest.raises(ProtocolError, match=f"prompt {index} came; the job has 2 prompts"):
        Collector(["a", "b"]).add(answer(index))


def test_what_the_session_knows_is_in_the_stats() -> None:
    """Seconds and workers given to the collector are those of the results."""
    worker = WorkerStats(device="cuda:0", model="m")
    stats = Collector([]).results(seconds=2.0, workers=[worker]).stats
    assert (stats.seconds, stats.workers) == (2.0, (worker,))


# --- the sequence ----------------------------------------------------------------------------


def test_a_result_set_is_a_sequence() -> None:
    """It has a length, items from both ends, slices, and can be iterated and searched."""
    results = two_of_three()
    assert len(results) == 3
    assert results[0] == answer(0, "A")
    assert results[-2] == Failure(1, TOO_LONG)
    assert results[1:] == (Failure(1, TOO_LONG), answer(2, "C", reason="length"))
    assert list(results) == [results[0], results[1], results[2]]
    assert answer(0, "A") in results
    with pytest.raises(IndexError):
        results[3]


def test_texts_prompts_and_failures() -> None:
    """`texts` has None where a prompt failed; `failures` has why."""
    results = two_of_three()
    assert results.texts == ["A", None, "C"]
    assert results.prompts == ["a", "b", "c"]
    assert results.failures == (Failure(1, TOO_LONG),)


def test_equality_and_pickling() -> None:
    """Results can be stored and compared, and none equal an empty list."""
    results = two_of_three()
    again = pickle.loads(pickle.dumps(results))
    assert again == results
    assert again.prompts == ["a", "b", "c"]
    assert results != many(3)
    assert results != "abc"
    assert ResultSet([], []) == []


@pytest.mark.parametrize("outcomes", [[], [answer(1), answer(0)], [answer(0)] * 2, [answer(1)]])
def test_rows_that_do_not_fit_the_prompts_are_refused(outcomes: list[Completion]) -> None:
    """A result set with a missing, double or misplaced row cannot be made."""
    with pytest.raises(ValueError, match="there must be one each, in order"):
        ResultSet(outcomes, ["a", "b"])


def test_raise_for_failures() -> None:
    """On request failures raise, once, naming some of them; the good rows are in the error."""
    many(2).raise_for_failures()
    results = ResultSet(
        [Failure(i, TOO_LONG) for i in range(5)] + [answer(5)], [str(i) for i in range(6)]
    )
    with pytest.raises(RequestError) as caught:
        results.raise_for_failures()
    error = caught.value
    assert "5 of 6 prompts failed: prompt 0: VLLMValidationError: the prompt is" in str(error)
    assert "prompt 2: " in str(error)
    assert "prompt 3" not in str(error)
    assert "; and 2 more" in str(error)
    assert (error.kind, error.traceback) == ("VLLMValidationError", "Traceback ...")
    assert error.results is results


# --- figures ---------------------------------------------------------------------------------


def test_stats_count_the_rows() -> None:
    """Prompts, failures, cut answers and tokens are counted from the rows themselves."""
    stats = ResultSet([*two_of_three(), Failure(3, INTERRUPTED)], "abcd", seconds=4.0).stats
    assert stats == RunStats(
        prompts=4,
        failures=2,
        unfinished=1,
        cut_by_length=1,
        prompt_tokens=20,
        output_tokens=8,
        seconds=4.0,
    )
    assert stats.output_tokens_per_second == 2.0
    assert stats.headline == "4 prompts, 2 answered, 1 failed, 1 not finished, 1 cut by length"


@pytest.mark.parametrize("seconds", [None, 0.0])
def test_an_unknown_rate_is_none(seconds: float | None) -> None:
    """Without a time there is no rate, and no division by zero."""
    assert ResultSet([answer(0)], ["a"], seconds=seconds).stats.output_tokens_per_second is None


def test_stats_are_a_table() -> None:
    """A row per worker; what is not known is n/a, not 0."""
    known = WorkerStats(
        device="cuda:0",
        model="Qwen/Qwen2.5",
        load_seconds=12.34,
        prompts=3,
        prompt_tokens=30,
        output_tokens=12,
        output_tokens_per_second=181.6,
        peak_bytes=3 * 2**29,
        restarts=1,
    )
    unknown = WorkerStats(device="cuda:1", model="<b>")
    stats = ResultSet([answer(0)], ["a"], seconds=2.0, workers=[known, unknown]).stats
    headline, header, first, second = repr(stats).splitlines()
    assert headline == "1 prompt, 1 answered; 4 output tokens in 2.0 s (2 tokens/s)"
    assert header.split()[:2] == ["device", "model"]
    assert " ".join(first.split()) == "cuda:0 Qwen/Qwen2.5 12.3 3 30 12 182 1.50 1"
    assert " ".join(second.split()) == "cuda:1 <b> n/a 0 0 0 n/a n/a 0"
    page = Cells(stats._repr_html_())
    assert page.rows[2] == second.split()
    assert "b" not in page.tags


# --- frames ----------------------------------------------------------------------------------

COLUMNS = ["prompt", "text", "finish_reason", "prompt_tokens", "output_tokens", "seconds"]


def test_a_pandas_frame() -> None:
    """A row per prompt; counts stay whole numbers though a row failed; text is None there."""
    frame = two_of_three().to_pandas()
    assert list(frame) == [*COLUMNS, "device", "error"]
    assert frame["prompt"].tolist() == ["a", "b", "c"]
    assert frame["text"].tolist() == ["A", None, "C"]
    assert frame["finish_reason"].tolist() == ["stop", None, "length"]
    assert frame["output_tokens"].dtype == "Int64"
    assert frame["output_tokens"].tolist() == [4, pd.NA, 4]
    assert frame["seconds"].sum() == 1.0
    assert frame["device"].tolist() == ["cuda:0", None, "cuda:0"]
    message = "VLLMValidationError: the prompt is too long"
    assert frame["error"].tolist() == [None, message, None]


def test_a_frame_without_rows() -> None:
    """No prompts: the same columns and types, no rows."""
    frame = ResultSet([], []).to_pandas()
    assert frame.shape == (0, 8)
    assert (frame.dtypes == two_of_three().to_pandas().dtypes).all()


def test_several_texts_per_prompt() -> None:
    """With `n` above 1 a column `texts` holds them all, and only then."""
    results = ResultSet([answer(0, "x", "y"), Failure(1, TOO_LONG)], ["a", "b"])
    frame = results.to_pandas()
    assert frame["text"].tolist() == ["x", None]
    assert frame["texts"].tolist() == [["x", "y"], None]
    assert results.to_arrow()["texts"].to_pylist() == [["x", "y"], None]
    assert "texts" not in two_of_three().to_pandas()


def test_a_frame_keeps_any_prompt() -> None:
    """Chats, arrays and broken Unicode stay in the pandas frame as the user passed them."""
    chat = [{"role": "user", "content": "a"}]
    ids = np.array([1, 2])
    rows = [answer(i, "a\ud800b") for i in range(3)]
    frame = ResultSet(rows, [chat, ids, "a\ud800b"]).to_pandas()
    assert frame["prompt"][0] is chat
    assert frame["prompt"][1] is ids
    assert frame["text"][2] == "a\ud800b"


@pytest.mark.parametrize("name", ["to_arrow", "to_polars"])
def test_arrow_and_polars_frames(name: str) -> None:
    """Both have the same columns; what they cannot hold is written as text."""
    chat = [{"role": "user", "content": "é"}]
    outcomes: list[Outcome] = [answer(0, "a\ud800b"), answer(1), answer(2), Failure(3, TOO_LONG)]
    prompts = ["a", chat, np.array([1, 2]), {"prompt": "a", "image": {1}}]
    frame = getattr(ResultSet(outcomes, prompts), name)()
    rows = frame.to_pylist() if name == "to_arrow" else frame.to_dicts()
    assert list(rows[0]) == [*COLUMNS, "device", "error"]
    assert [row["prompt"] for row in rows] == [
        "a",
        '[{"role": "user", "content": "é"}]',
        "[1, 2]",
        '{"prompt": "a", "image": "{1}"}',
    ]
    assert [row["text"] for row in rows] == ["a\\ud800b", "answer 1", "answer 2", None]
    assert [row["output_tokens"] for row in rows] == [4, 4, 4, None]
    assert [row["seconds"] for row in rows] == [0.5, 0.5, 0.5, None]
    assert rows[3]["error"] == "VLLMValidationError: the prompt is too long"


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_a_missing_library_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library a frame is refused with what to install."""
    monkeypatch.setitem(sys.modules, library, None)
    convert = getattr(two_of_three(), f"to_{library.removeprefix('py')}")
    with pytest.raises(ImportError, match=f"this needs {library}: pip install {library}"):
        convert()


# --- display ---------------------------------------------------------------------------------


def test_a_notebook_shows_a_short_table() -> None:
    """200 rows show as a headline, the first five and the last two, in a few kilobytes."""
    prompts = [f"prompt {i}: " + "word " * 100 for i in range(200)]
    outcomes = [answer(i, f"answer {i}: " + "word " * 100) for i in range(200)]
    html = ResultSet(outcomes, prompts)._repr_html_()
    rows = Cells(html).rows
    assert len(html) < 6000
    assert "200 prompts, 200 answered" in html
    assert rows[0] == ["#", "prompt", "answer", "device", "tokens"]
    assert [row[0] for row in rows[1:]] == ["0", "1", "2", "3", "4", "…", "198", "199"]
    assert rows[1][1].startswith("prompt 0: word")
    assert (len(rows[1][1]), len(rows[1][2])) == (80, 160)
    assert rows[1][1][-1] == rows[1][2][-1] == "…"
    assert rows[1][3:] == ["cuda:0", "4"]


def test_seven_rows_are_shown_whole() -> None:
    """Nothing is left out where all fits."""
    assert [row[0] for row in Cells(many(7)._repr_html_()).rows] == ["#", *"0123456"]


def test_a_terminal_shows_the_same() -> None:
    """The plain text has the headline, aligned columns, and failures in words."""
    lines = repr(two_of_three()).splitlines()
    assert lines[0] == "3 prompts, 2 answered, 1 failed, 1 cut by length"
    assert [line.split()[0] for line in lines[1:]] == ["#", "0", "1", "2"]
    assert lines[1].index("answer") == lines[2].index("A")
    assert "failed: VLLMValidationError: the prompt is too long" in lines[3]


def test_no_results_are_one_line() -> None:
    """Without prompts there is a headline and no table."""
    assert repr(ResultSet([], [])) == "0 prompts, 0 answered"
    assert Cells(ResultSet([], [])._repr_html_()).tags == {"div"}


def test_an_interrupted_row_is_not_called_failed() -> None:
    """A prompt that had no turn is `not finished`."""
    shown = repr(ResultSet([Failure(0, INTERRUPTED)], ["a"]))
    assert "1 prompt, 0 answered, 1 not finished" in shown
    assert "not finished: Interrupted: stopped by the user" in shown


def test_what_each_kind_of_prompt_looks_like() -> None:
    """Text as it is, a chat by its last message, token ids as numbers, a dict by its text."""
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    parts = [{"role": "user", "content": [{"type": "text"}]}]
    prompts = ["a\n b", chat, [5, 6], {"prompt": "c"}, parts, None]
    shown = [row[1] for row in Cells(ResultSet(map(answer, range(6)), prompts)._repr_html_()).rows]
    assert shown[1:5] == ["a b", "user: Hello", "[5, 6]", "c"]
    assert "'role': 'user'" in shown[5]
    assert shown[6] == "None"


def test_several_texts_are_announced() -> None:
    """Of several texts the first is shown, and that there are more; without text, nothing."""
    results = ResultSet([answer(0, "x", "y"), answer(1, "")], ["a", "b"])
    assert [row[2] for row in Cells(results._repr_html_()).rows] == ["answer", "(1 of 2) x", ""]


def test_hostile_text_is_only_text() -> None:
    """Markup is escaped; control characters and lone surrogates are shown in words."""
    hostile = "<script>alert(1)</script> & \x1b[31m \ud800 \x00"
    error = RemoteError("<b>", "<img src=x>")
    results = ResultSet([answer(0, hostile, device="<i>"), Failure(1, error)], [hostile] * 2)
    page = Cells(results._repr_html_())
    assert page.tags == {"div", "table", "tr", "th", "td"}
    visible = r"<script>alert(1)</script> & \x1b[31m \ud800 \x00"
    assert page.rows[1] == ["0", visible, visible, "<i>", "4"]
    assert page.rows[2][2] == "failed: <b>: <img src=x>"
    for shown in (results._repr_html_(), repr(results)):
        assert shown.encode("utf-8")
        assert not re.search(r"[\x00\x1b]", shown)


def test_a_display_brings_no_colours() -> None:
    """A dark page stays readable: no colour of our own beside the theme's variables."""
    styles = " ".join(re.findall(r'style="([^"]*)"', two_of_three()._repr_html_()))
    assert "var(--jp-border-color2,currentColor)" in styles
    assert not re.search(r"#[0-9a-f]{3}|rgb|background|(?<![-\w])color:", styles)


def test_clipping() -> None:
    """A clipped text says so, a text that fits stays whole, and a long one costs nothing."""
    assert clipped("abcde", 5) == "abcde"
    assert clipped("abcdef", 5) == "abcd…"
    assert clipped("a" + " " * 100 + "b", 5) == "a…"
    assert clipped("x" * 10_000_000, 5) == "xxxx…"
    assert clipped("सलाम 👩‍💻", 20) == "सलाम 👩‍💻"


# --- ensembles -------------------------------------------------------------------------------


def pair(**options: Any) -> Ensemble:
    """Two models that had the same prompts; the second failed once."""
    first = ResultSet([answer(0), answer(1)], ["a", "b"], seconds=2.0)
    second = ResultSet([answer(0, "B0"), Failure(1, TOO_LONG)], ["a", "b"], seconds=3.0)
    return Ensemble({"one": first, "two": second, **options})


def test_an_ensemble_is_a_mapping_in_cell_order() -> None:
    """`results["one"]` is the first model's result set; names keep the order of the cell."""
    results = pair()
    assert list(results) == ["one", "two"]
    assert len(results) == 2
    assert results["two"].texts == ["B0", None]
    with pytest.raises(KeyError):
        results["three"]
    assert pickle.loads(pickle.dumps(results)) == results


def test_an_ensembles_failures() -> None:
    """Only models with failures are named, so that none means False."""
    assert pair().failures == {"two": (Failure(1, TOO_LONG),)}
    assert not Ensemble({"one": many(2)}).failures


def test_an_ensemble_raises_for_failures() -> None:
    """The error names the model, and carries the whole ensemble."""
    Ensemble({"one": many(2)}).raise_for_failures()
    results = pair()
    with pytest.raises(RequestError, match="two: 1 of 2 prompts failed: prompt 1: VLLM") as caught:
        results.raise_for_failures()
    assert caught.value.results is results
    assert "one:" not in str(caught.value)


def test_an_ensembles_stats() -> None:
    """Rows, tokens and workers add up; the time is the longest, as models run side by side."""
    workers = [WorkerStats(device="cuda:2", model="three")]
    stats = pair(three=ResultSet([answer(0)], ["a"], workers=workers)).stats
    assert (stats.prompts, stats.failures, stats.output_tokens) == (5, 1, 16)
    assert stats.seconds == 3.0
    assert stats.workers == tuple(workers)


def test_same_prompts_stand_side_by_side() -> None:
    """A frame of models that had the same prompts has a column per model."""
    frame = pair().to_pandas()
    assert list(frame) == ["prompt", "one", "two", "two_error"]
    assert frame["prompt"].tolist() == ["a", "b"]
    assert frame["one"].tolist() == ["answer 0", "answer 1"]
    assert frame["two"].tolist() == ["B0", None]
    assert frame["two_error"].tolist() == [None, "VLLMValidationError: the prompt is too long"]
    assert pair().to_arrow().to_pydict() == frame.to_dict(orient="list")
    assert pair().to_polars().columns == list(frame)


def test_shared_prompts_may_be_any_object() -> None:
    """Arrays are the same prompt where they are the same object."""
    prompts = [np.array([1, 2]), "".join(["a", "b"])]
    sets = {name: ResultSet([answer(0), answer(1)], list(prompts)) for name in ("one", "two")}
    assert list(Ensemble(sets).to_pandas()) == ["prompt", "one", "two"]


def test_different_prompts_stand_below_each_other() -> None:
    """Models with prompts of their own give a frame with a row per model and prompt."""
    own = ResultSet([answer(0, "x", "y")], ["c"])
    frame = pair(three=own).to_pandas()
    assert list(frame) == ["model", *COLUMNS[:2], "texts", *COLUMNS[2:], "device", "error"]
    assert frame["model"].tolist() == ["one", "one", "two", "two", "three"]
    assert frame["prompt"].tolist() == ["a", "b", "a", "b", "c"]
    assert frame["text"].tolist() == ["answer 0", "answer 1", "B0", None, "x"]
    assert frame["texts"].tolist() == [None] * 4 + [["x", "y"]]


def test_a_model_named_like_a_column_loses_nothing() -> None:
    """Where a model's name would hide another column, the frame is the long one."""
    frame = Ensemble({"prompt": many(1)}).to_pandas()
    assert list(frame)[:2] == ["model", "prompt"]
    assert frame["model"].tolist() == ["prompt"]


def test_an_ensemble_shows_answers_side_by_side() -> None:
    """A line per model, then the prompts with each model's answer."""
    lines = repr(pair()).splitlines()
    assert lines[:2] == ["one: 2 prompts, 2 answered", "two: 2 prompts, 1 answered, 1 failed"]
    assert Cells(pair()._repr_html_()).rows == [
        ["#", "prompt", "one", "two"],
        ["0", "a", "answer 0", "B0"],
        ["1", "b", "answer 1", "failed: VLLMValidationError: the prompt is too long"],
    ]
    shown = Cells(Ensemble({"one": many(9)})._repr_html_()).rows
    assert [row[0] for row in shown] == ["#", "0", "1", "2", "3", "4", "…", "7", "8"]


def test_an_ensemble_of_different_prompts_shows_some_of_each() -> None:
    """With prompts of their own, each model shows a few rows."""
    rows = Cells(pair(three=many(9))._repr_html_()).rows
    assert [row[:2] for row in rows] == [
        ["model", "#"],
        ["one", "0"],
        ["one", "1"],
        ["two", "0"],
        ["two", "1"],
        *[["three", shown] for shown in ("0", "1", "…", "8")],
    ]
