"""The results of several models, by name and side by side."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from answers import TOO_LONG, Cells, answer, generated, many, predicted, returned

from mgpu_magic.ensemble import Ensemble
from mgpu_magic.errors import RequestError
from mgpu_magic.outcomes import Failure
from mgpu_magic.results import ResultSet
from mgpu_magic.stats import WorkerStats


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
    assert list(frame) == [
        *("model", "prompt", "text", "texts", "finish_reason"),
        *("prompt_tokens", "output_tokens", "seconds", "device", "error"),
    ]
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


# --- models of other tasks -------------------------------------------------------------------

ERROR = "VLLMValidationError: the prompt is too long"


def test_each_model_has_a_group_of_columns() -> None:
    """A frame of models of any tasks: each model's columns bear its name."""
    results = Ensemble(
        {
            "gemma": predicted("classify", [[1.0, 3.0], None], ["neg", "pos"], "none"),
            "quiz": predicted("choices", [[0.0, 0.0]] * 2, ["A", "B"]),
            "rank": predicted("score", [[0.5], [0.25]]),
            "bert": predicted("embed", [[1.0, 2.0], None]),
            "count": returned(3, Failure),
            "chat": generated("x", "y"),
            "broken": generated(None, None),
        }
    )
    expected = {
        "prompt": ["a", "b"],
        "gemma_label": ["pos", None],
        "gemma_neg": [1.0, None],
        "gemma_pos": [3.0, None],
        "gemma_error": [None, ERROR],
        "quiz_choice": ["A", "A"],
        "quiz_A": [0.5, 0.5],
        "quiz_B": [0.5, 0.5],
        "rank": [0.5, 0.25],
        "bert": [[1.0, 2.0], None],
        "bert_error": [None, ERROR],
        "count": [3, None],
        "count_error": [None, ERROR],
        "chat": ["x", "y"],
        "broken": [None, None],
        "broken_error": [ERROR, ERROR],
    }
    assert results.to_arrow().to_pydict() == expected
    assert list(results.to_arrow().to_pydict()) == list(expected)
    assert results.to_polars().to_dict(as_series=False) == expected
    frame = results.to_pandas()
    assert list(frame) == list(expected)
    assert frame["gemma_pos"].dtype == "Float64"
    assert frame["count"].dtype == "Int64"


def test_a_label_named_like_a_column_of_its_model_keeps_its_own() -> None:
    """A label called `label` or `error` gets a `_`; the frame stays one row per prompt."""
    own = predicted("classify", [[1.0, 2.0], None], ["label", "error"], "none")
    assert Ensemble({"m": own}).to_arrow().to_pydict() == {
        "prompt": ["a", "b"],
        "m_label": ["error", None],
        "m_label_": [1.0, None],
        "m_error_": [2.0, None],
        "m_error": [None, ERROR],
    }


def test_models_whose_columns_collide_lose_nothing() -> None:
    """Where one model's column would hide another's, the frame has a row per model and prompt."""
    label = predicted("classify", [[1.0, 2.0]], ["neg", "model"], "none")
    table = Ensemble({"m": label, "m_neg": generated("x")}).to_arrow().to_pydict()
    assert table["model"] == ["m", "m_neg"]
    assert table["label"] == ["model", None]
    assert (table["neg"], table["model_"]) == ([1.0, None], [2.0, None])
    assert table["text"] == [None, "x"]
    assert table["prompt_tokens"] == [7, 10]
    assert list(table)[-3:] == ["seconds", "device", "error"]


def test_columns_of_one_name_and_several_kinds_become_objects() -> None:
    """A label called `text` shares its column with the texts of a generating model."""
    label = predicted("classify", [[0.5]], ["text"], "none")
    results = Ensemble({"m": label, "n": many(1)})
    assert results.to_pandas()["text"].tolist() == [0.5, "answer 0"]
    assert results.to_arrow()["text"].to_pylist() == ["0.5", "answer 0"]


def test_answers_of_other_tasks_are_shown_side_by_side() -> None:
    """The table shows each model's answer in its own way."""
    results = Ensemble(
        {
            "gemma": predicted("classify", [[0.0, 4.0]], ["neg", "pos"]),
            "rank": predicted("score", [[0.5]]),
            "count": returned(3),
        }
    )
    assert Cells(results._repr_html_()).rows == [
        ["#", "prompt", "gemma", "rank", "count"],
        ["0", "a", "pos 0.98", "0.500", "3"],
    ]
    assert results.stats.headline == "3 prompts, 3 answered"


def test_tokens_are_shown_where_a_model_generates() -> None:
    """Below each other, models without tokens have an empty cell, or none has one."""
    score = predicted("score", [[0.5]])
    mixed = Cells(Ensemble({"rank": score, "chat": many(1)})._repr_html_()).rows
    assert mixed == [
        ["model", "#", "prompt", "answer", "device", "tokens"],
        ["rank", "0", "a", "0.500", "cpu:1", ""],
        ["chat", "0", "prompt 0", "answer 0", "cuda:0", "4"],
    ]
    others = ResultSet(returned(1), ["c"])
    none = Cells(Ensemble({"rank": score, "count": others})._repr_html_()).rows
    assert [row[-1] for row in none] == ["device", "cpu:1", "cpu:1"]
