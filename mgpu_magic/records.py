"""Outcomes as plain fields for a line of JSON, and back.

```
Completion, Prediction, Returned, Failure ──fields──> dict ──outcome──> the same
```

What is empty or None is left out. What a function returned is kept where it is data: JSON, and
tuples, bytes, arrays and numbers of NumPy. Reading makes values of fields and unpickles nothing;
writing unpickles what came from a worker, and of that no object but NumPy's.
Pure. Imports `outcomes` alone.
"""

from __future__ import annotations

import base64
import io
import pickle
from array import array
from typing import TYPE_CHECKING, Any, assert_never

from mgpu_magic.outcomes import (
    Completion,
    Failure,
    Outcome,
    Prediction,
    RemoteError,
    Returned,
    TokenLogprob,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mgpu_magic.outcomes import Logprobs

LISTED_VALUES = 64
"""So many numbers of a prediction are written as numbers; an embedding would hide the rest."""


class NotDataError(ValueError):
    """A function returned what cannot be kept in a file; the message says what."""


def fields_of(outcome: Outcome) -> dict[str, Any]:
    """The fields of an outcome but its index, as JSON data.

    Raises:
        NotDataError: It is of a function and cannot be kept.
    """
    match outcome:
        case Completion():
            fields = {
                "texts": outcome.texts,
                "finish_reasons": outcome.finish_reasons,
                "prompt_tokens": outcome.prompt_tokens,
                "output_tokens": outcome.output_tokens,
            }
            if outcome.logprobs is not None:
                fields["logprobs"] = [_rows(of_text) for of_text in outcome.logprobs]
            if outcome.prompt_logprobs is not None:
                fields["prompt_logprobs"] = _rows(outcome.prompt_logprobs)
            if outcome.token_ids is not None:
                fields["token_ids"] = outcome.token_ids
            if outcome.cached_tokens is not None:
                fields["cached_tokens"] = outcome.cached_tokens
        case Prediction():
            fields = {
                "task": outcome.task,
                "values": _numbers(outcome.values),
                "labels": outcome.labels,
                "activation": "" if outcome.activation == "none" else outcome.activation,
                "prompt_tokens": outcome.prompt_tokens,
                "cut_tokens": outcome.cut_tokens,
            }
            given = ("task", "values")
            fields = {name: value for name, value in fields.items() if value or name in given}
        case Returned():
            fields = _value_fields(_unpickled(outcome.data))
        case Failure(_, error, attempts):
            return {"error": error.kind, "message": error.message, "attempts": attempts}
        case _:
            assert_never(outcome)
    return {**fields, "seconds": outcome.seconds, "device": outcome.device}


def outcome_of(fields: dict[str, Any], index: int) -> Outcome:
    """The outcome of these fields, as that of the prompt at `index`.

    Raises:
        ValueError: They are those of none.
    """
    try:
        return _outcome(fields, index)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _outcome(fields: dict[str, Any], index: int) -> Outcome:
    if "error" in fields:
        error = RemoteError(fields["error"], fields["message"])
        return Failure(index, error, fields["attempts"])
    seconds, device = float(fields["seconds"]), str(fields["device"])
    if "texts" in fields:
        logprobs, of_prompt = fields.get("logprobs"), fields.get("prompt_logprobs")
        token_ids = fields.get("token_ids")
        return Completion(
            index=index,
            texts=tuple(map(_text, fields["texts"])),
            finish_reasons=tuple(fields["finish_reasons"]),
            prompt_tokens=int(fields["prompt_tokens"]),
            output_tokens=int(fields["output_tokens"]),
            seconds=seconds,
            device=device,
            logprobs=None if logprobs is None else tuple(map(_logprobs, logprobs)),
            prompt_logprobs=None if of_prompt is None else _logprobs(of_prompt),
            token_ids=None if token_ids is None else tuple(map(tuple, token_ids)),
            cached_tokens=fields.get("cached_tokens"),
        )
    if "task" in fields:
        return Prediction(
            index=index,
            task=fields["task"],
            values=_array(fields["values"]),
            labels=tuple(fields.get("labels", ())),
            activation=fields.get("activation", "none"),
            prompt_tokens=fields.get("prompt_tokens", 0),
            cut_tokens=fields.get("cut_tokens", 0),
            seconds=seconds,
            device=device,
        )
    value = fields["value"] if "value" in fields else _untagged(fields["tagged"])
    return Returned(index=index, data=pickle.dumps(value, 5), seconds=seconds, device=device)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text is {value!r}")
    return value


def _rows(logprobs: Logprobs) -> list[list[list[Any]]]:
    return [
        [[one.token_id, one.token, one.logprob, one.rank] for one in position]
        for position in logprobs
    ]


def _logprobs(rows: Iterable[Iterable[Any]]) -> Logprobs:
    return tuple(tuple(TokenLogprob(*one) for one in position) for position in rows)


def _numbers(values: array[float]) -> list[float] | str:
    """Nine digits name a float32 exactly."""
    if len(values) <= LISTED_VALUES:
        return [float(f"{value:.9g}") for value in values]
    return base64.b64encode(values.tobytes()).decode()


def _array(written: list[float] | str) -> array[float]:
    if isinstance(written, str):
        values = array("f")
        values.frombytes(base64.b64decode(written, validate=True))
        return values
    if not isinstance(written, list):
        raise TypeError(f"the values are {written!r}")
    return array("f", written)


# --- what a function returned ----------------------------------------------------------------


class _OnlyData(pickle.Unpickler):
    """Makes data of a pickle, and runs no code of the user's: that was not asked for here."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "numpy" and name in _OF_NUMPY:
            return super().find_class(module, name)
        raise NotDataError(f"{module}.{name}".removeprefix("builtins."))


_OF_NUMPY = ("ndarray", "dtype", "scalar", "_reconstruct", "_frombuffer")


def _unpickled(data: bytes) -> Any:
    try:
        return _OnlyData(io.BytesIO(data)).load()
    except NotDataError:
        raise
    except Exception as error:  # a pickle can ask for anything
        raise NotDataError(f"{type(error).__name__}: {error}") from error


def _value_fields(value: Any) -> dict[str, Any]:
    try:
        return {"value": value} if _is_json(value) else {"tagged": _tagged(value)}
    except RecursionError:
        raise NotDataError("a value that is nested too deeply") from None


def _is_json(value: Any) -> bool:
    kind = type(value)
    if kind is list:
        return all(map(_is_json, value))
    if kind is dict:
        return all(type(key) is str for key in value) and all(map(_is_json, value.values()))
    return kind in (str, int, float, bool, type(None))


def _tagged(value: Any) -> Any:
    """Lists are lists; all else that JSON lacks is an object of one entry, its kind."""
    if hasattr(value, "dtype") and not value.dtype.hasobject:
        return _saved(value)
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list():
            return [_tagged(item) for item in value]
        case tuple():
            return {"tuple": [_tagged(item) for item in value]}
        case dict():
            return {"dict": [[_tagged(key), _tagged(item)] for key, item in value.items()]}
        case bytes():
            return {"bytes": base64.b64encode(value).decode()}
    raise NotDataError(type(value).__qualname__)


def _saved(value: Any) -> dict[str, str]:
    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, value, allow_pickle=False)
    name = "array" if isinstance(value, np.ndarray) else "number"
    return {name: base64.b64encode(buffer.getvalue()).decode()}


def _untagged(written: Any) -> Any:
    match written:
        case list():
            return [_untagged(item) for item in written]
        case {"tuple": items}:
            return tuple(_untagged(item) for item in items)
        case {"dict": pairs}:
            return {_untagged(key): _untagged(item) for key, item in pairs}
        case {"bytes": text}:
            return base64.b64decode(text, validate=True)
        case {"array": text}:
            return _loaded(text)
        case {"number": text}:
            return _loaded(text)[()]
        case dict():
            raise ValueError(f"there is no value of the kind {list(written)}")
    return written


def _loaded(text: str) -> Any:
    import numpy as np

    return np.load(io.BytesIO(base64.b64decode(text, validate=True)), allow_pickle=False)
