"""The mean and the vote of several models that had the same prompts.

Imports `arrays`, `outcomes` and `results` alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from reprlib import repr as short
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from mgpu_magic import arrays
from mgpu_magic.outcomes import Prediction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mgpu_magic.outcomes import Outcome
    from mgpu_magic.results import ResultSet

Averaged: TypeAlias = Literal[
    "logits", "probabilities", "logprobs", "embeddings", "scores", "values"
]
_DEFAULTS: Mapping[str, Averaged] = {
    "classify": "logits",
    "choices": "probabilities",
    "embed": "embeddings",
    "score": "scores",
    "python": "values",
}


def shares(weights: object, names: Sequence[str]) -> dict[str, float]:
    """The weights of the models that have one, in the order of `names`; 1 each where None.

    Raises:
        ValueError: Not a number of 0 or more for each of the names and no other, or all are 0.
    """
    if weights is None:
        return dict.fromkeys(names, 1.0)
    known = ", ".join(map(repr, names))
    if not isinstance(weights, Mapping):
        raise ValueError(
            f"weights is of type {type(weights).__name__}; pass a dict with a number for each of "
            f"{known}"
        )
    if unknown := [name for name in weights if name not in names]:
        raise ValueError(f"weights names {unknown[0]!r}, which is no model; there are {known}")
    if left_out := [name for name in names if name not in weights]:
        raise ValueError(
            f"weights has no number for {left_out[0]!r}; give one for each of {known} (0 leaves a "
            "model out)"
        )
    numbers = {name: _number(name, weights[name]) for name in names}
    if not any(numbers.values()):
        raise ValueError("weights are all 0; give one model at least a number above 0")
    return {name: number for name, number in numbers.items() if number}


def _number(name: str, weight: object) -> float:
    if not isinstance(weight, bool) and isinstance(weight, Real):
        number = float(weight)
        if 0 <= number < math.inf:
            return number
    raise ValueError(f"weights[{name!r}] is {weight!r}; pass a number of 0 or more")


# --- the mean --------------------------------------------------------------------------------


def mean(
    results: Mapping[str, ResultSet],
    weights: Mapping[str, float],
    of: Averaged | None,
    order: tuple[str, ...],
) -> NDArray[Any]:
    """The weighted mean, in each row over the models that have an answer there; else NaN.

    Args:
        results: Of one model at least, by name, of the same prompts.
        weights: By the same names, above 0.
        of: Which of their arrays; None: by their task.
        order: Labels in the order that the columns shall have where they are the models'.

    Raises:
        ValueError: The models do not fit together, or have no such array.
    """
    there = {name: own for name, own in results.items() if own.task is not None}
    if of is None:
        of = _averaged(there)
    elif of not in get_args(Averaged):
        raise ValueError(f"of is {of!r}; choose one of {', '.join(get_args(Averaged))}")
    if of is None or not there:
        return arrays.nothing(len(next(iter(results.values()))), flat=of == "scores")
    found = {name: _array(name, own, of) for name, own in there.items()}
    labels = {name: arrays.names_of(own) for name, own in there.items()}
    return arrays.mean(
        _aligned(found, labels, order),
        [arrays.answered(own) for own in there.values()],
        [weights[name] for name in there],
    )


def _averaged(answered: Mapping[str, ResultSet]) -> Averaged | None:
    """What there is a mean of, by the tasks of the models."""
    tasks = {name: str(results.task) for name, results in answered.items()}
    for name, task in tasks.items():
        if task == "generate":
            raise ValueError(
                f"model {name!r} generates text, of which there is no mean; .vote() counts texts, "
                "and a weight of 0 leaves a model out"
            )
    if len(set(tasks.values())) > 1:
        each = ", ".join(f"{name!r}: {task}" for name, task in tasks.items())
        raise ValueError(
            f"the models have different tasks ({each}); leave some out with a weight of 0, or "
            "name what they share, such as of='probabilities'"
        )
    return next((_DEFAULTS[task] for task in tasks.values()), None)


def _array(name: str, results: ResultSet, of: Averaged) -> NDArray[Any]:
    try:
        array = getattr(results, of)
    except ValueError as error:
        raise ValueError(f"model {name!r}: {error}") from error
    if isinstance(array, list):  # perhaps only for want of a NaN
        array = arrays.stacked(results, as_floats=True)
    if isinstance(array, list):
        raise ValueError(
            f"model {name!r} returned what is no number, or no array of numbers of one shape; of "
            "that there is no mean"
        )
    found: NDArray[Any] = array
    return found


def _aligned(
    found: Mapping[str, NDArray[Any]], labels: Mapping[str, tuple[str, ...]], order: tuple[str, ...]
) -> list[NDArray[Any]]:
    """The arrays with their columns in one order: `order`, where those are their labels."""
    first = next(iter(found))
    wanted = order if sorted(order) == sorted(labels[first]) else labels[first]
    aligned = []
    for name, array in found.items():
        own = labels[name]
        ambiguous = own != wanted and len(set(own)) < len(own)
        if sorted(own) != sorted(wanted) or ambiguous:
            raise _misfit(first, name, f"labels ({short(labels[first])} and {short(own)})")
        if array.shape != found[first].shape:
            shapes = f"{found[first].shape[1:]} and {array.shape[1:]}"
            raise _misfit(first, name, f"shapes ({shapes} per prompt)")
        aligned.append(array if own == wanted else array[:, [*map(own.index, wanted)]])
    return aligned


def _misfit(first: str, other: str, what: str) -> ValueError:
    return ValueError(
        f"models {first!r} and {other!r} have different {what}, so that they have no mean; a "
        "weight of 0 leaves a model out"
    )


# --- the vote --------------------------------------------------------------------------------


def vote(results: Mapping[str, ResultSet], weights: Mapping[str, float]) -> list[str | None]:
    """The label with most votes for each prompt; None where no model has an answer.

    Args:
        results: Of one model at least, by name, of the same prompts.
        weights: By the same names, above 0.

    Raises:
        ValueError: A model gives nothing to vote with.
    """
    ballots = {name: _ballots(name, own) for name, own in results.items()}
    return [
        _elected(
            {name: label for name, row in ballots.items() if (label := row[index]) is not None},
            {name: own[index] for name, own in results.items()},
            weights,
        )
        for index in range(len(next(iter(results.values()))))
    ]


def _ballots(name: str, results: ResultSet) -> list[str | None]:
    match results.task:
        case None:
            return [None] * len(results)
        case "generate":
            return [text if text is None else text.strip() for text in results.texts]
        case "classify" | "choices":
            labels = results.labels
            if any(
                label is None and isinstance(outcome, Prediction)
                for label, outcome in zip(labels, results, strict=True)
            ):
                raise ValueError(
                    f"model {name!r} has labels of which several may hold at once, and so none to "
                    "vote with; .mean(of='probabilities') has the mean of each"
                )
            return labels
        case task:
            raise ValueError(
                f"model {name!r} (task {task}) has no labels to vote with; .mean() has the mean"
            )


def _elected(
    labels: Mapping[str, str], outcomes: Mapping[str, Outcome], weights: Mapping[str, float]
) -> str | None:
    """The label with most votes; labels and outcomes are those of one prompt by model name."""
    votes: dict[str, float] = {}
    for name, label in labels.items():
        votes[label] = votes.get(label, 0.0) + weights[name]
    leading = _leading(votes)
    if len(leading) > 1:
        beliefs = {
            label: sum(weights[name] * _probability(outcomes[name], label) for name in labels)
            for label in leading
        }
        leading = _leading(beliefs)
    return leading[0] if leading else None  # votes are in the order of the models


def _leading(figures: Mapping[str, float]) -> list[str]:
    """Those with the most: weights such as 0.1 + 0.2 and 0.3 weigh the same."""
    most = max(figures.values(), default=0.0)
    return [label for label, figure in figures.items() if math.isclose(figure, most, rel_tol=1e-6)]


def _probability(outcome: Outcome, label: str) -> float:
    if not isinstance(outcome, Prediction):
        return 0.0
    return dict(zip(outcome.labels, outcome.probabilities, strict=False)).get(label, 0.0)
