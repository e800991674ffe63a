"""The mean over several models."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from answers import LABELS, answer, classified, generated, logits, many, predicted, returned

from mgpu_magic.ensemble import Ensemble
from mgpu_magic.outcomes import Failure
from mgpu_magic.results import ResultSet

NAN = math.nan


def pair() -> Ensemble:
    """Two classifiers; the second failed at prompt 1."""
    return Ensemble(
        {"one": classified([1.0, 2.0], [3.0, 4.0]), "two": classified([3.0, 8.0], None)}
    )


# --- the mean --------------------------------------------------------------------------------


def test_the_mean_is_over_the_models_that_answered() -> None:
    """Where a model failed the others count alone; where all failed the row is NaN."""
    results = Ensemble(
        {
            "one": classified([1.0, 2.0], [3.0, 4.0], None),
            "two": classified([3.0, 8.0], None, None),
        }
    )
    mean = results.mean()
    assert mean.dtype == np.float32
    assert np.array_equal(mean, [[2.0, 5.0], [3.0, 4.0], [NAN, NAN]], equal_nan=True)


def test_weights_are_shared_among_those_that_answered() -> None:
    """A weight says how much a model counts beside the others, not how large the mean is."""
    assert pair().mean(weights={"one": 3, "two": 1}).tolist() == [[1.5, 3.5], [3.0, 4.0]]
    numpy: Any = {"two": np.float32(0.5), "one": 1.5}
    assert pair().mean(weights=numpy).tolist() == [[1.5, 3.5], [3.0, 4.0]]


def test_columns_are_matched_by_name_of_label() -> None:
    """Models that order their labels differently are averaged label by label."""
    turned = classified([8.0, 3.0], None, labels=("yes", "no"))
    results = Ensemble({"one": pair()["one"], "turned": turned})
    assert results.label_names == ("no", "yes")
    assert results.mean().tolist() == pair().mean().tolist()
    other = Ensemble({"turned": turned, "one": pair()["one"]})
    assert other.label_names == ("yes", "no")
    assert other.mean().tolist() == [[5.0, 2.0], [4.0, 3.0]]
    assert other.mean(weights={"turned": 0, "one": 1}).tolist() == [[2.0, 1.0], [4.0, 3.0]]


def test_a_model_that_failed_altogether_is_left_out() -> None:
    """One model that could not be loaded does not cost the others' mean."""
    results = Ensemble({"broken": classified(None, None), **pair()})
    assert results.label_names == LABELS
    assert results.mean().tolist() == pair().mean().tolist()
    nothing = Ensemble({"broken": classified(None, None)})
    assert nothing.mean().shape == (2, 0)
    assert nothing.mean(of="scores").shape == (2,)
    assert nothing.label_names == ()


def test_no_prompts_have_an_empty_mean() -> None:
    """Nothing to do is no error."""
    empty = ResultSet([], [])
    assert Ensemble({"one": empty, "two": empty}).mean().shape == (0, 0)


def test_a_nan_that_a_model_gave_is_not_hidden() -> None:
    """Only a failed prompt is left out of the mean; a model's own NaN shows."""
    results = Ensemble({"one": classified([NAN, 1.0]), "two": classified([2.0, 3.0])})
    assert np.array_equal(results.mean(), [[NAN, 2.0]], equal_nan=True)


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        (predicted("choices", [logits(0.2, 0.2)], ["a", "b"]), [[0.5, 0.5]]),
        (predicted("score", [[3.0]]), [3.0]),
        (predicted("embed", [[1.0, 3.0]]), [[1.0, 3.0]]),
        (returned(np.array([[1.0], [2.0]])), [[[1.0], [2.0]]]),
        (returned(7), [7.0]),
        (classified([1.0, 3.0]), [[1.0, 3.0]]),
    ],
)
def test_each_task_has_its_mean(results: ResultSet, expected: Any) -> None:
    """Logits of classifiers, probabilities of choices, scores, embeddings, values."""
    assert np.allclose(Ensemble({"one": results, "two": results}).mean(), expected)


def test_any_array_of_the_models_can_be_averaged() -> None:
    """`of` takes another array than the usual one."""
    results = Ensemble({"one": classified(logits(0.2, 0.8)), "two": classified(logits(0.6, 0.4))})
    assert np.allclose(results.mean(of="probabilities"), [[0.4, 0.6]])
    chosen = predicted("choices", [[-1.0, -2.0]], ["a", "b"])
    assert Ensemble({"one": chosen}).mean(of="logprobs").tolist() == [[-1.0, -2.0]]
    both = Ensemble({"one": classified(logits(0.2, 0.8)), "two": chosen})
    with pytest.raises(ValueError, match=r"'one': classify, 'two': choices.*of='probabilities'"):
        both.mean()


def test_whole_numbers_have_a_mean_where_a_prompt_failed() -> None:
    """Counts that a function returned become floats, as a mean of them is none anyway."""
    results = Ensemble({"one": returned(1, Failure, 4), "two": returned(2, Failure, Failure)})
    assert np.array_equal(results.mean(), [1.5, NAN, 4.0], equal_nan=True)
    assert results.mean().dtype == np.float64


# --- models that do not fit together ---------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (classified([1.0, 2.0], labels=("no", "maybe")), "'one' and 'two' have different labels"),
        (classified([1.0], labels=("no",)), "'one' and 'two' have different labels"),
        (predicted("classify", [[1.0, 2.0]]), "'one' and 'two' have different labels"),
        (generated("x"), r"model 'two' generates text.*\.vote\(\)"),
        (predicted("embed", [[1.0]]), "different tasks .*'one': classify, 'two': embed"),
    ],
)
def test_models_that_do_not_fit_are_named(other: ResultSet, message: str) -> None:
    """A mean of columns that mean different things is refused; a weight of 0 leaves one out."""
    results = Ensemble({"one": classified([1.0, 2.0]), "two": other})
    with pytest.raises(ValueError, match=message):
        results.mean()
    assert results.mean(weights={"one": 2, "two": 0}).tolist() == [[1.0, 2.0]]


def test_labels_that_occur_twice_cannot_be_matched() -> None:
    """Two columns of one name are matched by their place, or not at all."""
    double = ("a", "a", "b")
    one = classified([1.0, 2.0, 3.0], labels=double)
    assert Ensemble({"one": one, "two": one}).mean().tolist() == [[1.0, 2.0, 3.0]]
    other = classified([1.0, 2.0, 3.0], labels=("b", "a", "a"))
    with pytest.raises(ValueError, match="'one' and 'two' have different labels"):
        Ensemble({"one": one, "two": other}).mean()


def test_embeddings_of_other_lengths_are_named() -> None:
    """The error says how long each model's are."""
    results = Ensemble({"one": predicted("embed", [[1.0]]), "two": predicted("embed", [[1.0] * 2])})
    with pytest.raises(ValueError, match=r"'one' and 'two' .* shapes \(\(1,\) and \(2,\) per"):
        results.mean()


def test_values_that_are_no_numbers_have_no_mean() -> None:
    """The model whose function returned them is named."""
    with pytest.raises(ValueError, match="model 'two' returned what is no number"):
        Ensemble({"one": returned(1), "two": returned("x")}).mean()


@pytest.mark.parametrize(
    ("of", "message"),
    [
        ("embeddings", "model 'one': results of the task 'classify' have no embeddings"),
        ("mean", "of is 'mean'; choose one of logits, probabilities, logprobs, embeddings"),
    ],
)
def test_an_array_that_there_is_not_is_refused(of: Any, message: str) -> None:
    """The error says what there is instead."""
    with pytest.raises(ValueError, match=message):
        pair().mean(of=of)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"one": 1}, "no number for 'two'; give one for each of 'one', 'two'"),
        ({"one": 1, "two": 1, "gemma": 1}, "'gemma', which is no model; there are 'one', 'two'"),
        ({"one": 1, "two": -1}, r"weights\['two'\] is -1; pass a number of 0 or more"),
        ({"one": 1, "two": NAN}, r"weights\['two'\] is nan"),
        ({"one": 1, "two": math.inf}, r"weights\['two'\] is inf"),
        ({"one": 1, "two": "2"}, r"weights\['two'\] is '2'"),
        ({"one": 1, "two": True}, r"weights\['two'\] is True"),
        ({"one": 0, "two": 0.0}, "weights are all 0"),
        ([1, 2], "weights is of type list; pass a dict with a number for each of 'one', 'two'"),
    ],
)
def test_wrong_weights_are_refused(weights: Any, message: str) -> None:
    """A weight that is missing, misspelt or no number is named, for the mean and the vote."""
    for ask in (pair().mean, pair().vote):
        with pytest.raises(ValueError, match=message):
            ask(weights=weights)


def test_models_with_other_prompts_are_named() -> None:
    """Rows that belong to different prompts are never put together."""
    results = Ensemble({"one": generated("x", "y"), "two": many(2)})
    for ask in (results.mean, results.vote):
        with pytest.raises(ValueError, match="models 'one' and 'two' had different prompts"):
            ask()
    assert results.vote(weights={"one": 0, "two": 1}) == ["answer 0", "answer 1"]
    with pytest.raises(ValueError, match="the ensemble has no models"):
        Ensemble({}).mean()


@pytest.mark.parametrize(
    ("prompt", "again", "equal"),
    [
        (("a", "b"), ("a", "b"), True),
        (np.array([1, 2]), np.array([1, 2]), True),
        (np.array([1, 2]), np.array([1, 3]), False),
        ([np.array([1, 2])], [np.array([1, 2])], False),
        (["a"], ("a",), False),
        (object(), object(), False),
    ],
)
def test_prompts_are_the_same_where_their_data_is(prompt: Any, again: Any, equal: bool) -> None:
    """A data frame gives each model new objects of the same text and numbers."""
    one, other = (ResultSet([answer(0, "x")], [own]) for own in (prompt, again))
    results = Ensemble({"one": one, "other": other})
    if equal:
        assert results.vote() == ["x"]
    else:
        with pytest.raises(ValueError, match="had different prompts"):
            results.vote()
