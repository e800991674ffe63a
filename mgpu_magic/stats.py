"""A job in figures: what was answered, how fast, and what each worker did.

Imports `outcomes`, `pictures`, `snapshot` and `tables` alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mgpu_magic.outcomes import Completion, Failure, Prediction
from mgpu_magic.snapshot import speed_text
from mgpu_magic.tables import Table, clipped, figure

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mgpu_magic.outcomes import Outcome
    from mgpu_magic.pictures import Picture
    from mgpu_magic.snapshot import DeviceHistory

UNFINISHED = frozenset({"NotFinished", "Interrupted"})
"""Kinds of the failures whose prompts only did not get their turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStats:
    """What one worker did in a job; None: not known.

    Attributes:
        device: Label, such as `"cuda:0"`.
        model: What it ran.
        load_seconds: Time that it took to load the model, in this job or an earlier one.
        prompts: Prompts that it answered.
        prompt_tokens: Tokens of those prompts.
        output_tokens: Tokens generated.
        output_tokens_per_second: While it had work.
        prompts_per_second: While it had work.
        peak_bytes: Most memory in use on its device.
        restarts: How often it was lost and started again.
        history: How the job went on its devices, with those that it shared.
    """

    device: str
    model: str
    load_seconds: float | None = None
    prompts: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    output_tokens_per_second: float | None = None
    prompts_per_second: float | None = None
    peak_bytes: int | None = None
    restarts: int = 0
    history: tuple[DeviceHistory, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunStats:
    """A job in figures; shown as a table with a row per worker.

    Attributes:
        prompts: All prompts.
        failures: Prompts without an answer, the unfinished among them.
        unfinished: Prompts that had no turn before the job ended.
        cut_by_length: Answers of which a text ended with the reason `"length"`.
        cut_prompts: Prompts of which the model did not read the end.
        prompt_tokens: Tokens of the answered prompts, as far as they are counted.
        cached_tokens: How many of them the engine had in its prefix cache; None: not known.
        output_tokens: Tokens generated.
        seconds: From the job's start to its end, loading included; None: not known.
        workers: What each worker did.
        recorded: Answers that came from a journal.
        recorded_tokens: Output tokens of those.
    """

    prompts: int
    failures: int
    unfinished: int
    cut_by_length: int
    cut_prompts: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None = None
    seconds: float | None = None
    workers: tuple[WorkerStats, ...] = ()
    recorded: int = 0
    recorded_tokens: int = 0

    @classmethod
    def of(
        cls,
        outcomes: Sequence[Outcome],
        *,
        seconds: float | None = None,
        workers: Iterable[WorkerStats] = (),
        recorded: Sequence[Outcome] = (),
    ) -> RunStats:
        """The figures of `outcomes`, of which those `recorded` took no time."""
        completions = [outcome for outcome in outcomes if isinstance(outcome, Completion)]
        predictions = [outcome for outcome in outcomes if isinstance(outcome, Prediction)]
        failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
        cached = [c.cached_tokens for c in completions if c.cached_tokens is not None]
        return cls(
            prompts=len(outcomes),
            failures=len(failures),
            unfinished=sum(failure.error.kind in UNFINISHED for failure in failures),
            cut_by_length=sum("length" in answer.finish_reasons for answer in completions),
            cut_prompts=sum(answer.cut_tokens > 0 for answer in predictions),
            prompt_tokens=sum(
                answer.prompt_tokens for answers in (completions, predictions) for answer in answers
            ),
            output_tokens=sum(answer.output_tokens for answer in completions),
            cached_tokens=sum(cached) if cached else None,
            seconds=seconds,
            workers=tuple(workers),
            recorded=len(recorded),
            recorded_tokens=sum(
                answer.output_tokens for answer in recorded if isinstance(answer, Completion)
            ),
        )

    @property
    def output_tokens_per_second(self) -> float | None:
        """Those made in this job, over all `seconds`, the loading among them."""
        made = self.output_tokens - self.recorded_tokens
        return made / self.seconds if self.seconds else None

    @property
    def prompts_per_second(self) -> float | None:
        """Prompts answered in this job, over all `seconds`, the loading among them."""
        made = self.prompts - self.failures - self.recorded
        return made / self.seconds if self.seconds else None

    @property
    def history(self) -> tuple[DeviceHistory, ...]:
        """How the job went on each device."""
        every = (history for worker in self.workers for history in worker.history)
        return tuple(dict.fromkeys(every))  # workers may have shared a device

    def plot(self) -> Picture:
        """Memory, utilisation and speed of each device over the job, as a matplotlib `Figure`.

        A notebook shows it as the value of a cell; `plot().savefig("job.png")` writes a file.
        Where nothing was read the curves have gaps. It is shaded where models were loaded, the
        darker the more devices loaded one. The devices of a tensor-parallel group all have its
        speed.

        Raises:
            ValueError: Nothing was measured.
            ImportError: Matplotlib is not installed.
        """
        measured = [history for history in self.history if history.seconds]
        if not measured:
            raise ValueError(
                "there is no history to draw: devices are read twice a second while a job runs; "
                "take the stats of a job of a second or more, not of results made by hand"
            )
        try:
            from mgpu_magic.pictures import draw
        except ImportError as error:
            raise ImportError(f"this needs matplotlib: pip install matplotlib ({error})") from error
        return draw(sorted(measured, key=lambda history: (len(history.device), history.device)))

    @property
    def headline(self) -> str:
        """Such as `"200 prompts, 198 answered, 2 failed, 12 cut by length"`."""
        counts = {
            "failed": self.failures - self.unfinished,
            "not finished": self.unfinished,
            "cut by length": self.cut_by_length,
            "cut to the model's limit": self.cut_prompts,
            "from the journal": self.recorded,
        }
        answered = f"{counted(self.prompts)}, {self.prompts - self.failures} answered"
        return ", ".join([answered, *(f"{n} {word}" for word, n in counts.items() if n)])

    def __repr__(self) -> str:
        return self._table().text()

    def _repr_html_(self) -> str:
        return self._table().html()

    def _table(self) -> Table:
        tokens = f"{self.output_tokens} output tokens" if self.output_tokens else ""
        took = f"{self.seconds:.1f} s ({_speed(self)})" if self.seconds else ""
        figures = " in ".join(filter(None, (tokens, took)))
        headline = "; ".join(filter(None, (self.headline, figures)))
        header = "device|model|load s|prompts|prompt tokens|output tokens|speed|peak GiB|restarts"
        rows = [
            (
                worker.device,
                clipped(worker.model, 40),
                figure(worker.load_seconds, ".1f"),
                str(worker.prompts),
                str(worker.prompt_tokens),
                str(worker.output_tokens),
                _speed(worker),
                figure(worker.peak_bytes, ".2f", unit=2**30),
                str(worker.restarts),
            )
            for worker in self.workers
        ]
        return Table((headline,), header.split("|"), rows)


def _speed(stats: WorkerStats | RunStats) -> str:
    tokens, prompts = stats.output_tokens_per_second, stats.prompts_per_second
    if (tokens if stats.output_tokens else prompts) is None:
        return "n/a"
    return speed_text(stats.output_tokens, tokens or 0.0, prompts or 0.0)


def counted(prompts: int) -> str:
    """`"1 prompt"`, `"2 prompts"`."""
    return "1 prompt" if prompts == 1 else f"{prompts} prompts"
