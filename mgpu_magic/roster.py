"""What a scheduler knows of the workers and models of its job, and how work is shared out.

Pure; imports `lifecycle` alone, else types.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mgpu_magic.lifecycle import LOADING, NEW, READY, STARTING, WorkerState

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from mgpu_magic.lifecycle import Death, Planned
    from mgpu_magic.messages import Request
    from mgpu_magic.outcomes import RemoteError

COMING = (STARTING, LOADING, READY)
TELLING_ROUNDS = 4  # of full batches; in fewer, who ends a round first looks faster than it is
SAME_SPEED = 0.2  # a difference that uneven answers make, too
WRITING_TOKENS = 64  # in an answer; with fewer, reading the prompts may well take longer


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
        speed: What its devices let expect, as a multiple of the mean of its model's workers; 1
            where nothing is known, or it is about the mean.
        capacity: Requests that it makes use of at the same time.
        slots: How many of them it works on; the others wait in front of its engine.
        pace: Requests that it has finished, which is as good as a speed; 0: was never ready. What
            was expected of it at first is in it.
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

    def join(
        self, worker: Worker, capacity: int, slots: int | None, pace: float | None = None
    ) -> None:
        """A worker is ready.

        Args:
            worker: The worker.
            capacity: Requests that it makes use of at the same time.
            slots: How many of them it works on; None: all.
            pace: Its speed in an earlier job, as a multiple of its model's mean, if known.
        """
        self.was_ready = self.here = True
        worker.capacity = capacity
        worker.slots = capacity if slots is None else slots
        if pace is not None:
            worker.pace = pace * worker.slots  # what is known counts as much as a round does
        elif not worker.pace:
            worker.pace = worker.speed * (self._unit_pace or self._first_unit(worker))

    def _first_unit(self, worker: Worker) -> float:
        differ = any(other.speed != 1 for other in self.workers)
        return worker.slots if differ else 1.0  # else the first answers are to tell

    @property
    def _unit_pace(self) -> float:
        """Pace of a worker of speed 1, by those that have one and are or will be ready; else 0."""
        known = [worker for worker in self.workers if worker.state in COMING and worker.pace]
        speeds = sum(worker.speed for worker in known)
        return sum(worker.pace for worker in known) / speeds if known else 0.0

    def paces(self) -> dict[int, float]:
        """Paces by worker, as multiples of their mean; none where they tell nothing.

        That is in a job of less than some rounds, in which all slots could have been filled, and
        where prompts have killed workers: it says more about the prompts.
        """
        ready = [worker for worker in self.workers if worker.state is READY]
        done = sum(worker.pace for worker in ready)
        slots = sum(worker.slots for worker in ready)
        if len(ready) < 2 or done < TELLING_ROUNDS * slots or self.deaths:
            return {}
        return _multiples({worker.id: worker.pace for worker in ready})

    def shares(self) -> Shares:
        """What its workers may hold now, until the next outcome.

        By the squares of the paces: a slow worker is slow with each of its requests, so the last
        ones are for those that end them soon. Not while some are suspects: then a pace may say
        more about the prompts that a worker died of than about the worker.
        """
        power = 1 if self.suspects else 2
        coming = [worker for worker in self.workers if worker.state in COMING]
        weights = sum([worker.pace**power for worker in coming])
        if any(not worker.pace for worker in coming):
            weights += sum(pace**power for pace in self._awaited(coming))
        return Shares(
            unresolved=self.unresolved,
            power=power,
            weights=weights,
            slots=sum([worker.slots for worker in coming]),
        )

    def _awaited(self, coming: Sequence[Worker]) -> list[float]:
        """Paces of those that were never ready.

        For one that still waits for its turn to load, a slow worker does not leave prompts.
        """
        unit = self._unit_pace
        slowest = min((one.speed for one in coming if one.state is READY), default=1.0)
        return [
            unit * (min(one.speed, slowest) if one.state is STARTING else one.speed)
            for one in coming
            if not one.pace
        ]

    def take(self, count: int) -> tuple[Request, ...]:
        """The next requests for a worker, from 1 to all that wait.

        Where some may be longer, they are dealt like cards among the workers that hold nothing
        yet: one batch of all the longest would end long after the others.
        """
        hungry = sum(other.state in COMING and not other.in_flight for other in self.workers)
        among = min(len(self.pending), count * max(hungry, 1))
        if count == 1 or _limit(self.pending[0]) == _limit(self.pending[among - 1]):
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
        slots: Of the workers that are or were ready.
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
        name: Model(name, deque(longest_first(of_model)), len(of_model), here=name not in remote)
        for name, of_model in requests.items()
    }
    speeds: dict[int, float] = {}
    for name, model in models.items():
        speeds |= _expected([plan for plan in plans if plan.model == name], model.pending)
    workers = {
        plan.worker: Worker(
            id=plan.worker,
            model=models[plan.model],
            devices=plan.devices,
            turn=plan.wave if plan.state is NEW else -1,
            state=plan.state,
            imported=plan.imported,
            speed=speeds[plan.worker],
        )
        for plan in plans
    }
    for worker in workers.values():
        worker.model.workers.append(worker)
    for plan in sorted(plans, key=lambda plan: plan.pace is None):  # the others go by what is known
        if plan.state is READY:
            models[plan.model].join(workers[plan.worker], plan.capacity, plan.slots, plan.pace)
    return models, workers


def _expected(plans: Sequence[Planned], requests: Sequence[Request]) -> dict[int, float]:
    """Speeds by worker, as multiples of their mean; 1 for all where one is unknown.

    A model that writes reads all its weights for each step, so the bandwidth of the memory is as
    good as a speed; where it reads prompts, or classifies, it is not. Of the requests, the last is
    the shortest.
    """
    known = {plan.worker: plan.memory_bandwidth for plan in plans if plan.memory_bandwidth}
    if len(known) < len(plans) or not requests or not _writes(requests[-1]):
        return dict.fromkeys([plan.worker for plan in plans], 1.0)
    return _multiples(known)


def _multiples(speeds: Mapping[int, float]) -> dict[int, float]:
    """Of their mean; 1 for those that are about as fast."""
    mean = sum(speeds.values()) / max(1, len(speeds))  # a model may have no worker
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
    limits = [_limit(request) for request in requests]
    if len(set(limits)) < 2:
        return requests
    return [requests[i] for i in sorted(range(len(requests)), key=lambda i: -limits[i])]


def _limit(request: Request) -> float:
    limit = request.sampling.fields.get("max_tokens") or math.inf
    return limit if isinstance(limit, int) else math.inf  # or it is wrong


def _writes(request: Request) -> bool:
    """Whether its answer is asked to be long; the engines' own limit is 16 tokens."""
    return "max_tokens" in request.sampling.fields and _limit(request) >= WRITING_TOKENS
