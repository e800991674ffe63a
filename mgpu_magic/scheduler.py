"""Decides what happens next in one job: event in, actions out.

```
 Scheduler.handle(worker, event) ──> TRANSITIONS ──> state
        │                                              │
        ├── loads: who may load now          GrantLoad │
        ├── requests: who may hold how many   SubmitTo ├──> actions, carried out by the owner
        ├── deaths: who is restarted,      StartWorker │    of the processes
        │   and which requests are suspects     Record │
        └── waves: whose turn it is             Retire ┘
```

It knows no clock, thread, process or pipe; `roster` has what it keeps of them. Imports
`errors`, `messages`, `outcomes`, `lifecycle` and `roster` alone.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from typing import TYPE_CHECKING, assert_never

from mgpu_magic.errors import ProtocolError
from mgpu_magic.lifecycle import (
    FAILED,
    LOADING,
    NEW,
    READY,
    STARTING,
    STOPPED,
    TRANSITIONS,
    AbortAt,
    Action,
    Death,
    GrantLoad,
    Planned,
    Record,
    Retire,
    StartWorker,
    SubmitTo,
    Trigger,
    WorkerState,
)
from mgpu_magic.messages import (
    Event,
    Exited,
    Fatal,
    Hello,
    Hung,
    Loading,
    Outcomes,
    Ready,
    Request,
    Started,
    Stats,
    Stopped,
)
from mgpu_magic.outcomes import Failure, Outcome, RemoteError
from mgpu_magic.roster import COMING, Model, Worker, enlist

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


class Scheduler:
    """One job: its requests, its workers, and what to do next.

    Each method returns the actions to carry out, in order.

    Args:
        job: Number of the job, as it stands in `Submit` and `Outcomes`.
        requests: The requests by model name.
        workers: The workers, those that exist already included. A model with requests has one.
        stagger: Seconds from one load to the next; None: as soon as the next two allow.
        parallel_loads: How many workers may load their weights at the same time.
        first_alone: Whether the first load of a model goes alone (it fills caches for the
            others) where `stagger` does not say otherwise.
        remote: Models whose files may have to be downloaded: by one worker, while the others of
            the model, and other downloads, wait.
        restart_budget: How often in a row a worker is restarted before it finishes a request;
            None: enough to find a poison prompt in a full batch.

    Attributes:
        dropped: Outcomes that nobody waited for.
        restarts: Lost workers that were started again.
        failed: Workers that are gone for good: failed before ready, or lost beyond the budget.
        failed_models: Models that could not be loaded, with the death that showed it.
        refused: Models whose engine refused what their prompts share.
    """

    def __init__(
        self,
        *,
        job: int,
        requests: Mapping[str, Sequence[Request]],
        workers: Sequence[Planned],
        stagger: float | None,
        parallel_loads: int,
        first_alone: bool = True,
        remote: Collection[str] = (),
        restart_budget: int | None = None,
    ) -> None:
        self._job = job
        self._stagger = stagger
        self._parallel_loads = parallel_loads
        self._first_alone = first_alone and stagger is None
        self._restart_budget = restart_budget
        self._grants = 0
        self.dropped = 0
        self.restarts = 0
        self.failed: dict[int, Death] = {}
        self.failed_models: dict[str, Death] = {}
        self.refused: set[str] = set()
        self._models, self._workers = enlist(requests, workers, remote)

    # --- what the owner of the processes calls -----------------------------------------------

    def begin(self) -> list[Action]:
        """The first actions."""
        actions = self._start_due() + self._grant_due()
        for model in self._models.values():
            actions += self._fill(model)
        return actions

    def handle(self, worker: int, event: Event) -> list[Action]:
        """What follows from an event of a worker.

        Raises:
            ProtocolError: The event is not allowed now; nothing has changed.
        """
        this = self._workers[worker]
        self._move(this, type(event))
        match event:
            case Stats():
                this.heard = True
                return []
            case Started() | Hello() | Stopped():
                return []
            case Fatal(error, of_sampling):
                this.error, this.of_sampling = this.error or error, of_sampling
                return []
            case Hung(reason, killable):
                this.error, this.hung = RemoteError("WorkerHung", reason), True
                this.losses += 0 if killable else math.inf
                return []
            case Loading(stage):
                this.imported |= stage == "imported"
                this.weights |= stage == "warming up"
                this.model.here |= stage in ("loading", "warming up")  # not while "downloading"
                return self._grant_due()
            case Ready(capacity, slots=slots):
                this.model.join(this, capacity, slots)
                return self._grant_due() + self._fill(this.model)
            case Outcomes():
                return self._accept(this, event)
            case Exited():
                return self._bury(this, event)
            case _:
                assert_never(event)

    def cancel(self) -> list[Action]:
        """The user's interrupt: what is unresolved fails as `"Interrupted"`, workers stay."""
        actions: list[Action] = [
            AbortAt(worker.id, tuple(worker.in_flight))
            for worker in self._workers.values()
            if worker.in_flight
        ]
        for model in self._models.values():
            actions += self._give_up(model, "Interrupted", "stopped before it was answered")
        return actions

    # --- what it shows -----------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether every request is resolved."""
        return not any(model.unresolved for model in self._models.values())

    def state(self, worker: int) -> WorkerState:
        """Where the worker is in its life."""
        return self._workers[worker].state

    def in_flight(self, worker: int) -> int:
        """Requests at the worker."""
        return len(self._workers[worker].in_flight)

    def pending(self, model: str) -> int:
        """Unresolved requests of the model that are at no worker."""
        this = self._models[model]
        return this.unresolved - sum(len(worker.in_flight) for worker in this.workers)

    def paces(self) -> dict[int, float]:
        """How fast workers were, as multiples of their model's mean, where the job was long enough.

        The next job begins with it.
        """
        found: dict[int, float] = {}
        for model in self._models.values():
            found |= model.paces()
        return found

    # --- starting and loading ----------------------------------------------------------------

    def _move(self, worker: Worker, trigger: Trigger) -> None:
        try:
            worker.state = TRANSITIONS[worker.state][trigger]
        except KeyError:
            raise ProtocolError(
                f"worker {worker.id} on {worker.label} is {worker.state.value}; "
                f"{trigger.__name__} is not allowed then"
            ) from None

    def _start(self, worker: Worker) -> StartWorker:
        self._move(worker, StartWorker)
        worker.imported = worker.weights = worker.hung = worker.of_sampling = False
        worker.error = None
        return StartWorker(worker.id)

    def _retire(self, workers: Iterable[Worker]) -> list[Action]:
        actions: list[Action] = []
        for worker in workers:
            if worker.state in COMING:
                self._move(worker, Retire)
                actions.append(Retire(worker.id))
        return actions

    def _start_due(self) -> list[Action]:
        """Start each new worker whose devices are no longer needed by those before it."""
        actions: list[Action] = []
        for worker in self._workers.values():
            if worker.state is not NEW or not worker.model.unresolved:
                continue
            before = [
                other
                for other in self._workers.values()
                if other.turn < worker.turn and set(other.devices) & set(worker.devices)
            ]
            if not any(other.blocks for other in before):
                actions += [*self._retire(before), self._start(worker)]
        return actions

    def _grant_due(self) -> list[Action]:
        loading = [worker for worker in self._workers.values() if worker.state is LOADING]
        actions: list[Action] = []
        for worker in self._workers.values():
            if worker.state is not STARTING or not worker.imported:
                continue
            first = all(other.model is not worker.model for other in loading)
            free = not self._first_alone or worker.model.was_ready or first
            fetched = worker.model.here or all(other.model.here for other in loading)
            reading = sum(not other.weights for other in loading)
            if free and fetched and reading < self._parallel_loads:
                self._move(worker, GrantLoad)
                loading.append(worker)
                actions.append(GrantLoad(worker.id, self._grants * (self._stagger or 0.0)))
                self._grants += 1
        return actions

    # --- requests ----------------------------------------------------------------------------

    def _fill(self, model: Model) -> list[Action]:
        """Hand out requests to the workers of the model that can take some."""
        if not model.pending and not model.suspects:
            return []
        actions: list[Action] = []
        ready = [worker for worker in model.workers if worker.state is READY]
        shares = model.shares()
        for worker in ready:
            if worker.alone:
                continue
            # Suspects must not take all workers down: one group at a time, where nothing else
            # is in flight, and while others, if there are, go on with the rest.
            if (
                model.suspects
                and not worker.in_flight
                and (len(ready) > 1 or not model.pending)
                and not any(other.alone for other in ready)
            ):
                worker.alone = True
                actions.append(self._submit(worker, model.next_suspects(worker.capacity)))
            elif waiting := len(model.pending):
                count = min(shares.room(worker, waiting), waiting)
                if count > 0:
                    actions.append(self._submit(worker, model.take(count)))
        return actions

    def _submit(self, worker: Worker, requests: tuple[Request, ...]) -> SubmitTo:
        if not worker.in_flight:
            worker.heard = False
        worker.in_flight.update((request.index, request) for request in requests)
        deaths = worker.model.deaths
        retries = sum(request.index in deaths for request in requests) if deaths else 0
        return SubmitTo(worker.id, requests, retries)

    def _accept(self, worker: Worker, reported: Outcomes) -> list[Action]:
        known: list[Outcome] = []
        refused: dict[object, Failure] = {}  # by what they share with others
        for outcome in reported.outcomes if reported.job == self._job else ():
            if (request := worker.in_flight.pop(outcome.index, None)) is not None:
                known.append(outcome)
                if reported.alike and isinstance(outcome, Failure):
                    refused[request.terms] = outcome
        self.dropped += len(reported.outcomes) - len(known)
        if not known:
            return []
        model = worker.model
        worker.losses = 0
        worker.pace += len(known)
        worker.alone = worker.alone and bool(worker.in_flight)
        if refused:
            known += self._spared(model, refused)
        actions = [self._record(model, known), *self._fill(model)]
        return actions if model.unresolved else actions + self._start_due()

    def _spared(self, model: Model, refused: Mapping[object, Failure]) -> list[Failure]:
        """Failures of those that wait and would be refused for the same as these."""
        self.refused.add(model.name)
        waiting, model.pending = model.pending, deque[Request]()
        spared = []
        for request in waiting:
            if (like := refused.get(request.terms)) is None:
                model.pending.append(request)
            else:
                spared.append(Failure(request.index, like.error, model.deaths[request.index]))
        return spared

    def _record(self, model: Model, outcomes: Sequence[Outcome]) -> Record:
        model.unresolved -= len(outcomes)
        return Record(model.name, tuple(outcomes))

    def _give_up(self, model: Model, kind: str, message: str) -> list[Action]:
        """Everything unresolved of the model fails with this error."""
        if not model.unresolved:
            return []
        error = RemoteError(kind, message)
        tried = [request for worker in model.workers for request in worker.in_flight.values()]
        left = itertools.chain(model.pending, *model.suspects)
        outcomes = [Failure(r.index, error, model.deaths[r.index] + 1) for r in tried]
        outcomes += [Failure(r.index, error, model.deaths[r.index]) for r in left]
        model.pending.clear()
        model.suspects.clear()
        for worker in model.workers:
            worker.in_flight.clear()
            worker.alone = False
        return [self._record(model, outcomes)]

    # --- deaths ------------------------------------------------------------------------------

    def _bury(self, worker: Worker, exited: Exited) -> list[Action]:
        if worker.state is STOPPED:
            return []
        model = worker.model
        death = Death(worker.label, worker.error, exited, worker.of_sampling)
        actions = self._suspect(worker, death)
        worker.losses += 1
        if model.unresolved and worker.losses <= self._budget(worker):
            self.restarts += 1
            return [*actions, self._start(worker), *self._fill(model)]
        if worker.state is FAILED or model.unresolved:
            self.failed[worker.id] = death
        if worker.state is FAILED:
            model.failed_loads.append(death)
        others = any(other.blocks for other in model.workers)
        if model.unresolved and not model.was_ready and (model.cannot_load or not others):
            death = self.failed_models[model.name] = model.failed_loads[0]
            actions += self._retire(model.workers)
            kind = death.error.kind if death.error else "WorkerStartError"
            what = f"{model.name!r} could not be loaded on {death.reason}"
            if death.of_sampling and death.error is not None:
                what = death.error.message
            actions += self._give_up(model, kind, what)
        elif not others:
            what = f"no worker is left for {model.name!r}; {death.reason}"
            actions += self._give_up(model, "WorkerLost", what)
        return actions + self._start_due() + self._grant_due() + self._fill(model)

    def _budget(self, worker: Worker) -> int:
        """A few losses by chance, and twice those that it takes to halve a batch down to one.

        A failed load would fail again; one that hung is tried once more.
        """
        if worker.state is FAILED:
            return 1 if worker.hung else 0
        if self._restart_budget is not None:
            return self._restart_budget
        return 8 + 2 * worker.capacity.bit_length()

    def _suspect(self, worker: Worker, death: Death) -> list[Action]:
        """What was in flight at a dead worker is tried again, in halves if it was alone."""
        model = worker.model
        group = tuple(worker.in_flight.values())
        alone, worker.alone = worker.alone, False
        worker.in_flight.clear()
        for request in group:
            model.deaths[request.index] += 1
        if alone and len(group) == 1 and not worker.heard and group[0].index not in model.unheard:
            # It may have been dead already, of what killed the other: no proof, but once only.
            model.unheard.add(group[0].index)
            model.suspects.appendleft(group)
        elif alone and len(group) == 1:
            index = group[0].index
            times = model.deaths[index]
            what = (
                f"its worker died each of the {times} times it was tried, the last time alone; "
                f"{death.reason}"
            )
            return [self._record(model, [Failure(index, RemoteError("WorkerLost", what), times)])]
        elif alone:  # in front: a group is searched to its end, which soon answers some of it
            half = len(group) // 2
            model.suspects.extendleft((group[half:], group[:half]))
        elif group:
            model.suspects.append(group)
        return []
