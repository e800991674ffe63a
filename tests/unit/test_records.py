"""Outcomes as lines of a journal, and back."""

from __future__ import annotations

import json
import math
import pickle
from array import array
from typing import Any

import cloudpickle
import numpy as np
import pytest

from mgpu_magic.outcomes import (
    Completion,
    Failure,
    Outcome,
    Prediction,
    RemoteError,
    Returned,
    TokenLogprob,
)
from mgpu_magic.records import NotDataError, fields_of, outcome_of


def kept(outcome: Outcome) -> Outcome:
    """What comes back of an outcome, through JSON."""
    return outcome_of(json.loads(json.dumps(fields_of(outcome))), outcome.index)


def completion(**fields: Any) -> Completion:
    """A completion with these fields."""
    given: dict[str, Any] = {
        "index": 3,
        "texts": ("a\n\u2028ü", ""),
        "finish_reasons": ("stop", None),
        "prompt_tokens": 7,
        "output_tokens": 2,
        "seconds": 0.1,
        "device": "cuda:0+1",
    }
    return Completion(**{**given, **fields})


POSITION = (TokenLogprob(5, " a", -0.1, 1), TokenLogprob(9, None, -math.inf, None))


@pytest.mark.parametrize(
    "outcome",
    [
        completion(),
        completion(logprobs=((POSITION, POSITION[:1]), ()), prompt_logprobs=((), POSITION)),
        completion(texts=("", ""), token_ids=((1, 2), ())),
        completion(logprobs=((), ()), token_ids=()),
        completion(cached_tokens=16),
        completion(cached_tokens=0),
        Failure(2, RemoteError("ValueError", "too long"), 2),
    ],
)
def test_an_outcome_comes_back_as_it_was(outcome: Outcome) -> None:
    """Every field of it, whatever is empty."""
    assert kept(outcome) == outcome


@pytest.mark.parametrize("count", [0, 1, 3, 64, 65, 1024])
def test_the_numbers_of_a_prediction_are_exact(count: int) -> None:
    """Each float32 comes back with all its bits: few are written as numbers, many as base64."""
    random = np.random.default_rng(count)
    bits = random.integers(0, 2**32, count, dtype=np.uint32)
    numbers = bits.view(np.float32)
    values = array("f", [x for x in numbers.tolist() if not math.isnan(x)])
    prediction = Prediction(index=1, task="embed", values=values, seconds=0.5, device="cpu:0")
    written = fields_of(prediction)
    assert set(written) == {"task", "values", "seconds", "device"}
    assert isinstance(written["values"], list) == (len(values) <= 64)
    back = kept(prediction)
    assert isinstance(back, Prediction)
    assert back.values.tobytes() == values.tobytes()
    assert back == prediction


def test_the_labels_of_a_prediction() -> None:
    """With what makes probabilities of them, and how much was cut."""
    prediction = Prediction(
        index=0,
        task="classify",
        values=array("f", [0.1, -2.5]),
        labels=("yes", "no"),
        activation="softmax",
        prompt_tokens=5,
        cut_tokens=1,
        seconds=0.0,
        device="cpu:0",
    )
    assert kept(prediction) == prediction


def returned(value: object) -> Returned:
    """What a worker sends that returned `value`."""
    return Returned(index=0, data=cloudpickle.dumps(value), seconds=0.0, device="cpu:0")


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -5,
        10**30,
        0.1,
        "text \u00fc",
        [],
        [1, [2.5, None]],
        {"label": "a", "score": 0.5, "parts": [{"": 1}]},
    ],
)
def test_json_data_of_a_function_is_written_as_it_is(value: object) -> None:
    """So that one can read it, in the journal and with any other program."""
    assert fields_of(returned(value))["value"] == value
    back = kept(returned(value))
    assert isinstance(back, Returned)
    assert repr(back.value) == repr(value)


@pytest.mark.parametrize(
    "value",
    [
        (1, ("a", [2])),
        [("label", 0.5)],
        {1: "a", (2, 3): b"\x00\xff"},
        {"tuple": (1,)},
        {"array": 1, "x": ()},
        np.float32(0.1),
        [np.int64(3), np.bool_(True)],
        {"when": np.datetime64("2026-08-01")},
    ],
)
def test_other_data_of_a_function_keeps_its_kinds(value: object) -> None:
    """Tuples, bytes, keys that are no text, and NumPy's numbers."""
    back = kept(returned(value))
    assert isinstance(back, Returned)
    assert repr(back.value) == repr(value)


@pytest.mark.parametrize("kind", ["float16", "float32", "int64", "bool", "complex64", "U3", "S2"])
def test_arrays_of_a_function(kind: str) -> None:
    """Their type, shape and every number, alone or within other data."""
    value = np.arange(6).reshape(2, 3).astype(kind)
    back = kept(returned({"boxes": value, "more": [value[:, 0]]}))
    assert isinstance(back, Returned)
    assert back.value["boxes"].dtype == value.dtype
    np.testing.assert_array_equal(back.value["boxes"], value)
    np.testing.assert_array_equal(back.value["more"][0], value[:, 0])


class Custom:
    """A class of the user's."""


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (Custom(), "Custom"),
        ([{"x": Custom()}], "Custom"),
        ({1, 2}, "set"),
        (np.array([Custom()]), "Custom"),
        (np.array(["a", None]), "ndarray"),
        (print, "print"),
    ],
)
def test_what_is_no_data_is_not_kept(value: object, what: str) -> None:
    """The error says what it is."""
    with pytest.raises(NotDataError, match=what):
        fields_of(returned(value))


def test_deep_nesting_is_not_kept() -> None:
    """A list within a list within a list, without end."""
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(NotDataError, match="nested too deeply"):
        fields_of(returned(endless))


def test_writing_runs_no_code_of_the_user() -> None:
    """What a result would do when it is unpickled is not done for the journal."""
    data = pickle.dumps(_Calls())
    with pytest.raises(NotDataError, match="getattr"):
        fields_of(Returned(index=0, data=data, seconds=0.0, device="cpu:0"))
    with pytest.raises(NotDataError, match=r"^(EOF|Unpickling|Value)Error: "):
        fields_of(Returned(index=0, data=data[:5], seconds=0.0, device="cpu:0"))


class _Calls:
    def __reduce__(self) -> Any:
        return (getattr, ("", "join"))


@pytest.mark.parametrize(
    "line",
    [
        "5",
        "[]",
        "{}",
        '{"seconds": 1, "device": "cpu:0"}',
        '{"texts": [1], "finish_reasons": [], "seconds": 1, "device": ""}',
        '{"task": "embed", "values": "x", "seconds": 1, "device": ""}',
        '{"task": "embed", "values": {}, "seconds": 1, "device": ""}',
        '{"tagged": {"pickle": "gASVAAAA"}, "seconds": 1, "device": ""}',
        '{"tagged": {"array": "AAAA"}, "seconds": 1, "device": ""}',
        '{"error": 1}',
    ],
)
def test_fields_of_no_outcome(line: str) -> None:
    """They are refused as such, whatever is wrong."""
    with pytest.raises(ValueError):  # noqa: PT011  # its words are for nobody
        outcome_of(json.loads(line), 0)


def test_reading_never_unpickles() -> None:
    """An array of objects, which NumPy would have to unpickle, is refused."""
    import base64
    import io

    buffer = io.BytesIO()
    np.save(buffer, np.array([{}], dtype=object), allow_pickle=True)
    text = base64.b64encode(buffer.getvalue()).decode()
    with pytest.raises(ValueError, match="allow_pickle"):
        outcome_of({"tagged": {"array": text}, "seconds": 0, "device": ""}, 0)
