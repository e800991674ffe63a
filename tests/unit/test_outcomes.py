"""What a prediction and a returned value tell of themselves."""

from __future__ import annotations

import pickle
from array import array
from typing import Any

import pytest

from mgpu_magic.outcomes import Failure, Prediction, RemoteError, Returned


def prediction(*values: float, **fields: Any) -> Prediction:
    """A prediction with these values."""
    fields = {"task": "classify", "activation": "softmax", **fields}
    return Prediction(index=0, values=array("f", values), seconds=0.1, device="cpu:0", **fields)


def test_a_classification() -> None:
    """The likeliest label, and probabilities that add up to one however large the logits are."""
    outcome = prediction(1000.0, 1001.0, -1000.0, labels=("a", "b", "c"))
    assert outcome.label == "b"
    assert outcome.probabilities == pytest.approx((0.268941, 0.731059, 0.0), abs=1e-6)


def test_several_labels_may_hold_at_once() -> None:
    """A multi-label model has a probability for each, and no likeliest one."""
    outcome = prediction(0.0, 800.0, -800.0, labels=("a", "b", "c"), activation="sigmoid")
    assert outcome.label is None
    assert outcome.probabilities == (0.5, 1.0, 0.0)


def test_a_single_logit_is_one_probability() -> None:
    """A head of one label, as rerankers have it."""
    outcome = prediction(0.0, labels=("relevant",), activation="sigmoid")
    assert (outcome.label, outcome.probabilities) == ("relevant", (0.5,))


def test_choices_are_weighed_among_themselves() -> None:
    """The log-probabilities of the whole choices, normalised over the choices."""
    values = (-2.34, -8.92, -10.44, -7.45)
    labels = ("Paris", "London", "Berlin", "Madrid")
    outcome = prediction(*values, labels=labels, task="choices")
    assert outcome.label == "Paris"
    assert outcome.probabilities[0] == pytest.approx(0.9923, abs=1e-4)
    assert sum(outcome.probabilities) == pytest.approx(1.0)


def test_a_vector_has_neither_label_nor_probabilities() -> None:
    """An embedding is its values."""
    outcome = prediction(0.5, -0.5, task="embed", activation="none")
    assert (outcome.label, outcome.probabilities) == (None, ())
    assert list(outcome.values) == [0.5, -0.5]


def test_a_regression_has_a_label_without_probabilities() -> None:
    """Its value is the answer."""
    outcome = prediction(3.5, labels=("price",), activation="none")
    assert (outcome.label, outcome.probabilities) == ("price", ())


def test_a_returned_value_is_a_copy() -> None:
    """To change it does not change the results."""
    outcome = Returned(index=0, data=pickle.dumps([1, 2]), seconds=0.1, device="cpu:0")
    outcome.value.append(3)
    assert outcome.value == [1, 2]


def test_outcomes_travel() -> None:
    """What a worker sends is what the kernel reads."""
    sent = prediction(0.25, -1.5, labels=("a", "b"), cut_tokens=3)
    assert pickle.loads(pickle.dumps(sent, protocol=5)) == sent


def raised(act: Any) -> BaseException:
    """The error of a call."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  # any error will do
        act()
    return caught.value


def test_an_error_as_text() -> None:
    """Its type, its words and the way to it."""
    error = RemoteError.of(raised(lambda: int("x")))
    assert (error.kind, error.message[:15]) == ("ValueError", "invalid literal")
    assert error.traceback.startswith("Traceback (most recent call last):\n")
    assert error.traceback.endswith(f"ValueError: {error.message}\n")
    assert RemoteError.of(raised(lambda: int("x")), with_traceback=False).traceback == ""


def test_a_failed_row_is_short_to_look_at() -> None:
    """A message of 10,000 characters keeps its ends; the traceback stands in its attribute."""
    error = RemoteError("ValueError", "begin " + "x" * 10_000 + " end", "Traceback ...")
    shown = repr(Failure(3, error))
    assert shown.startswith("Failure(index=3, error=RemoteError(kind='ValueError', message='begin ")
    assert shown.endswith(" end'), attempts=1)")
    assert len(shown) < 700
    assert len(error.message) == 10_010


def test_our_own_frames_explain_nothing() -> None:
    """A traceback begins where the package called the user's code, or where it raised itself."""
    own = RemoteError.of(raised(lambda: prediction(labels=("a",)).probabilities))
    assert own.traceback.count('File "') >= 1
    assert "outcomes.py" in own.traceback
