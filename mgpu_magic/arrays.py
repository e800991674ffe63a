"""Outcomes as NumPy arrays: a row per prompt, NaN where there is no answer.

```
outcomes ──┬─> logits and the like   (n, k) float32
           ├─> probabilities         (n, k) float32
           └─> what functions returned, stacked where it fits
arrays of several models ──mean()──> one array
```

NumPy is imported when an array is asked for. Imports `outcomes` alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, assert_never

from mgpu_magic.outcomes import Completion, Failure, Prediction, Returned

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from mgpu_magic.outcomes import Outcome

AnsweredTask: TypeAlias = Literal["generate", "classify", "choices", "embed", "score", "python"]


def task_of(outcomes: Sequence[Outcome]) -> AnsweredTask | None:
    """What the answers among the outcomes of one model are; None where there is no answer."""
    for outcome in outcomes:
        match outcome:
            case Completion():
                return "generate"
            case Prediction():
                return outcome.task
            case Returned():
                return "python"
            case Failure():
                pass
            case _:
                assert_never(outcome)
    return None


def names_of(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """The labels or choices that the model's numbers belong to; empty where there are none."""
    return next((outcome.labels for outcome in outcomes if isinstance(outcome, Prediction)), ())


def numbers(outcomes: Sequence[Outcome]) -> NDArray[np.float32]:
    """The values of predictions, of shape `(n, k)`; `k` is 0 where there is no answer."""
    return _matrix(outcomes, [o.values if isinstance(o, Prediction) else None for o in outcomes])


def scores(outcomes: Sequence[Outcome]) -> NDArray[np.float32]:
    """The only value of each prediction, of shape `(n,)`."""
    matrix = numbers(outcomes)
    return matrix[:, 0] if matrix.shape[1] else nothing(len(outcomes), flat=True)


def nothing(rows: int, *, flat: bool = False) -> NDArray[np.float32]:
    """What there is of prompts without any answer: no columns, or one NaN each."""
    import numpy as np

    return np.full(rows if flat else (rows, 0), np.nan, dtype=np.float32)


def probabilities(outcomes: Sequence[Outcome]) -> NDArray[np.float32]:
    """The probabilities of labels or choices, of shape `(n, k)`."""
    each = [o.probabilities if isinstance(o, Prediction) else None for o in outcomes]
    return _matrix(outcomes, each)


def _matrix(outcomes: Sequence[Outcome], rows: Sequence[Any]) -> NDArray[np.float32]:
    import numpy as np

    width = next((len(row) for row in rows if row is not None), 0)
    matrix = np.full((len(outcomes), width), np.nan, dtype=np.float32)
    for index, row in enumerate(rows):
        if row is not None:
            matrix[index] = row
    return matrix


def answered(outcomes: Sequence[Outcome]) -> NDArray[np.bool_]:
    """Which prompts have an answer: a NaN may be an answer too."""
    import numpy as np

    return np.array([not isinstance(outcome, Failure) for outcome in outcomes], dtype=bool)


def stacked(outcomes: Sequence[Outcome], *, as_floats: bool = False) -> NDArray[Any] | list[Any]:
    """What a function returned, in one array where all of it has one shape.

    Args:
        outcomes: Of one model.
        as_floats: Let whole numbers become floats where a row without an answer needs a NaN.

    Returns:
        An array of shape `(n, ...)` where the answers are numbers, or arrays of numbers, of one
        shape; else the list of them, with None for a row without an answer.
    """
    import numpy as np

    rows = [outcome.value if isinstance(outcome, Returned) else None for outcome in outcomes]
    there = answered(outcomes)
    arrays = _arrays([row for row, has in zip(rows, there, strict=True) if has])
    dtype = _common_dtype({array.dtype for array in arrays})
    if dtype is None or len({array.shape for array in arrays}) > 1:
        return rows
    if not there.all() and dtype.kind in "biu":
        if not as_floats:
            return rows
        dtype = np.dtype(np.float64)
    stack = np.full((len(rows), *arrays[0].shape), 0 if dtype.kind in "biu" else np.nan, dtype)
    stack[there] = np.stack(arrays)
    return stack


def _arrays(values: Sequence[Any]) -> list[NDArray[Any]]:
    """Each as an array; none where one of them is something else."""
    import numpy as np

    # exact types: a masked array would lose its mask, a member of an enumeration its name
    fit = all(
        type(value) in (float, int, bool, np.ndarray) or isinstance(value, np.number | np.bool_)
        for value in values
    )
    return [np.asarray(value) for value in values] if fit else []


def _common_dtype(dtypes: set[np.dtype[Any]]) -> np.dtype[Any] | None:
    """A type of number that holds all of them as they are; None where there is none."""
    import numpy as np

    kinds = {dtype.kind for dtype in dtypes}
    if not kinds or not kinds <= set("biufc") or (len(kinds) > 1 and "b" in kinds):
        return None
    common = np.result_type(*dtypes)
    return common if common.kind in kinds else None  # not float64 for int64 and uint64


def mean(
    arrays: Sequence[NDArray[Any]], there: Sequence[NDArray[np.bool_]], weights: Sequence[float]
) -> NDArray[Any]:
    """The weighted mean of arrays of one shape, in each row over those that have an answer there.

    Args:
        arrays: One per model.
        there: Of each model, which rows have an answer.
        weights: Of each model, above 0.

    Returns:
        float32 where all are; summed in float64 all the same. A row without any answer is NaN.
    """
    import numpy as np

    dtype = np.result_type(np.float32, *{array.dtype for array in arrays})
    total = np.zeros(arrays[0].shape, np.result_type(np.float64, dtype))
    shares = np.zeros(len(total))
    for array, rows, weight in zip(arrays, there, weights, strict=True):
        total[rows] += weight * array[rows]
        shares[rows] += weight
    shares[shares == 0] = np.nan
    means = total / shares.reshape(-1, *[1] * (total.ndim - 1))
    return means.astype(dtype)
