"""Prompts and answers of every task as the cells of a table.

Imports `arrays`, `outcomes`, `stats` and `tables` alone.
"""

from __future__ import annotations

from reprlib import Repr
from typing import TYPE_CHECKING, assert_never

from mgpu_magic.outcomes import Completion, Failure, Prediction, Returned
from mgpu_magic.stats import UNFINISHED
from mgpu_magic.tables import clipped, preview

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mgpu_magic.arrays import AnsweredTask
    from mgpu_magic.outcomes import Outcome

HEADER = ("#", "prompt", "answer", "device", "tokens")

_SHOWN = 3  # of many numbers or labels
_short = Repr()
_short.maxstring = _short.maxother = 400  # a cell is clipped anyway; this only bounds the work


def header_width(tasks: Iterable[AnsweredTask | None]) -> int:
    """How much of `HEADER` there is something to say for: tokens only where text is generated."""
    generates = not {"generate", None}.isdisjoint(tasks)
    return len(HEADER) if generates else len(HEADER) - 1


def table_rows(
    outcomes: Sequence[Outcome],
    prompts: Sequence[object],
    prompt_width: int,
    answer_width: int,
    *,
    head: int,
    tail: int,
) -> list[tuple[str, ...]]:
    """The first and the last rows, under `HEADER`."""
    rows = []
    for index in preview(len(outcomes), head=head, tail=tail):
        if index is None:
            rows.append(("…",) * len(HEADER))
            continue
        outcome = outcomes[index]
        prompt = clipped(prompt_text(prompts[index]), prompt_width)
        answer = clipped(answer_text(outcome), answer_width)
        device = "" if isinstance(outcome, Failure) else outcome.device
        tokens = str(outcome.output_tokens) if isinstance(outcome, Completion) else ""
        rows.append((str(index), prompt, answer, device, tokens))
    return rows


def prompt_text(prompt: object) -> str:
    """A text as it is, of a chat the last message, both texts of a pair, else what `repr` says."""
    match prompt:
        case str(text) | {"prompt": str(text)}:
            return text
        case [*_, {"role": str(role), "content": str(content)}]:
            return f"{role}: {content}"
        case [str(first), str(second)] | {"text": str(first), "text_pair": str(second)}:
            return f"{first} | {second}"
        case _:
            return _shown(prompt)


def answer_text(outcome: Outcome) -> str:
    """Such as `"Paris"`, `"positive 0.98"`, `"384 numbers: 0.0123, -0.0345, 0.102, …"`."""
    match outcome:
        case Completion(texts=(first, *others)):
            return f"(1 of {len(others) + 1}) {first}" if others else first
        case Completion():
            return ""
        case Prediction(task="score"):
            return f"{outcome.values[0]:.3f}"
        case Prediction():
            return _labels_text(outcome) if outcome.labels else _numbers_text(outcome.values)
        case Returned():
            return _value_text(outcome)
        case Failure(error=error):
            word = "not finished" if error.kind in UNFINISHED else "failed"
            return f"{word}: {error.kind}: {error.message}"
        case _:
            assert_never(outcome)


def _labels_text(prediction: Prediction) -> str:
    figures = prediction.probabilities or prediction.values
    best = sorted(range(len(figures)), key=figures.__getitem__, reverse=True)
    shown = _SHOWN if prediction.label is None else 1  # several labels may hold at once
    texts = [f"{prediction.labels[place]} {figures[place]:.2f}" for place in best[:shown]]
    return ", ".join([*texts, *["…"] * (prediction.label is None and len(best) > shown)])


def _numbers_text(values: Sequence[float]) -> str:
    texts = [f"{value:.3g}" for value in values[:_SHOWN]]
    count = f"{len(values)} number{'s' * (len(values) != 1)}"
    return f"{count}: " + ", ".join([*texts, *["…"] * (len(values) > _SHOWN)])


def _value_text(returned: Returned) -> str:
    try:
        value = returned.value
    except Exception as error:  # noqa: BLE001  # unpickling runs foreign code
        return f"(cannot be read here: {type(error).__name__}: {error})"
    return _shown(value)


def _shown(value: object) -> str:
    try:
        return _short.repr(value)
    except Exception:  # noqa: BLE001  # foreign code
        return f"({type(value).__name__})"
