"""What a job gives back, in whatever order the answers came."""

from __future__ import annotations

import pickle
import random

import pytest
from answers import (
    INTERRUPTED,
    TOO_LONG,
    Cells,
    answer,
    many,
    predicted,
    returned,
    two_of_three,
)

from mgpu_magic.errors import ProtocolError, RequestError
from mgpu_magic.outcomes import Completion, Failure
from mgpu_magic.results import Collector, ResultSet
from mgpu_magic.stats import RunStats, WorkerStats

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


def test_answers_of_a_journal_took_no_time() -> None:
    """They are among the results and said, but count for no speed of the job."""
    collector = Collector([*"abc"], [answer(0), answer(2)])
    assert collector.remaining == 1
    collector.add(answer(1))
    stats = collector.results(seconds=2.0).stats
    assert stats.headline == "3 prompts, 3 answered, 2 from the journal"
    assert (stats.output_tokens, stats.output_tokens_per_second) == (12, 2.0)
    assert stats.prompts_per_second == 0.5


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
        cut_prompts=0,
        prompt_tokens=20,
        output_tokens=8,
        seconds=4.0,
    )
    assert stats.output_tokens_per_second == 2.0
    assert stats.headline == "4 prompts, 2 answered, 1 failed, 1 not finished, 1 cut by length"


def test_stats_count_what_other_tasks_give() -> None:
    """Predictions have prompt tokens and no output; prompts that were cut are said in words."""
    cut = predicted("embed", [[1.0]] * 3, cut=5)
    assert cut.stats.headline == "3 prompts, 3 answered, 3 cut to the model's limit"
    assert (cut.stats.cut_prompts, cut.stats.prompt_tokens, cut.stats.output_tokens) == (3, 21, 0)
    whole = predicted("embed", [[1.0], None])
    assert whole.stats.headline == "2 prompts, 1 answered, 1 failed"
    assert returned(1, 2).stats.headline == "2 prompts, 2 answered"
    assert returned(1, 2).stats.prompt_tokens == 0


@pytest.mark.parametrize("seconds", [None, 0.0])
def test_an_unknown_rate_is_none(seconds: float | None) -> None:
    """Without a time there is no rate, and no division by zero."""
    stats = ResultSet([answer(0)], ["a"], seconds=seconds).stats
    assert stats.output_tokens_per_second is None
    assert stats.prompts_per_second is None
    assert repr(stats) == "1 prompt, 1 answered; 4 output tokens"


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
    assert headline == "1 prompt, 1 answered; 4 output tokens in 2.0 s (2.0 tokens/s)"
    assert header.split()[:2] == ["device", "model"]
    assert " ".join(first.split()) == "cuda:0 Qwen/Qwen2.5 12.3 3 30 12 182 tokens/s 1.50 1"
    assert " ".join(second.split()) == "cuda:1 <b> n/a 0 0 0 n/a n/a 0"
    page = Cells(stats._repr_html_())
    assert page.rows[2] == second.split()
    assert "b" not in page.tags


def test_stats_without_tokens_show_prompts_per_second() -> None:
    """A classifier's speed is that of its prompts; failed ones do not count."""
    worker = WorkerStats(
        device="cpu:0", model="m", output_tokens_per_second=0.0, prompts_per_second=56.0
    )
    results = predicted("score", [[0.5], None, [0.25]])
    stats = ResultSet(results, "abc", seconds=4.0, workers=[worker]).stats
    assert stats.prompts_per_second == 0.5
    headline, _, row = repr(stats).splitlines()
    assert headline == "3 prompts, 2 answered, 1 failed; 4.0 s (0.5 prompts/s)"
    assert "56.0 prompts/s" in row
