"""Outcomes of every task for the tests of what is made of them, and the cells of an HTML page."""

from __future__ import annotations

import math
import pickle
from array import array
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any, Literal

from mgpu_magic.outcomes import Completion, Failure, Prediction, RemoteError, Returned
from mgpu_magic.results import ResultSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mgpu_magic.outcomes import Activation, Outcome

TOO_LONG = RemoteError("VLLMValidationError", "the prompt is too long", "Traceback ...")
LABELS = ("no", "yes")
INTERRUPTED = RemoteError("Interrupted", "stopped by the user")


def answer(index: int, *texts: str, reason: str = "stop", device: str = "cuda:0") -> Completion:
    """The answer to the prompt at `index`."""
    return Completion(
        index=index,
        texts=texts or (f"answer {index}",),
        finish_reasons=(reason,) * max(len(texts), 1),
        prompt_tokens=10,
        output_tokens=4,
        seconds=0.5,
        device=device,
    )


def predicted(
    task: Literal["classify", "embed", "score", "choices"],
    rows: Sequence[Sequence[float] | None],
    labels: Sequence[str] = (),
    activation: Activation = "softmax",
    *,
    cut: int = 0,
) -> ResultSet:
    """Results of prompts `"a"`, `"b"`, ... from the numbers of each; None failed."""
    outcomes: list[Outcome] = [
        Failure(index, TOO_LONG)
        if row is None
        else Prediction(
            index=index,
            task=task,
            values=array("f", row),
            labels=tuple(labels),
            activation=activation,
            prompt_tokens=7,
            cut_tokens=cut,
            seconds=0.25,
            device="cpu:1",
        )
        for index, row in enumerate(rows)
    ]
    return ResultSet(outcomes, prompts(len(rows)))


def classified(
    *rows: list[float] | None, labels: tuple[str, ...] = LABELS, **options: Any
) -> ResultSet:
    """Results of a classifier."""
    return predicted("classify", rows, labels, **options)


def logits(*probabilities: float) -> list[float]:
    """Logits of these probabilities."""
    return [math.log(probability) for probability in probabilities]


def returned(*values: Any) -> ResultSet:
    """Results of prompts `"a"`, `"b"`, ... from what a function returned; a `Failure` failed."""
    outcomes: list[Outcome] = [
        Failure(index, TOO_LONG)
        if value is Failure
        else Returned(index=index, data=pickle.dumps(value), seconds=0.25, device="cpu:1")
        for index, value in enumerate(values)
    ]
    return ResultSet(outcomes, prompts(len(values)))


def generated(*texts: str | None) -> ResultSet:
    """Results of prompts `"a"`, `"b"`, ... from their texts; None failed."""
    outcomes: list[Outcome] = [
        Failure(index, TOO_LONG) if text is None else answer(index, text)
        for index, text in enumerate(texts)
    ]
    return ResultSet(outcomes, prompts(len(texts)))


def prompts(count: int) -> list[str]:
    """`"a"`, `"b"`, ..."""
    return [chr(ord("a") + index) for index in range(count)]


def two_of_three() -> ResultSet:
    """Prompts a, b, c, of which b failed and c was cut."""
    outcomes: list[Outcome] = [
        answer(0, "A"),
        Failure(1, TOO_LONG),
        answer(2, "C", reason="length"),
    ]
    return ResultSet(outcomes, ["a", "b", "c"])


def many(count: int) -> ResultSet:
    """Answers to as many prompts."""
    return ResultSet([answer(i) for i in range(count)], [f"prompt {i}" for i in range(count)])


class Cells(HTMLParser):
    """The texts of a page's cells, row by row, and all tags that it opens."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows:
            self.rows[-1][-1] += data
