"""What a job gives back: outcomes in prompt order, as a sequence, a frame and a short table.

```
Collector.add(outcome) ... ──results()──> ResultSet ──┐
                                          ResultSet ──┴──> Ensemble, by model name
```

A `ResultSet` is as long as its prompts, whatever happened: a prompt without an answer is a
`Failure` in its row. It keeps the outcomes and what the user passed; all else is computed when
asked for. Imports `errors`, `messages`, `frames`, `stats` and `tables` alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from reprlib import repr as short
from typing import TYPE_CHECKING, Any, overload

from mgpu_magic import frames
from mgpu_magic.errors import ProtocolError, RequestError
from mgpu_magic.frames import Column
from mgpu_magic.outcomes import Completion, Failure, Outcome, RemoteError
from mgpu_magic.stats import UNFINISHED, RunStats, WorkerStats, counted
from mgpu_magic.tables import Table, clipped, preview

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = ["NOT_FINISHED", "Collector", "Ensemble", "ResultSet", "RunStats", "WorkerStats"]

NOT_FINISHED = RemoteError("NotFinished", "the job has not finished")


class _Views(ABC):
    """Frames of the columns and displays of the table that a subclass makes."""

    @abstractmethod
    def _columns(self) -> list[Column]: ...

    @abstractmethod
    def _table(self, *, prompt_width: int, answer_width: int) -> Table: ...

    def to_pandas(self) -> pd.DataFrame:
        """A pandas frame of the columns that the class describes; needs pandas."""
        return frames.to_pandas(self._columns())

    def to_polars(self) -> Any:
        """A Polars frame; prompts that are not text become JSON. Needs Polars."""
        return frames.to_polars(self._columns())

    def to_arrow(self) -> pa.Table:
        """An Arrow table; prompts that are not text become JSON. Needs PyArrow."""
        return frames.to_arrow(self._columns())

    def __repr__(self) -> str:
        return self._table(prompt_width=32, answer_width=60).text()

    def _repr_html_(self) -> str:
        return self._table(prompt_width=80, answer_width=160).html()


class ResultSet(_Views, Sequence[Outcome]):
    """The outcomes of one model: one per prompt, in the order of the prompts.

    An item is a `Completion` or a `Failure`; a slice is a tuple of them. Equal to a result set or
    list of the same outcomes. The columns of its frames are `prompt`, `text` (the first), `texts`
    (only where a prompt has several), `finish_reason`, `prompt_tokens`, `output_tokens`,
    `seconds`, `device` and `error`; what a failed or an answered row lacks is None.

    Args:
        outcomes: One per prompt, in order.
        prompts: What the user passed, one per prompt.
        seconds: From the job's start to its end; None: not known.
        workers: What each worker of the model did.

    Raises:
        ValueError: The outcomes are not one per prompt and in order.
    """

    def __init__(
        self,
        outcomes: Iterable[Outcome],
        prompts: Sequence[object],
        *,
        seconds: float | None = None,
        workers: Iterable[WorkerStats] = (),
    ) -> None:
        self._outcomes = tuple(outcomes)
        self._prompts = prompts
        self._seconds = seconds
        self._workers = tuple(workers)
        if [outcome.index for outcome in self._outcomes] != list(range(len(prompts))):
            raise ValueError(
                f"{len(self._outcomes)} outcomes for {counted(len(prompts))}; there must be one "
                "each, in order"
            )

    def __len__(self) -> int:
        return len(self._outcomes)

    @overload
    def __getitem__(self, index: int) -> Outcome: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Outcome, ...]: ...
    def __getitem__(self, index: int | slice) -> Outcome | tuple[Outcome, ...]:
        return self._outcomes[index]

    def __iter__(self) -> Iterator[Outcome]:
        return iter(self._outcomes)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ResultSet | list):
            return self._outcomes == tuple(other)
        return NotImplemented

    @property
    def texts(self) -> list[str | None]:
        """The first text of each answer; None where the prompt failed."""
        return [answer.text if answer else None for answer in self._answers()]

    @property
    def prompts(self) -> Sequence[object]:
        """What the user passed, one per prompt."""
        return self._prompts

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The prompts without an answer."""
        return tuple(outcome for outcome in self if isinstance(outcome, Failure))

    @property
    def stats(self) -> RunStats:
        """The job in figures."""
        return RunStats.of(self._outcomes, seconds=self._seconds, workers=self._workers)

    def raise_for_failures(self) -> None:
        """Do nothing where every prompt has an answer.

        Raises:
            RequestError: Some have none; the error carries these results.
        """
        if self.failures:
            raise _request_error(_complaint(self), self.failures[0], self)

    def _answers(self) -> list[Completion | None]:
        return [outcome if isinstance(outcome, Completion) else None for outcome in self]

    def _columns(self) -> list[Column]:
        answers = self._answers()
        several = any(answer and len(answer.texts) > 1 for answer in answers)
        return [
            Column("prompt", "object", self._prompts),
            Column("text", "text", self.texts),
            *([Column("texts", "texts", [a and list(a.texts) for a in answers])] * several),
            Column("finish_reason", "text", [a and a.finish_reason for a in answers]),
            Column("prompt_tokens", "int", [a and a.prompt_tokens for a in answers]),
            Column("output_tokens", "int", [a and a.output_tokens for a in answers]),
            Column("seconds", "float", [a and a.seconds for a in answers]),
            Column("device", "text", [a and a.device for a in answers]),
            Column("error", "text", _errors(self)),
        ]

    def _table(self, *, prompt_width: int, answer_width: int) -> Table:
        rows = self._rows(prompt_width, answer_width, head=5, tail=2)
        return Table((self.stats.headline,), _HEADER, rows)

    def _rows(
        self, prompt_width: int, answer_width: int, *, head: int, tail: int
    ) -> list[tuple[str, ...]]:
        rows = []
        for index in preview(len(self), head=head, tail=tail):
            if index is None:
                rows.append(("…",) * len(_HEADER))
                continue
            outcome = self[index]
            prompt = clipped(_prompt_text(self.prompts[index]), prompt_width)
            answer = clipped(_answer_text(outcome), answer_width)
            if isinstance(outcome, Completion):
                rows.append(
                    (str(index), prompt, answer, outcome.device, str(outcome.output_tokens))
                )
            else:
                rows.append((str(index), prompt, answer, "", ""))
        return rows


class Ensemble(_Views, Mapping[str, ResultSet]):
    """The result sets of several models, by name and in the order of the cell.

    Where all models had the same prompts, its frames have a row per prompt: `prompt`, the first
    text of each model under the model's name, and `<name>_error` for a model with failures.
    Where prompts differ, or two such names are the same, they have a row per model and prompt:
    `model` and the columns of `ResultSet`.

    Args:
        results: Result set by model name.
    """

    def __init__(self, results: Mapping[str, ResultSet]) -> None:
        self._results = dict(results)

    def __getitem__(self, name: str) -> ResultSet:
        return self._results[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    @property
    def failures(self) -> dict[str, tuple[Failure, ...]]:
        """The prompts without an answer, for each model that has such."""
        return {name: results.failures for name, results in self.items() if results.failures}

    @property
    def stats(self) -> RunStats:
        """The job in figures; a prompt counts once per model."""
        each = [results.stats for results in self.values()]
        return RunStats.of(
            list(chain.from_iterable(self.values())),
            seconds=max((s.seconds for s in each if s.seconds is not None), default=None),
            workers=chain.from_iterable(stats.workers for stats in each),
        )

    def raise_for_failures(self) -> None:
        """Do nothing where every prompt has an answer of every model.

        Raises:
            RequestError: Some have none; the error carries these results.
        """
        if self.failures:
            parts = [f"{name}: {_complaint(self[name])}" for name in self.failures]
            first = next(iter(self.failures.values()))[0]
            raise _request_error("; ".join(parts), first, self)

    def _columns(self) -> list[Column]:
        return self._wide_columns() or self._long_columns()

    def _wide_columns(self) -> list[Column]:
        """A column per model; empty where the models cannot stand side by side."""
        prompts = self._shared_prompts()
        if prompts is None:
            return []
        columns = [Column("prompt", "object", prompts)]
        for name, results in self.items():
            columns.append(Column(name, "text", results.texts))
            if results.failures:
                columns.append(Column(f"{name}_error", "text", _errors(results)))
        names = {column.name for column in columns}
        return columns if len(names) == len(columns) else []

    def _long_columns(self) -> list[Column]:
        tables = [{c.name: c for c in results._columns()} for results in self.values()]
        names = [name for name, results in self.items() for _ in results]
        columns = [Column("model", "text", names)]
        for column in max(tables, key=len).values():  # some tables may lack `texts`
            values: list[Any] = []
            for table, results in zip(tables, self.values(), strict=True):
                own = table.get(column.name)
                values.extend(own.values if own else [None] * len(results))
            columns.append(Column(column.name, column.kind, values))
        return columns

    def _shared_prompts(self) -> Sequence[object] | None:
        first, *others = [results.prompts for results in self.values()] or [()]
        return first if all(_same(first, other) for other in others) else None

    def _table(self, *, prompt_width: int, answer_width: int) -> Table:
        names = [clipped(name, 40) for name in self]
        headlines = [
            f"{name}: {results.stats.headline}"
            for name, results in zip(names, self.values(), strict=True)
        ]
        rows: list[tuple[str, ...]] = []
        prompts = self._shared_prompts()
        if prompts is None:
            for name, results in zip(names, self.values(), strict=True):
                some = results._rows(prompt_width, answer_width, head=2, tail=1)
                rows += [(name, *row) for row in some]
            return Table(headlines, ("model", *_HEADER), rows)
        width = max(answer_width // max(len(names), 1), 16)
        for index in preview(len(prompts), head=5, tail=2):
            if index is None:
                rows.append(("…",) * (2 + len(names)))
                continue
            answers = [clipped(_answer_text(results[index]), width) for results in self.values()]
            prompt = clipped(_prompt_text(prompts[index]), prompt_width)
            rows.append((str(index), prompt, *answers))
        return Table(headlines, ("#", "prompt", *names), rows)


# --- collecting ------------------------------------------------------------------------------


class Collector:
    """Takes the outcomes of one model in any order, each exactly once.

    Args:
        prompts: What the user passed, one per prompt.
    """

    def __init__(self, prompts: Sequence[object]) -> None:
        self._prompts = prompts
        self._outcomes: list[Outcome | None] = [None] * len(prompts)
        self._remaining = len(prompts)

    @property
    def remaining(self) -> int:
        """Prompts that have no outcome yet."""
        return self._remaining

    @property
    def outcomes(self) -> tuple[Outcome | None, ...]:
        """One per prompt, in order; None where none has come yet."""
        return tuple(self._outcomes)

    def add(self, outcome: Outcome) -> None:
        """Keep `outcome`.

        Raises:
            ProtocolError: There is no such prompt, or it has its outcome already.
        """
        index = outcome.index
        if not 0 <= index < len(self._outcomes):
            raise ProtocolError(
                f"an outcome of prompt {index} came; the job has {counted(len(self._outcomes))}"
            )
        if self._outcomes[index] is not None:
            raise ProtocolError(f"a second outcome of prompt {index} came; each has one")
        self._outcomes[index] = outcome
        self._remaining -= 1

    def results(
        self,
        *,
        missing: RemoteError = NOT_FINISHED,
        seconds: float | None = None,
        workers: Iterable[WorkerStats] = (),
    ) -> ResultSet:
        """The results as they are now: at the end, at an interrupt or at any time between.

        Args:
            missing: Why the prompts without an outcome have none.
            seconds: From the job's start until now.
            workers: What each worker of the model did until now.
        """
        outcomes = (
            outcome or Failure(index, missing, attempts=0)
            for index, outcome in enumerate(self._outcomes)
        )
        return ResultSet(outcomes, self._prompts, seconds=seconds, workers=workers)


# --- words -----------------------------------------------------------------------------------

_HEADER = ("#", "prompt", "answer", "device", "tokens")


def _errors(results: ResultSet) -> list[str | None]:
    return [
        f"{outcome.error.kind}: {outcome.error.message}" if isinstance(outcome, Failure) else None
        for outcome in results
    ]


def _prompt_text(prompt: object) -> str:
    match prompt:
        case str(text) | {"prompt": str(text)}:
            return text
        case [*_, {"role": str(role), "content": str(content)}]:
            return f"{role}: {content}"
        case _:
            return short(prompt)


def _answer_text(outcome: Outcome) -> str:
    match outcome:
        case Completion(texts=(first, *others)):
            return f"(1 of {len(others) + 1}) {first}" if others else first
        case Completion():
            return ""
        case Failure(error=error):
            word = "not finished" if error.kind in UNFINISHED else "failed"
            return f"{word}: {error.kind}: {error.message}"


def _same(prompts: Sequence[object], others: Sequence[object]) -> bool:
    """By identity, and text by value: comparing arrays says nothing."""
    return len(prompts) == len(others) and all(
        one is other or (isinstance(one, str) and one == other)
        for one, other in zip(prompts, others, strict=True)
    )


def _complaint(results: ResultSet) -> str:
    failures = results.failures
    first = "; ".join(
        f"prompt {failure.index}: {clipped(f'{failure.error.kind}: {failure.error.message}', 200)}"
        for failure in failures[:3]
    )
    more = f"; and {len(failures) - 3} more" * (len(failures) > 3)
    return f"{len(failures)} of {counted(len(results))} failed: {first}{more}"


def _request_error(message: str, first: Failure, results: ResultSet | Ensemble) -> RequestError:
    return RequestError(
        f"{message}. All rows are in this error's .results",
        kind=first.error.kind,
        traceback=first.error.traceback,
        results=results,
    )
