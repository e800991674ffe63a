"""Which columns a frame of results has: by what the answers are.

```
task        frame of one model                            beside other models
generate    text, texts, finish_reason, output_tokens     <model>
classify    label, a column per label                     <model>_label, <model>_<label> each
choices     choice, a column per choice                   <model>_choice, <model>_<choice> each
embed       embedding                                     <model>
score       score                                         <model>
(python)    value                                         <model>
```

Beside them stand the prompts, what was read, the seconds, the devices and the errors.
Imports `arrays`, `frames` and `outcomes` alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, assert_never

from mgpu_magic.arrays import names_of, task_of
from mgpu_magic.frames import Column, Kind
from mgpu_magic.outcomes import Completion, Failure, Prediction, Returned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mgpu_magic.outcomes import Answer, Outcome

Outcomes: TypeAlias = "Sequence[Outcome]"

_FIXED = ("prompt", "prompt_tokens", "cut_tokens", "seconds", "device", "error")
_EXACT_FLOAT = 2**53  # whole numbers up to it are floats without loss
_INT64 = 2**63


def frame_columns(outcomes: Outcomes, prompts: Sequence[object]) -> list[Column]:
    """The columns of one model's frame; what a row lacks is None."""
    answers: list[Answer | None] = [None if isinstance(o, Failure) else o for o in outcomes]
    return [
        Column("prompt", "object", prompts),
        *_answer_columns(outcomes),
        Column("seconds", "float", [answer and answer.seconds for answer in answers]),
        Column("device", "text", [answer and answer.device for answer in answers]),
        Column("error", "text", errors(outcomes)),
    ]


def group_columns(model: str, outcomes: Outcomes) -> list[Column]:
    """The columns of one model in a frame where it stands beside others."""
    error = f"{model}_error"
    failed = [Column(error, "text", errors(outcomes))]
    columns: list[Column]
    match task_of(outcomes):
        case "generate" | None:
            columns = [Column(model, "text", texts(outcomes))]
        case "classify" | "choices" as task:
            best = f"{model}_{'choice' if task == 'choices' else 'label'}"
            columns = [Column(best, "text", labels(outcomes))]
            columns += _label_columns(outcomes, f"{model}_", {best, error})
        case "embed":
            columns = [Column(model, "floats", _embeddings(outcomes))]
        case "score":
            columns = [Column(model, "float", _scores(outcomes))]
        case "python":
            columns = [_value_column(model, outcomes)]
        case other:
            assert_never(other)
    return columns + failed * any(isinstance(outcome, Failure) for outcome in outcomes)


def joined(frames: Sequence[Sequence[Column]], rows: Sequence[int]) -> list[Column]:
    """Frames below each other: all their columns, None where a frame lacks one.

    Args:
        frames: The columns of each.
        rows: How many rows each has.
    """
    tables = [{column.name: column for column in frame} for frame in frames]
    names: list[str] = []
    for table in tables:
        place = 0
        for name in table:  # a column that the others lack keeps its place among theirs
            if name not in names:
                names.insert(place, name)
            place = names.index(name) + 1
    columns = []
    for name in names:
        values: list[Any] = []
        for table, count in zip(tables, rows, strict=True):
            values.extend(table[name].values if name in table else [None] * count)
        kinds = {table[name].kind for table in tables if name in table}
        columns.append(Column(name, kinds.pop() if len(kinds) == 1 else "object", values))
    return columns


def unused(name: str, taken: set[str]) -> str:
    """`name`, with as many `_` behind it as it takes to be new; it is taken from now on."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def texts(outcomes: Outcomes) -> list[str | None]:
    """The first text of each completion; None for what is none."""
    return [outcome.text if isinstance(outcome, Completion) else None for outcome in outcomes]


def labels(outcomes: Outcomes) -> list[str | None]:
    """The likeliest label or the best choice of each prediction; None for what has none."""
    return [outcome.label if isinstance(outcome, Prediction) else None for outcome in outcomes]


def errors(outcomes: Outcomes) -> list[str | None]:
    """The errors as text; None for an answer."""
    return [
        f"{outcome.error.kind}: {outcome.error.message}" if isinstance(outcome, Failure) else None
        for outcome in outcomes
    ]


def _answer_columns(outcomes: Outcomes) -> list[Column]:
    match task_of(outcomes):
        case "generate" | None:
            return _text_columns(outcomes)
        case "classify":
            return _labelled_columns("label", outcomes)
        case "choices":
            return _labelled_columns("choice", outcomes)
        case "embed":
            embeddings = Column("embedding", "floats", _embeddings(outcomes))
            return [embeddings, *_read_columns(outcomes)]
        case "score":
            return [Column("score", "float", _scores(outcomes)), *_read_columns(outcomes)]
        case "python":
            return [_value_column("value", outcomes)]
        case other:
            assert_never(other)


def _text_columns(outcomes: Outcomes) -> list[Column]:
    answers = [outcome if isinstance(outcome, Completion) else None for outcome in outcomes]
    several = any(answer and len(answer.texts) > 1 for answer in answers)
    return [
        Column("text", "text", texts(outcomes)),
        *([Column("texts", "texts", [a and list(a.texts) for a in answers])] * several),
        Column("finish_reason", "text", [a and a.finish_reason for a in answers]),
        Column("prompt_tokens", "int", [a and a.prompt_tokens for a in answers]),
        Column("output_tokens", "int", [a and a.output_tokens for a in answers]),
    ]


def _labelled_columns(best: str, outcomes: Outcomes) -> list[Column]:
    return [
        Column(best, "text", labels(outcomes)),
        *_label_columns(outcomes, "", {best, *_FIXED}),
        *_read_columns(outcomes),
    ]


def _read_columns(outcomes: Outcomes) -> list[Column]:
    answers = _predictions(outcomes)
    cut = any(answer and answer.cut_tokens for answer in answers)
    return [
        Column("prompt_tokens", "int", [a and a.prompt_tokens for a in answers]),
        *([Column("cut_tokens", "int", [a and a.cut_tokens for a in answers])] * cut),
    ]


def _label_columns(outcomes: Outcomes, prefix: str, taken: set[str]) -> list[Column]:
    """Of each label the probability; the number itself where the model has no probabilities."""
    rows = [answer and (answer.probabilities or answer.values) for answer in _predictions(outcomes)]
    return [
        Column(unused(prefix + name, taken), "float", [row and row[place] for row in rows])
        for place, name in enumerate(names_of(outcomes))
    ]


def _predictions(outcomes: Outcomes) -> list[Prediction | None]:
    return [outcome if isinstance(outcome, Prediction) else None for outcome in outcomes]


def _embeddings(outcomes: Outcomes) -> list[list[float] | None]:
    return [answer.values.tolist() if answer else None for answer in _predictions(outcomes)]


def _scores(outcomes: Outcomes) -> list[float | None]:
    return [answer.values[0] if answer else None for answer in _predictions(outcomes)]


def _value_column(name: str, outcomes: Outcomes) -> Column:
    values = [outcome.value if isinstance(outcome, Returned) else None for outcome in outcomes]
    plain = [_plain(value) for value in values]
    kind = _kind({type(value) for value in plain if value is not None}, plain)
    if kind == "float":
        plain = [None if value is None else float(value) for value in plain]
    return Column(name, kind, values if kind == "object" else plain)


def _plain(value: Any) -> Any:
    """A NumPy number as Python's."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value


def _kind(types: set[type], values: Sequence[Any]) -> Kind:
    whole = [abs(value) for value in values if type(value) is int]
    if types == {bool}:
        return "bool"
    if types == {str}:
        return "text"
    if types == {int} and max(whole) < _INT64:
        return "int"
    if types in ({float}, {int, float}) and max(whole, default=0) <= _EXACT_FLOAT:
        return "float"
    return "object"
