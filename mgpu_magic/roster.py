"""What a scheduler knows of the workers and models of its job, and how work is shared out.

Pure; imports `lifecycle` alone, else types.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from mgpu_magic.lifecycle import LOADING, NEW, READY, STARTING, WorkerState

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from mgpu_magic.lifecycle import Death, Planned
    from mgpu_magic.messages import Request
    from mgpu_magic.outcomes import RemoteError
    from mgpu_magic.spec import Sampling

COMING = (STARTING, LOADING, READY)
TELLING_ROUNDS = 4  # of full batches; in fewer, who ends a round first looks faster than it is
SAME_SPEED = 0.2  # a difference that uneven answers make, too


@dataclass(slots=True, eq=False)
class Worker:
    """A worker of the job.

    Attributes:
        id: Its number.
        model: What it runs.
        devices: Labels of its devices.
        turn: Its turn on them; those that existed before the job come before all others.
        state: How far it is.
        imported: It waits for the word to load.
        speed: What its devices let expect, as a multiple of the mean of its model's workers.
        capacity: Requests that it makes use of at the same time.
        slots: How many of them it works on; the others wait in front of its engine.
        pace: Requests that it has finished, which is as good as a speed; 0: was never ready.
        in_flight: What it was sent and has not answered, by index.
        alone: That is a group of suspects.
        heard: It lived when it got that.
        weights: Its weights are loaded: what follows needs no more of the host's memory.
        losses: How often it was lost without an outcome in between; infinite: not replaceable.
        hung: It is being ended because it hangs.
        error: Its last words.
        of_sampling: They are about the job's sampling.
    """

    id: int
    model: Model
    devices: tuple[str, ...]
    turn: int
    state: WorkerState
    imported: bool
    speed: float
    capacity: int = 0
    slots: int = 0
    pace: float = 0.0
    in_flight: dict[int, Request] = field(default_factory=dict)
    alone: bool = False
    heard: bool = False
    weights: bool = False
    losses: float = 0
    hung: bool = False
    error: RemoteError | None = None
    of_sampling: bool = False

    @property
    def label(self) -> str:
        """Of its devices together."""
        return "+".join(self.devices)

    @property
    def blocks(self) -> bool:
        """Whether its model still needs it on its devices."""
        return self.model.unresolved > 0 and self.state in (NEW, *COMING)


@dataclass(slots=True, eq=False)
class Model:
    """A model of the job, with its requests.

    Attributes:
        name: Its name.
        pending: Requests that are at no worker, suspects aside.
        unresolved: How many have no outcome.
        answers: Of one request, on average (`n`); an engine counts them, not the requests.
        workers: Those that run it.
        suspects: Groups of requests, each of which a worker died with.
        deaths: Of workers, by index in flight there.
        unheard: Indices that died alone at a worker that gave no sign that it had got them.
        was_ready: Some worker had loaded it.
        here: Its files are on this machine.
        failed_loads: How the workers ended that could not load it.
    """

    name: str
    pending: deque[Request]
    unresolved: int
    answers: float = 1.0
    workers: list[Worker] = field(default_factory=list)
    suspects: deque[tuple[Request, ...]] = field(default_factory=deque)
    deaths: Counter[int] = field(default_factory=Counter)
    unheard: set[int] = field(default_factory=set)
    was_ready: bool = False
    here: bool = True
    failed_loads: list[Death] = field(default_factory=list)

    @property
    def cannot_load(self) -> bool:
        """Whether two devices say the same (one that fails alone may be to blame itself).

        A download, or a setting of the job, would fail anywhere.
        """
        kinds = [death.error and death.error.kind for death in self.failed_loads]
        alike = len(set(kinds)) < len(kinds)
        refused = any(death.of_sampling for death in self.failed_loads)
        return alike or refused or (bool(kinds) and not self.here)

    def equip(self, worker: Worker, capacity: int, slots: int | None) -> None:
        """Note what an engine makes use of at the same time: told in answers, noted in requests.

        The answers to one prompt end one after the other. On average half of them run, and to keep
        the engine busy, as many prompts as that makes wait for their places.
        """
        slots = capacity if slots is None else slots
        worker.capacity, worker.slots = capacity, slots
        if self.answers > 1:
            worker.slots = min(slots, math.ceil(2 * slots / self.answers))
            worker.capacity = min(capacity, 2 * worker.slots)

    @property
    def unit_pace(self) -> float:
        """Pace of a worker of speed 1, by those that have one and are or will be ready; else 0."""
        known = [worker for worker in self.workers if worker.state in COMING and worker.pace]
        speeds = sum(worker.speed for worker in known)
        return sum(worker.pace for worker in known) / speeds if known else 0.0

    def first_pace(self, worker: Worker) -> float:
        """What is expected of a worker that has not finished anything.

        Where devices are known to differ, that counts as much as a round of answers; else the
        first answers are to tell.
        """
        differ = any(other.speed != 1 for other in self.workers)
        return worker.speed * (self.unit_pace or (worker.slots if differ else 1.0))

    def paces(self) -> dict[int, float]:
        """Paces by worker, as multiples of their mean; none where they tell nothing.

        That is in a job of less than some rounds, in which all slots could have been filled, and
        where prompts have killed workers: it says more about the prompts.
        """
        paces = {worker.id: worker.pace for worker in self.workers if worker.state is READY}
        slots = sum(worker.slots for worker in self.workers if worker.state is READY)
        if len(paces) < 2 or sum(paces.values()) < TELLING_ROUNDS * slots or self.deaths:
            return {}
        return _multiples(paces)

    def shares(self) -> Shares:
        """What its workers may hold now, until the next outcome.

        By the squares of the paces: a slow worker is slow with each of its requests, so the last
        ones are for those that end them soon. Not while some are suspects: then a pace may say
        more about the prompts that a worker died of than about the worker.
        """
        power = 1 if self.suspects else 2
        unit = self.unit_pace
        coming = [worker for worker in self.workers if worker.state in COMING]
        return Shares(
            unresolved=self.unresolved,
            power=power,
            weights=sum((worker.pace or unit * worker.speed) ** power for worker in coming),
            slots=sum(worker.slots for worker in coming),
        )

    def take(self, count: int) -> tuple[Request, ...]:
        """The next requests for a worker, from 1 to all that wait.

        Where some may be longer, they are dealt like cards among the workers that hold nothing
        yet: one batch of all the longest would end long after the others.
        """
        hungry = sum(other.state in COMING and not other.in_flight for other in self.workers)
        among = min(len(self.pending), count * max(hungry, 1))
        first, last = self.pending[0].sampling, self.pending[among - 1].sampling
        if count == 1 or _limit(first) == _limit(last):
            return tuple([self.pending.popleft() for _ in range(count)])
        front = [self.pending.popleft() for _ in range(among)]
        step = among // count
        taken = range(0, step * count, step)
        self.pending.extendleft(front[i] for i in reversed(range(among)) if i not in taken)
        return tuple([front[i] for i in taken])

    def next_suspects(self, capacity: int) -> tuple[Request, ...]:
        """Take the next group of suspects, no more than so many of it."""
        group = self.suspects.popleft()
        if rest := group[capacity:]:
            self.suspects.appendleft(rest)
        return group[:capacity]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """How a model's requests are divided among its workers.

    Attributes:
        unresolved: Requests without an outcome.
        power: A worker's weight is its pace to this power.
        weights: Their sum.
        slots: Of the workers that are ready.
    """

    unresolved: int
    power: int
    weights: float
    slots: int

    def room(self, worker: Worker, pending: int) -> int:
        """How many more requests a worker may hold, of so many that wait for one.

        More than its slots only while there is more for all than slots: what waits in front of
        one engine at the end could run on another.
        """
        most = worker.capacity if pending > self.slots else worker.slots
        if len(worker.in_flight) >= most:
            return 0
        share = fair_share(self.unresolved, worker.pace**self.power, self.weights)
        return min(most, share) - len(worker.in_flight)


def enlist(
    requests: Mapping[str, Sequence[Request]], plans: Sequence[Planned], remote: Collection[str]
) -> tuple[dict[str, Model], dict[int, Worker]]:
    """The models and the workers of a job, as it begins: by name, and by number.

    Args:
        requests: By model name.
        plans: The workers.
        remote: Models whose files may have to be downloaded.
    """
    models = {
        name: Model(
            name,
            deque(longest_first(of_model)),
            len(of_model),
            answers_each(of_model),
            here=name not in remote,
        )
        for name, of_model in requests.items()
    }
    # Of workers that were not in one job together nothing is known.
    strangers = {plan.model for plan in plans if plan.state is READY and plan.pace is None}
    speeds: dict[int, float] = {}
    for name in models:
        speeds |= _expected_speeds([plan for plan in plans if plan.model == name])
    workers = {}
    for plan in plans:
        model = models[plan.model]
        worker = workers[plan.worker] = Worker(
            id=plan.worker,
            model=model,
            devices=plan.devices,
            turn=plan.wave if plan.state is NEW else -1,
            state=plan.state,
            imported=plan.imported,
            speed=speeds[plan.worker],
        )
        if plan.state is READY:
            model.equip(worker, plan.capacity, plan.slots)
        if plan.pace is not None and plan.model not in strangers:
            worker.pace = plan.pace * worker.slots
        model.workers.append(worker)
        model.was_ready |= plan.state is READY
        model.here |= plan.state is READY
    for worker in workers.values():
        if worker.state is READY:
            worker.pace = worker.pace or worker.model.first_pace(worker)
    return models, workers


def _expected_speeds(plans: Sequence[Planned]) -> dict[int, float]:
    """By worker: multiples of the mean; 1 for all where one is unknown."""
    known = {plan.worker: plan.memory_bandwidth for plan in plans if plan.memory_bandwidth}
    return _multiples(known) if len(known) == len(plans) else {p.worker: 1.0 for p in plans}


def _multiples(speeds: Mapping[int, float]) -> dict[int, float]:
    """Of their mean; 1 for those that are about as fast."""
    mean = sum(speeds.values()) / max(1, len(speeds))
    multiples = {worker: speed / mean for worker, speed in speeds.items()}
    return {k: 1.0 if abs(many - 1) <= SAME_SPEED else many for k, many in multiples.items()}


def fair_share(unresolved: int, weight: float, weights: float) -> int:
    """How many requests a worker may hold, its capacity aside.

    Nothing is kept back: one request more hardly slows a batch, while one that begins when the
    others end has its whole answer before it. `benchmarks/simulate.py` measures it.

    Args:
        unresolved: Requests of the model without an outcome, at workers or not.
        weight: Of the worker.
        weights: Sum over those that are or will be ready.
    """
    return math.ceil(unresolved * weight / weights)


def longest_first(requests: Sequence[Request]) -> Sequence[Request]:
    """Those that may write most come first, the others in their order.

    Then what is left for the end, when some workers have nothing more to do, is short.
    """
    limits = {key: _limit(sampling) for key, sampling in _samplings(requests).items()}
    if len(set(limits.values())) < 2:
        return requests
    return sorted(requests, key=lambda request: -limits[id(request.sampling)])


def answers_each(requests: Sequence[Request]) -> float:
    """How many answers a request asks for (`n`), on average."""
    numbers = {key: _answers(sampling) for key, sampling in _samplings(requests).items()}
    if len(set(numbers.values())) < 2:
        return next(iter(numbers.values()), 1)
    return fmean(numbers[id(request.sampling)] for request in requests)


def _samplings(requests: Sequence[Request]) -> dict[int, Sampling]:
    """By identity: most requests share one."""
    return {id(request.sampling): request.sampling for request in requests}


def _limit(sampling: Sampling) -> float:
    limit = sampling.fields.get("max_tokens") or math.inf
    return limit if isinstance(limit, int) else math.inf  # or it is wrong


def _answers(sampling: Sampling) -> int:
    number = sampling.fields.get("n")
    return number if isinstance(number, int) and number > 0 else 1  # or it is wrong
