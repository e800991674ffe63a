"""Results as frames of pandas, Polars and Arrow."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from answers import TOO_LONG, answer, predicted, returned, two_of_three

from mgpu_magic.outcomes import Failure
from mgpu_magic.results import ResultSet

if TYPE_CHECKING:
    from mgpu_magic.outcomes import Outcome

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


# --- other tasks -----------------------------------------------------------------------------


def columns(results: ResultSet) -> dict[str, list[Any]]:
    """The Arrow table's columns, which the Polars frame must have alike."""
    table: dict[str, list[Any]] = results.to_arrow().to_pydict()
    assert results.to_polars().to_dict(as_series=False) == table
    assert list(results.to_pandas()) == list(table)
    return table


def test_a_classifiers_frame() -> None:
    """The likeliest label, and the probability of each label in a column of its name."""
    results = predicted("classify", [[0.0, math.log(3)], None], ["no", "yes"])
    table = columns(results)
    assert table.pop("yes") == [pytest.approx(0.75), None]
    assert table.pop("no") == [pytest.approx(0.25), None]
    assert table == {
        "prompt": ["a", "b"],
        "label": ["yes", None],
        "prompt_tokens": [7, None],
        "seconds": [0.25, None],
        "device": ["cpu:1", None],
        "error": [None, "VLLMValidationError: the prompt is too long"],
    }
    frame = results.to_pandas()
    assert list(frame)[:5] == ["prompt", "label", "no", "yes", "prompt_tokens"]
    assert frame["yes"].dtype == "Float64"
    assert frame["yes"].mean() == pytest.approx(0.75)


def test_a_regressions_frame_has_its_numbers() -> None:
    """Where there are no probabilities the numbers themselves stand in the columns."""
    table = columns(predicted("classify", [[2.5], [-1.0]], ["LABEL_0"], "none"))
    assert table["LABEL_0"] == [2.5, -1.0]


def test_a_label_may_be_called_like_a_column() -> None:
    """A name that is in use gets a `_`, until it is new; nothing is overwritten."""
    names = ["prompt", "error", "label", "cut_tokens", "error_", "a", "a"]
    table = columns(predicted("classify", [[float(i) for i in range(7)]], names, "none"))
    assert list(table) == [
        *("prompt", "label", "prompt_", "error_", "label_", "cut_tokens_", "error__", "a", "a_"),
        *("prompt_tokens", "seconds", "device", "error"),
    ]
    assert [table[name] for name in ("prompt", "prompt_", "error_", "error__", "a_")] == [
        ["a"],
        [0.0],
        [1.0],
        [4.0],
        [6.0],
    ]


def test_a_frame_of_choices() -> None:
    """The best choice, and each choice's probability among the choices."""
    table = columns(predicted("choices", [None, [-1.0, -1.0 - math.log(3)]], ["Paris", "Rome"]))
    assert list(table)[:4] == ["prompt", "choice", "Paris", "Rome"]
    assert table["choice"] == [None, "Paris"]
    assert table["Rome"] == [None, pytest.approx(0.25)]


def test_a_frame_of_embeddings_and_one_of_scores() -> None:
    """An embedding is a list of numbers, a score a number."""
    results = predicted("embed", [[0.5, -0.25], None], activation="none")
    assert columns(results)["embedding"] == [[0.5, -0.25], None]
    assert results.to_pandas()["embedding"].tolist() == [[0.5, -0.25], None]
    assert columns(predicted("score", [None, [0.5]], activation="none"))["score"] == [None, 0.5]


def test_cut_prompts_have_a_column() -> None:
    """How many tokens were not read, only where any was not."""
    table = columns(predicted("embed", [[1.0], None], cut=3))
    assert list(table)[2:4] == ["prompt_tokens", "cut_tokens"]
    assert table["cut_tokens"] == [3, None]
    assert "cut_tokens" not in columns(predicted("embed", [[1.0]]))


@pytest.mark.parametrize(
    ("values", "kept", "dtype"),
    [
        ([1, Failure], [1, None], "Int64"),
        ([np.int32(1), 2], [1, 2], "Int64"),
        ([0.5, 2, Failure], [0.5, 2.0, None], "Float64"),
        ([np.float32(0.5)], [0.5], "Float64"),
        ([True, None], [True, None], "boolean"),
        (["a", Failure], ["a", None], "object"),
        ([2**64], ["18446744073709551616"], "object"),
        ([0.5, 2**53 + 1], ["0.5", "9007199254740993"], "object"),
        ([1, "a"], ["1", "a"], "object"),
        ([np.array([1, 2]), {"a": np.float64(2)}], ["[1, 2]", '{"a": 2.0}'], "object"),
        ([{(1, 2): 3}], ["{(1, 2): 3}"], "object"),
    ],
)
def test_values_of_a_function(values: list[Any], kept: list[Any], dtype: str) -> None:
    """Numbers, truths and text have their type; other values are written as text for Arrow."""
    results = returned(*values)
    table = columns(results)
    assert list(table) == ["prompt", "value", "seconds", "device", "error"]
    assert table["value"] == kept
    assert results.to_pandas()["value"].dtype == dtype


def test_pandas_keeps_any_value_of_a_function() -> None:
    """Objects are in the frame as the function returned them."""
    frame = returned(np.array([1, 2]), {"a": 1}, Failure).to_pandas()
    assert frame["value"][0].tolist() == [1, 2]
    assert frame["value"].tolist()[1:] == [{"a": 1}, None]


class Stubborn:
    """A value that cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_a_value_that_cannot_be_written_is_named() -> None:
    """A function's odd object does not cost the frame."""
    assert columns(returned(Stubborn(), [Stubborn()]))["value"] == ["(Stubborn)", "(list)"]


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_a_missing_library_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library a frame is refused with what to install."""
    monkeypatch.setitem(sys.modules, library, None)
    convert = getattr(two_of_three(), f"to_{library.removeprefix('py')}")
    with pytest.raises(ImportError, match=f"this needs {library}: pip install {library}"):
        convert()
