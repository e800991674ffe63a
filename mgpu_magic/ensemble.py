"""The results of several models by name: joint frames, their mean and their vote.

```
{name: ResultSet} ─┬─> frames and a table, side by side
                   ├─> mean()  array, a row per prompt
                   └─> vote()  list, a label per prompt
```
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from mgpu_magic import arrays, averages
from mgpu_magic.cells import HEADER, answer_text, header_width, prompt_text, table_rows
from mgpu_magic.columns import frame_columns, group_columns, joined, unused
from mgpu_magic.frames import Column
from mgpu_magic.results import ResultSet, complaint, request_error
from mgpu_magic.stats import RunStats
from mgpu_magic.tables import Table, clipped, preview
from mgpu_magic.views import Views

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mgpu_magic.averages import Averaged
    from mgpu_magic.outcomes import Failure


class Ensemble(Views, Mapping[str, ResultSet]):
    """The result sets of several models, by name and in the order of the cell.

    Where all models had the same prompts, its frames have a row per prompt: `prompt` and a group
    of columns per model. That is the first text, the embedding, the score or the function's value
    under the model's name; of labels `<name>_label` and the probability of each,
    `<name>_<label>`; of choices `<name>_choice` and `<name>_<choice>`; and `<name>_error` for a
    model with failures. Where prompts differ, or two such names are the same, they have a row per
    model and prompt: `model` and the columns of `ResultSet`.

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
    def label_names(self) -> tuple[str, ...]:
        """What the columns of `mean()` are called: the labels of the first model that has any."""
        return next(filter(None, map(arrays.names_of, self.values())), ())

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
            parts = [f"{name}: {complaint(self[name])}" for name in self.failures]
            first = next(iter(self.failures.values()))[0]
            raise request_error("; ".join(parts), first, self)

    # --- one answer of all models ------------------------------------------------------------

    def mean(
        self, weights: Mapping[str, float] | None = None, of: Averaged | None = None
    ) -> NDArray[Any]:
        """The mean over the models: an array with a row per prompt.

        In each row it is over the models that have an answer there; where none has, it is NaN.
        The columns are those of the models' labels, matched by name, in the order of
        `label_names`.

        Args:
            weights: Of each model, by name; 0 leaves a model out. None: all have the same.
            of: Which of the models' arrays; None: `"logits"` of classifiers, `"probabilities"` of
                choices, `"embeddings"`, `"scores"` or `"values"`.

        Raises:
            ValueError: The models had different prompts, or do not fit together.
        """
        shares = self._shares(weights)
        return averages.mean({name: self[name] for name in shares}, shares, of, self.label_names)

    def vote(self, weights: Mapping[str, float] | None = None) -> list[str | None]:
        """The label, choice or text that most models gave: one per prompt.

        Of two with as many votes the one with the higher mean probability wins, then the one of
        the earlier model. A generating model votes with its text, without the space around it.

        Args:
            weights: How many votes each model has, by name; 0 leaves it out. None: one each.

        Returns:
            None where no model has an answer.

        Raises:
            ValueError: The models had different prompts, or one gives nothing to vote with.
        """
        shares = self._shares(weights)
        return averages.vote({name: self[name] for name in shares}, shares)

    def _shares(self, weights: Mapping[str, float] | None) -> dict[str, float]:
        """The weight of each model that has one; all of them had the same prompts."""
        if not self:
            raise ValueError("the ensemble has no models")
        shares = averages.shares(weights, list(self))
        first, *others = shares
        for name in others:
            if not _same(self[first].prompts, self[name].prompts):
                raise ValueError(
                    f"models {first!r} and {name!r} had different prompts, so that their rows do "
                    "not belong together; a weight of 0 leaves a model out"
                )
        return shares

    # --- views -------------------------------------------------------------------------------

    def _columns(self) -> list[Column]:
        return self._wide_columns() or self._long_columns()

    def _wide_columns(self) -> list[Column]:
        """A group of columns per model; empty where the models cannot stand side by side."""
        prompts = self._shared_prompts()
        if prompts is None:
            return []
        columns = [Column("prompt", "object", prompts)]
        for name, results in self.items():
            columns += group_columns(name, results)
        names = {column.name for column in columns}
        return columns if len(names) == len(columns) else []

    def _long_columns(self) -> list[Column]:
        tables = [frame_columns(results, results.prompts) for results in self.values()]
        names = [name for name, results in self.items() for _ in results]
        taken = {"model"}  # which a label may be called, too
        below = joined(tables, [len(results) for results in self.values()])
        renamed = [replace(column, name=unused(column.name, taken)) for column in below]
        return [Column("model", "text", names), *renamed]

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
            width = header_width(results.task for results in self.values())
            for name, results in zip(names, self.values(), strict=True):
                some = table_rows(
                    results, results.prompts, prompt_width, answer_width, head=2, tail=1
                )
                rows += [(name, *row[:width]) for row in some]
            return Table(headlines, ("model", *HEADER[:width]), rows)
        width = max(answer_width // max(len(names), 1), 16)
        for index in preview(len(prompts), head=5, tail=2):
            if index is None:
                rows.append(("…",) * (2 + len(names)))
                continue
            answers = [clipped(answer_text(results[index]), width) for results in self.values()]
            prompt = clipped(prompt_text(prompts[index]), prompt_width)
            rows.append((str(index), prompt, *answers))
        return Table(headlines, ("#", "prompt", *names), rows)


def _same(prompts: Sequence[object], others: Sequence[object]) -> bool:
    """Whether they are the same objects or equal data; objects of other kinds only resemble."""
    return len(prompts) == len(others) and all(
        one is other or _equal(one, other) for one, other in zip(prompts, others, strict=True)
    )


def _equal(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if hasattr(one, "tolist"):  # an array, of which `==` says something else
        return bool(one.tolist() == other.tolist())
    if not isinstance(one, str | list | tuple | dict):
        return False
    try:
        return bool(one == other)
    except ValueError:  # there are arrays in it
        return False


Results: TypeAlias = ResultSet | Ensemble
"""What a job gives: those of one model, or of several by name."""
