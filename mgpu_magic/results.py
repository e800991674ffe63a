"""What a job gives back: outcomes in prompt order, as a sequence, arrays, a frame and a table.

```
Collector.add(outcome) ... ──results()──> ResultSet ─┬─> texts, labels, logits, embeddings, ...
                                                     ├─> frames (columns)
                                                     └─> a short table (cells)
```

A `ResultSet` is as long as its prompts, whatever happened: a prompt without an answer is a
`Failure` in its row. It keeps the outcomes and what the user passed; all else is computed when
asked for. `ensemble` joins the result sets of several models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from mgpu_magic import arrays, columns
from mgpu_magic.cells import HEADER, header_width, table_rows
from mgpu_magic.errors import ProtocolError, RequestError
from mgpu_magic.outcomes import Failure, Outcome, Prediction, RemoteError
from mgpu_magic.stats import RunStats, WorkerStats, counted
from mgpu_magic.tables import Table, clipped
from mgpu_magic.views import Views

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mgpu_magic.arrays import AnsweredTask
    from mgpu_magic.frames import Column

NOT_FINISHED = RemoteError("NotFinished", "the job has not finished")

_HOLD = {
    "generate": ".texts",
    "classify": ".logits, .probabilities and .labels",
    "choices": ".logprobs, .probabilities and .labels",
    "embed": ".embeddings",
    "score": ".scores",
    "python": ".values",
}


class ResultSet(Views, Sequence[Outcome]):
    """The outcomes of one model: one per prompt, in the order of the prompts.

    An item is a `Completion`, a `Prediction`, a `Returned` or a `Failure`; a slice is a tuple of
    them. Equal to a result set or list of the same outcomes. An array has a row per prompt, NaN
    where the prompt failed; asking for what the task does not give is a `ValueError`.

    The columns of its frames are `prompt`, then by task `text`, `texts` (only where a prompt has
    several), `finish_reason`, `prompt_tokens` and `output_tokens`; or `label` (of choices,
    `choice`), each label's probability under its name (the number itself where the model has no
    probabilities; a name in use gets a `_`), `prompt_tokens` and `cut_tokens` (only where any
    prompt was cut); or `embedding` or `score` and the same; or `value`; then `seconds`, `device`
    and `error`. What a failed or an answered row lacks is None.

    Args:
        outcomes: One per prompt, in order.
        prompts: What the user passed, one per prompt.
        seconds: From the job's start to its end; None: not known.
        workers: What each worker of the model did.
        recorded: The outcomes among them that came from a journal.

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
        recorded: Sequence[Outcome] = (),
    ) -> None:
        self._outcomes = tuple(outcomes)
        self._prompts = prompts
        self._seconds = seconds
        self._workers = tuple(workers)
        self._recorded = recorded
        in_order = all(outcome.index == place for place, outcome in enumerate(self._outcomes))
        if len(self._outcomes) != len(prompts) or not in_order:
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
    def task(self) -> AnsweredTask | None:
        """What the answers are, such as `"classify"`; None where there is none."""
        return arrays.task_of(self)

    @property
    def texts(self) -> list[str | None]:
        """The first generated text of each prompt; None where it failed or none was asked for."""
        return columns.texts(self)

    @property
    def logits(self) -> NDArray[np.float32]:
        """What the classifier says, of shape `(prompts, labels)`."""
        self._expect("logits", "classify")
        return arrays.numbers(self)

    @property
    def probabilities(self) -> NDArray[np.float32]:
        """Of each label or choice, of shape `(prompts, labels)`."""
        self._expect("probabilities", "classify", "choices")
        if any(
            isinstance(outcome, Prediction) and outcome.activation == "none" for outcome in self
        ):
            raise ValueError(
                "the model gives numbers that are no logits of probabilities (a regression); "
                "they are in .logits"
            )
        return arrays.probabilities(self)

    @property
    def logprobs(self) -> NDArray[np.float32]:
        """The log-probability of each whole choice given the prompt: `(prompts, choices)`."""
        self._expect("logprobs", "choices")
        return arrays.numbers(self)

    @property
    def labels(self) -> list[str | None]:
        """The likeliest label or best choice; None where it failed or several may hold at once."""
        self._expect("labels", "classify", "choices")
        return columns.labels(self)

    @property
    def label_names(self) -> tuple[str, ...]:
        """What the columns of `logits`, `probabilities` and `logprobs` are called."""
        self._expect("label_names", "classify", "choices")
        return arrays.names_of(self)

    @property
    def embeddings(self) -> NDArray[np.float32]:
        """Of shape `(prompts, numbers of the embedding)`."""
        self._expect("embeddings", "embed")
        return arrays.numbers(self)

    @property
    def scores(self) -> NDArray[np.float32]:
        """One per pair, of shape `(prompts,)`."""
        self._expect("scores", "score")
        return arrays.scores(self)

    @property
    def values(self) -> NDArray[Any] | list[Any]:
        """What the function returned, one per prompt, each time anew.

        One array where all are numbers, or arrays of numbers, of one shape; else a list, with
        None where a prompt failed. Whole numbers have no NaN: with failures they stay a list.
        """
        self._expect("values", "python")
        return arrays.stacked(self)

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
        return RunStats.of(
            self._outcomes,
            seconds=self._seconds,
            workers=self._workers,
            recorded=self._recorded,
        )

    def raise_for_failures(self) -> None:
        """Do nothing where every prompt has an answer.

        Raises:
            RequestError: Some have none; the error carries these results.
        """
        if self.failures:
            raise request_error(complaint(self), self.failures[0], self)

    def _expect(self, name: str, *tasks: AnsweredTask) -> None:
        if (task := self.task) is not None and task not in tasks:
            what = "of a python function" if task == "python" else f"of the task {task!r}"
            raise ValueError(f"results {what} have no {name}; they have {_HOLD[task]}")

    def _columns(self) -> list[Column]:
        return columns.frame_columns(self, self._prompts)

    def _table(self, *, prompt_width: int, answer_width: int) -> Table:
        width = header_width([self.task])
        rows = table_rows(self, self._prompts, prompt_width, answer_width, head=5, tail=2)
        return Table((self.stats.headline,), HEADER[:width], [row[:width] for row in rows])


def complaint(results: ResultSet) -> str:
    """How many prompts failed, and the first errors."""
    failures = results.failures
    first = "; ".join(
        f"prompt {failure.index}: {clipped(f'{failure.error.kind}: {failure.error.message}', 200)}"
        for failure in failures[:3]
    )
    more = f"; and {len(failures) - 3} more" * (len(failures) > 3)
    return f"{len(failures)} of {counted(len(results))} failed: {first}{more}"


def request_error(message: str, first: Failure, results: object) -> RequestError:
    """The error that carries `results`, of which some failed."""
    return RequestError(
        f"{message}. All rows are in this error's .results",
        kind=first.error.kind,
        traceback=first.error.traceback,
        results=results,
    )


# --- collecting ------------------------------------------------------------------------------


class Collector:
    """Takes the outcomes of one model in any order, each exactly once.

    Args:
        prompts: What the user passed, one per prompt.
        recorded: The outcomes that a journal holds already.
    """

    def __init__(self, prompts: Sequence[object], recorded: Sequence[Outcome] = ()) -> None:
        self._prompts = prompts
        self._outcomes: list[Outcome | None] = [None] * len(prompts)
        self._remaining = len(prompts)
        self._recorded = recorded
        for outcome in recorded:
            self.add(outcome)

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
        return ResultSet(
            outcomes,
            self._prompts,
            seconds=seconds,
            workers=workers,
            recorded=self._recorded,
        )
