"""Results as NumPy arrays, aligned with the prompts."""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from answers import generated, predicted, returned

from mgpu_magic.outcomes import Failure, Prediction
from mgpu_magic.results import ResultSet

if TYPE_CHECKING:
    from numpy.typing import NDArray

NAN = math.nan
LN3 = math.log(3)


class Colour(enum.IntEnum):
    """An integer with a name."""

    RED = 1


def same(array: NDArray[Any], rows: Any) -> bool:
    """Whether the array has these rows; NaN equals NaN."""
    expected = np.asarray(rows, dtype=array.dtype)
    return array.shape == expected.shape and np.array_equal(array, expected, equal_nan=True)


# --- what models say -------------------------------------------------------------------------


def test_logits_are_an_array_aligned_with_the_prompts() -> None:
    """Row i belongs to prompt i, in the order of the labels; a failed prompt is a row of NaN."""
    results = predicted("classify", [[1.5, -2.0], None, [0.25, 4.0]], ["no", "yes"])
    assert results.task == "classify"
    assert results.logits.dtype == np.float32
    assert same(results.logits, [[1.5, -2.0], [NAN, NAN], [0.25, 4.0]])
    assert results.label_names == ("no", "yes")
    assert results.labels == ["no", None, "yes"]


def test_probabilities_are_those_of_the_models_kind() -> None:
    """Labels that exclude each other add up to 1; others have a probability each."""
    rows = [[0.0, LN3], None]
    exclusive = predicted("classify", rows, ["no", "yes"]).probabilities
    assert exclusive.dtype == np.float32
    assert np.allclose(exclusive, [[0.25, 0.75], [NAN, NAN]], equal_nan=True)
    several = predicted("classify", rows, ["no", "yes"], "sigmoid")
    assert np.allclose(several.probabilities, [[0.5, 0.75], [NAN, NAN]], equal_nan=True)
    assert several.labels == [None, None]


def test_an_array_says_what_the_rows_say() -> None:
    """`results.probabilities[i]` is `results[i].probabilities`."""
    results = predicted("classify", [[8.0, -3.0, 0.1]], "abc")
    first = results[0]
    assert isinstance(first, Prediction)
    assert same(results.probabilities, [first.probabilities])


def test_choices_have_logprobs_and_probabilities() -> None:
    """The log-probability of each whole choice as it is, and normalised over the choices."""
    results = predicted("choices", [[-1.0, -1.0 - LN3], None], ["Paris", "Rome"])
    assert same(results.logprobs, [[-1.0, -1.0 - LN3], [NAN, NAN]])
    assert np.allclose(results.probabilities[0], [0.75, 0.25])
    assert results.labels == ["Paris", None]
    assert results.label_names == ("Paris", "Rome")


def test_embeddings_and_scores() -> None:
    """An embedding is a row, the score of a pair one number."""
    embedded = predicted("embed", [None, [0.5, 0.25, 1.0]], activation="none")
    assert same(embedded.embeddings, [[NAN] * 3, [0.5, 0.25, 1.0]])
    scored = predicted("score", [[0.5], None], activation="none")
    assert same(scored.scores, [0.5, NAN])
    assert embedded.embeddings.dtype == scored.scores.dtype == np.float32


def test_a_regression_has_logits_alone() -> None:
    """Where numbers are no logits of labels there are no probabilities, and it says so."""
    results = predicted("classify", [[3.7]], ["LABEL_0"], "none")
    assert same(results.logits, [[3.7]])
    with pytest.raises(ValueError, match=r"a regression.*\.logits"):
        _ = results.probabilities


@pytest.mark.parametrize("name", ["logits", "probabilities", "logprobs", "embeddings"])
def test_without_an_answer_there_are_no_columns(name: str) -> None:
    """Nothing answered: as many rows as prompts, no NaN to trip over, and no error."""
    assert getattr(predicted("classify", [None, None]), name).shape == (2, 0)
    assert getattr(ResultSet([], []), name).shape == (0, 0)


def test_without_an_answer_the_rest_is_as_long_as_the_prompts() -> None:
    """Scores are NaN, labels and values None; nothing of nothing is empty."""
    failed = predicted("score", [None, None])
    assert failed.task is None
    assert same(failed.scores, [NAN, NAN])
    assert failed.labels == failed.values == failed.texts == [None, None]
    assert failed.label_names == ()
    assert ResultSet([], []).scores.shape == (0,)
    assert ResultSet([], []).values == []


RESULTS = {
    "generate": generated("x"),
    "classify": predicted("classify", [[1.0]], ["x"]),
    "choices": predicted("choices", [[-1.0]], ["x"]),
    "embed": predicted("embed", [[1.0]]),
    "score": predicted("score", [[1.0]]),
    "python": returned(1),
}


@pytest.mark.parametrize(
    ("task", "name", "instead"),
    [
        ("generate", "logits", ".texts"),
        ("classify", "embeddings", ".logits, .probabilities and .labels"),
        ("classify", "logprobs", ".logits, .probabilities and .labels"),
        ("choices", "logits", ".logprobs, .probabilities and .labels"),
        ("embed", "labels", ".embeddings"),
        ("embed", "label_names", ".embeddings"),
        ("score", "probabilities", ".scores"),
        ("python", "scores", ".values"),
        ("generate", "values", ".texts"),
    ],
)
def test_what_a_task_does_not_give_is_refused(task: str, name: str, instead: str) -> None:
    """The error names the task that the results have, and where their numbers are."""
    with pytest.raises(ValueError, match=rf"{task}.* have no {name}; they have {instead}$"):
        getattr(RESULTS[task], name)


@pytest.mark.parametrize("task", ["classify", "choices", "embed", "score", "python"])
def test_only_generated_text_is_text(task: str) -> None:
    """`texts` is about generation: for other tasks it has a None per prompt."""
    assert RESULTS[task].task == task
    assert RESULTS[task].texts == [None]
    assert generated("x", None).texts == ["x", None]


# --- what functions return -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([1, 2], np.int64, [1, 2]),
        ([1, 2.5], np.float64, [1.0, 2.5]),
        ([True, False], np.bool_, [True, False]),
        ([np.float32(0.5), np.float32(2)], np.float32, [0.5, 2.0]),
        ([np.array([1, 2]), np.array([3, 4])], np.int64, [[1, 2], [3, 4]]),
        ([np.zeros((2, 1), "float16")] * 3, np.float16, [[[0.0], [0.0]]] * 3),
        ([0.5, Failure], np.float64, [0.5, NAN]),
        ([Failure, np.array([1.0, 2.0], "float32")], np.float32, [[NAN, NAN], [1.0, 2.0]]),
    ],
)
def test_numbers_of_one_shape_are_stacked(values: list[Any], dtype: type, expected: Any) -> None:
    """Numbers and arrays come back as one array of their own type; failed rows are NaN."""
    stack = returned(*values).values
    assert isinstance(stack, np.ndarray)
    assert stack.dtype == dtype
    assert same(stack, expected)


@pytest.mark.parametrize(
    "values",
    [
        ["a", "b"],
        [1, "b"],
        [{"a": 1}, None],
        [[1, 2], [3, 4]],
        [1, None],
        [True, 2],
        [2**64, 1],
        [Colour.RED, Colour.RED],
        [np.int64(-1), np.uint64(2**63)],
        [(1, 2), {3}],
    ],
)
def test_other_values_stay_as_they_are(values: list[Any]) -> None:
    """What is not a number, or would change by being stacked, is in a list, of its own type."""
    kept = returned(*values).values
    assert kept == values
    assert [type(value) for value in kept] == [type(value) for value in values]


def test_arrays_that_do_not_stack_stay_as_they_are() -> None:
    """Different shapes, text and masked values are never forced into one array."""
    ragged = returned(np.zeros(2), np.zeros(3)).values
    assert isinstance(ragged, list)
    assert [value.shape for value in ragged] == [(2,), (3,)]
    assert isinstance(returned(np.array(["a"]), np.array(["b"])).values, list)
    masked_array: Any = np.ma.MaskedArray
    masked = returned(masked_array([1.0, 2.0], [False, True])).values
    assert masked[0].mask.tolist() == [False, True]


def test_whole_numbers_with_a_failure_stay_whole() -> None:
    """There is no integer NaN: a list with None, and no ids that became floats."""
    assert returned(2**60 + 1, Failure, 3).values == [2**60 + 1, None, 3]
    assert returned(True, Failure).values == [True, None]
    rows = returned(np.array([1, 2]), Failure).values
    assert isinstance(rows, list)
    assert rows[0].dtype == np.int64


def test_values_are_new_each_time() -> None:
    """To change what `values` gave does not change the results."""
    results = returned([1], [2])
    results.values[0].append(9)
    assert results.values == [[1], [2]]
