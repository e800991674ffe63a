"""One job being carried out: what the scheduler decides, done; what workers answer, kept.

```
 event ──> scheduler.handle ──> actions ──> fleet (start, send, retire)
                                   └──────> collectors, progress
```

Not thread-safe: the session's loop alone calls it.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, assert_never

from mgpu_magic.advice import memory_advice
from mgpu_magic.cells import prompt_text
from mgpu_magic.devices import free_host_bytes
from mgpu_magic.ensemble import Ensemble
from mgpu_magic.errors import ProtocolError
from mgpu_magic.lifecycle import (
    AbortAt,
    GrantLoad,
    Planned,
    Record,
    Retire,
    StartWorker,
    SubmitTo,
    WorkerState,
)
from mgpu_magic.messages import (
    Abort,
    Event,
    Exited,
    Fatal,
    Hung,
    Load,
    Loading,
    Outcomes,
    Ready,
    Started,
    Submit,
)
from mgpu_magic.redaction import redacted
from mgpu_magic.results import Collector
from mgpu_magic.scheduler import Scheduler
from mgpu_magic.stats import WorkerStats
from mgpu_magic.tables import clipped
from mgpu_magic.verdict import common_error, interrupted, load_error, result_sets
from mgpu_magic.watchdog import Patience, Watchdog
from mgpu_magic.weights import remote

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from mgpu_magic.ensemble import Results
    from mgpu_magic.fleet import Fleet, Later, Worker
    from mgpu_magic.journal import Journal
    from mgpu_magic.lifecycle import Action
    from mgpu_magic.outcomes import Failure, Outcome
    from mgpu_magic.placement import Placed
    from mgpu_magic.progress import Progress
    from mgpu_magic.prompts import Prepared
    from mgpu_magic.spec import JobSpec, WorkerSpec

log = logging.getLogger("mgpu_magic")

PATIENCE_SECONDS = 5.0  # for a device to become free, before the cell says what it waits for
WATCH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Seat:
    """A worker of the job: its number, and its place; `warm` if it lives already."""

    number: int
    placed: Placed
    warm: Worker | None

    def planned(self) -> Planned:
        """The same for the scheduler."""
        state, capacity, slots, pace = WorkerState.NEW, 0, None, None
        if self.warm is not None:
            state = WorkerState.LOADING if self.warm.granted else WorkerState.STARTING
            if (ready := self.warm.ready) is not None:
                state, pace = WorkerState.READY, self.warm.pace
                capacity, slots = ready.capacity, ready.slots
        return Planned(
            worker=self.number,
            model=self.placed.model,
            devices=tuple(device.label for device in self.placed.spec.devices),
            wave=self.placed.wave,
            state=state,
            imported=self.warm is not None and self.warm.imported,
            capacity=capacity,
            slots=slots,
            pace=pace,
            memory_bandwidth=self.placed.spec.memory_bandwidth,
        )


class Execution:
    """Carries one job out.

    Args:
        number: Number of the job within the session.
        job: What the user asked for.
        prepared: The prompts by model name.
        seats: The workers that the placement asks for.
        fleet: Starts and reaches them.
        progress: Told of everything.
        later: `later(seconds, act)` has the loop call `act` after that time.
        parallel_loads: How many workers may load at the same time.
        sizes: Bytes of the weights by model name, where known.
        journal: Where outcomes are kept, if anywhere.
        failures: Of prompts whose model is not even tried, by model name.
    """

    def __init__(
        self,
        *,
        number: int,
        job: JobSpec,
        prepared: Mapping[str, Prepared],
        seats: Sequence[Seat],
        fleet: Fleet,
        progress: Progress,
        later: Later,
        parallel_loads: int,
        sizes: Mapping[str, int | None],
        journal: Journal | None = None,
        failures: Mapping[str, Sequence[Failure]] | None = None,
    ) -> None:
        self._number = number
        self._job = job
        # The requests are the scheduler's alone: it lets go of each that is answered.
        self._originals = {name: p.originals for name, p in prepared.items()}
        self._shared = {name: p.shared for name, p in prepared.items()}
        self._first = {name: p.requests[0] for name, p in prepared.items() if p.requests}
        self._alike = _alike(prepared.values())
        self._seats = {seat.number: seat for seat in seats}
        self._fleet = fleet
        self._progress = progress
        self._later = later
        self._sizes = sizes
        self._journal = journal
        self._refused = failures or {}
        self._recorded: Mapping[str, Sequence[Outcome]] = {}
        if journal is not None:
            self._recorded = journal.recorded
        self._collectors = {
            name: Collector(p.originals, self._recorded.get(name, ()))
            for name, p in prepared.items()
        }
        self._stopped = False
        self._scheduler = Scheduler(
            job=number,
            requests={name: p.requests for name, p in prepared.items() if p.requests},
            workers=[seat.planned() for seat in seats],
            stagger=job.stagger,
            parallel_loads=parallel_loads,
            # On a GPU vLLM's first load compiles for all, into a cache that two would spoil. On a
            # CPU nothing is compiled, and replicas load faster side by side.
            first_alone=any(
                seat.placed.spec.engine == "vllm" and device.kind == "cuda"
                for seat in seats
                for device in seat.placed.spec.devices
            ),
            remote={seat.placed.model for seat in seats if remote(seat.placed.spec)},
        )
        self._first_grant: float | None = None
        self._watchdog = Watchdog()
        self._watched_at = time.monotonic()
        self._hung: dict[int, Hung] = {}  # and not started again yet
        self._last_words: dict[int, str] = {}  # of workers that are about to end

    @property
    def number(self) -> int:
        """Number of the job within the session."""
        return self._number

    @property
    def journal(self) -> Journal | None:
        """Where outcomes are kept, if anywhere."""
        return self._journal

    @property
    def done(self) -> bool:
        """Whether every prompt has its outcome."""
        return self._scheduler.done

    def begin(self) -> None:
        """Start."""
        totals = {name: len(originals) for name, originals in self._originals.items()}
        recorded = {name: len(outcomes) for name, outcomes in self._recorded.items()}
        self._progress.begin(totals, peeps=self._peep, recorded=recorded)
        self._perform([Record(model, tuple(failed)) for model, failed in self._refused.items()])
        for seat in self._seats.values():
            if seat.warm is not None:
                self._assign(seat)
                self._watchdog.watch(seat.number, self._patience(seat.number), seat.warm.stage)
        self._perform(self._scheduler.begin())
        self._later(WATCH_SECONDS, self._watch)

    def handle(self, worker: int, event: Event) -> None:
        """A worker of the session says something."""
        if worker not in self._seats:
            return
        hung = self._hung.get(worker)
        if hung is not None and not hung.killable:  # given up: what it still says is too late
            return
        if isinstance(event, Started):
            self._watchdog.watch(worker, self._patience(worker), "starting")
        self._watchdog.heard(worker, event)
        if isinstance(event, Fatal):
            self._last_words[worker] = clipped(f"{event.error.kind}: {event.error.message}", 200)
        if isinstance(event, Ready):
            self._hint_at_chat(self._seats[worker], event)
            for note in event.notes:
                self._progress.note(f"{self._seats[worker].placed.model}: {redacted(note)}")
        try:
            actions = self._scheduler.handle(worker, event)
        except ProtocolError as error:
            log.warning("%s; it is ended", error)
            self._fleet.kill(worker)
            return
        if isinstance(event, Exited) and StartWorker(worker) in actions:
            label = self._seats[worker].placed.spec.label
            why = hung.reason if hung else self._last_words.pop(worker, event.reason)
            self._hung.pop(worker, None)
            self._progress.note(f"{label} was lost ({why}) and started again.")
        self._perform(actions, worker if isinstance(event, Outcomes) else None)

    def stop(self) -> None:
        """The user's interrupt: give up what is not finished; workers stay."""
        self._stopped = True
        self._perform(self._scheduler.cancel())

    def results(self) -> Results:
        """What is known until now, as long as the prompts."""
        figures = self._progress.figures()
        seconds = self._progress.snapshot().job.elapsed_seconds
        sets = {
            name: collector.results(
                seconds=seconds,
                workers=[
                    WorkerStats(
                        device=figure.device,
                        model=figure.model,
                        load_seconds=figure.load_seconds,
                        prompts=figure.prompts - figure.failures,
                        prompt_tokens=figure.prompt_tokens,
                        output_tokens=figure.output_tokens,
                        output_tokens_per_second=figure.output_tokens / figure.busy_seconds
                        if figure.busy_seconds
                        else None,
                        prompts_per_second=(figure.prompts - figure.failures) / figure.busy_seconds
                        if figure.busy_seconds
                        else None,
                        peak_bytes=figure.peak_bytes,
                        restarts=figure.restarts,
                        history=figure.history,
                    )
                    for figure in figures
                    if figure.model == name
                ],
            )
            for name, collector in self._collectors.items()
        }
        return Ensemble(sets) if self._job.ensemble else next(iter(sets.values()))

    def finish(self) -> tuple[Results, BaseException | None]:
        """The results, and the error to raise with them, if any."""
        results = self.results()
        error = self._error(results)
        for number, pace in self._scheduler.paces().items():
            if (living := self._fleet.get(number)) is not None:
                living.pace = pace
        failed_models = self._scheduler.failed_models
        for name, death in failed_models.items():
            what = f"could not be loaded: {death.reason}"
            if death.of_sampling and death.error is not None:
                what = f"was not loaded: {death.error.message}"
            self._progress.note(f"{name} {what}")
        for number, death in self._scheduler.failed.items():
            if self._seats[number].placed.model not in failed_models:
                self._progress.note(f"the job went on without {death.reason}")
        if self._stopped:
            self._progress.finish("interrupted")
        else:
            self._progress.finish("failed" if error else "done")
        return results, error

    # --- actions -----------------------------------------------------------------------------

    def _perform(self, actions: Sequence[Action], resolver: int | None = None) -> None:
        for action in actions:
            match action:
                case StartWorker(worker):
                    self._assign(self._seats[worker])
                    self._watchdog.watch(worker, self._patience(worker), "waiting")
                    self._fleet.start(worker, self._seats[worker].placed.spec)
                    self._later(PATIENCE_SECONDS, partial(self._name_occupants, worker))
                case GrantLoad(worker, delay):
                    now = time.monotonic()
                    self._first_grant = now if self._first_grant is None else self._first_grant
                    wait = max(0.0, self._first_grant + delay - now)
                    self._later(wait, partial(self._grant, worker))
                case SubmitTo(worker, requests, retries):
                    self._send(worker, Submit(self._number, requests))
                    self._progress.submitted(worker, len(requests), retries)
                case AbortAt(worker, indices):
                    self._send(worker, Abort(self._number, indices))
                case Retire(worker):
                    self._fleet.retire(worker)
                case Record(model, outcomes):
                    for outcome in outcomes:
                        self._collectors[model].add(outcome)
                    if self._journal is not None:
                        self._journal.add(model, outcomes)
                    self._progress.recorded(model, resolver, outcomes)
                case _:
                    assert_never(action)

    def _peep(self, model: str, index: int) -> str:
        """How a prompt begins, for the list of failures."""
        try:
            return prompt_text(self._originals[model][index])
        except Exception:  # noqa: BLE001  # an object of the user's that cannot be shown
            return ""

    def _grant(self, worker: int) -> None:
        if not self.done:  # else the next job grants it
            self._send(worker, Load(self._shared[self._seats[worker].placed.model]))
            self._watchdog.granted(worker)
            self._progress.apply(worker, Loading("loading"))

    def _name_occupants(self, worker: int) -> None:
        """Say whom a worker that cannot start yet waits for; a thread cannot be killed."""
        for other in self._fleet.before(worker):
            what = f"{other.spec.label} waits for the end of {other.spec.model_label}"
            if other.spec.launcher == "thread":
                what += (
                    ", a thread, which ends after its batch or load; if never, restart the kernel"
                )
            self._progress.note(f"{what}.")

    # --- workers that hang -------------------------------------------------------------------

    def _patience(self, worker: int) -> Patience:
        return Patience.of(self._seats[worker].placed.spec.engine, self._job.hang_timeout)

    def _holder(self, worker: int) -> WorkerSpec | None:
        """Who cannot be made to leave the devices that this worker has, or waits for."""
        for other in self._fleet.before(worker):
            return other.spec
        spec = self._seats[worker].placed.spec
        return spec if spec.launcher == "thread" else None

    def _watch(self) -> None:
        if self.done:
            return
        now = time.monotonic()
        # No more than it can have been, had the kernel not been suspended itself.
        seconds = min(now - self._watched_at, 2 * WATCH_SECONDS)
        self._watched_at = now
        for worker, reason in list(self._watchdog.tick(seconds, self._scheduler.in_flight)):
            self._end_hung(worker, reason)
        self._later(WATCH_SECONDS, self._watch)

    def _end_hung(self, worker: int, reason: str) -> None:
        holder = self._holder(worker)
        hung = Hung(f"{reason}, and was killed")
        if holder is not None:
            thread = holder.launcher == "thread"
            what = "a thread cannot be killed" if thread else "its process does not end"
            text = f"{reason}: {holder.model_label} holds {holder.label}, and {what}"
            hung = Hung(f"{text}; restart the kernel to use that device again", killable=False)
        self._hung[worker] = hung
        self._progress.apply(worker, hung)
        self._perform(self._scheduler.handle(worker, hung))
        if hung.killable:
            self._fleet.end(worker)  # its end is told like any other
        else:
            self._fleet.kill(worker)
            self._perform(self._scheduler.handle(worker, Exited(None, None)))

    def _send(self, worker: int, command: Load | Submit | Abort) -> None:
        if (living := self._fleet.get(worker)) is not None:
            living.send(command)

    def _assign(self, seat: Seat) -> None:
        labels = [device.label for device in seat.placed.spec.devices]
        self._progress.assign(seat.number, seat.placed.model, labels)

    def _hint_at_chat(self, seat: Seat, ready: Ready) -> None:
        """Plain text for a model that was trained on chats is a common, silent mistake."""
        text = self._first[seat.placed.model].prompt
        if seat.placed.spec.task != "generate":
            return
        if ready.has_chat_template and isinstance(text, str) and "<|" not in text:  # no template's
            self._progress.note(
                f"{seat.placed.model} has a chat template, and the prompts are plain text: "
                "add --chat (chat=True) to send them as user messages."
            )

    # --- the verdict -------------------------------------------------------------------------

    def _error(self, results: Results) -> BaseException | None:
        if self._stopped:
            return interrupted(results)
        sets = result_sets(results)
        failures = [failure for one in sets for failure in one.failures]
        asked = sum(map(len, sets)) - sum(map(len, self._recorded.values()))
        if not failures or len(failures) < asked:
            return None
        deaths = self._scheduler.failed
        for model, death in self._scheduler.failed_models.items():
            worker = next(number for number, its in deaths.items() if its is death)
            spec = self._seats[worker].placed.spec
            size = self._sizes.get(model)
            advice = memory_advice(
                death,
                spec,
                workers=len(self._seats),
                weights_bytes=size,
                free_host_bytes=free_host_bytes(),
            )
            return load_error(model, death, spec, advice, results)
        return common_error(
            failures,
            deaths.values(),
            results,
            of_prompts=self._alike and not self._scheduler.refused,
        )


def _alike(prepared: Collection[Prepared]) -> bool:
    """Whether all models are asked the same prompt again and again."""
    prompts = [request.prompt for p in prepared for request in p.requests[:1]]
    return all(r.prompt == prompts[0] for p in prepared for r in p.requests)
