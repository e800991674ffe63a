"""The real scheduler in virtual time: a heap of events, and devices that are formulas.

```
 Scheduler.handle(worker, event) ──> actions ──> engines: who runs what, and ends when
        ▲                                           │
        └───────────── events <── heap of times <───┘
```

`machines` has the engines. All that ends in one of their steps is told in one message, as a worker
does.

The simulation plays the part of the session and holds the scheduler to what a session relies on:
no worker gets more than its capacity, or anything before it is ready; and each request is
resolved once. `tests/simulate` adds faults to it.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import ParamSpec, Self, TypeAlias, TypeVar, assert_never

from benchmarks.machines import Engine, Machine
from mgpu_magic.lifecycle import (
    AbortAt,
    Action,
    GrantLoad,
    Planned,
    Record,
    Retire,
    StartWorker,
    SubmitTo,
    WorkerState,
)
from mgpu_magic.messages import (
    Event,
    Exited,
    Hello,
    Loading,
    Outcomes,
    Ready,
    Request,
    Started,
    Stopped,
)
from mgpu_magic.outcomes import Outcome, Returned
from mgpu_magic.scheduler import Scheduler
from mgpu_magic.spec import Sampling

JOB = 7
MAX_TOKENS = 1024  # of requests whose lengths the scheduler does not know
P = ParamSpec("P")
T = TypeVar("T")

Lengths: TypeAlias = Mapping[str, Sequence[float]]
"""Tokens of each answer, by model name and index."""


class Simulation:
    """One job on simulated machines.

    Args:
        lengths: The requests.
        plans: The workers.
        machines: What each of them runs on.
        limits: `max_tokens` of each request, by model name, if the scheduler is to know them.
        stagger: As of `Scheduler`.
        parallel_loads: As of `Scheduler`.

    Attributes:
        now: Seconds since the job's begin.
        messages: Commands and events that have gone to and fro.
        scheduler_seconds: What the scheduler has taken of this process's time, from its making on.
    """

    def __init__(
        self,
        lengths: Lengths,
        plans: Sequence[Planned],
        machines: Sequence[Machine],
        *,
        limits: Mapping[str, Sequence[int]] | None = None,
        stagger: float | None = None,
        parallel_loads: int = 8,
    ) -> None:
        requests = {
            model: _requests(len(of_model), limits[model] if limits else None)
            for model, of_model in lengths.items()
        }
        self.scheduler_seconds = 0.0
        self.scheduler = self._timed(
            Scheduler,
            job=JOB,
            requests=requests,
            workers=plans,
            stagger=stagger,
            parallel_loads=parallel_loads,
        )
        self.now = 0.0
        self.messages = 0
        self._lengths = lengths
        self._answered = {model: bytearray(len(of_model)) for model, of_model in lengths.items()}
        self._plans = {plan.worker: plan for plan in plans}
        self._machines = dict(zip(self._plans, machines, strict=True))
        self._engines: dict[int, Engine] = {}
        self._moved: dict[int, Engine] = {}  # got something, or lost it, at this moment
        self._parallel_loads = parallel_loads
        self._loading: set[int] = set()
        self._first_grant: float | None = None
        self._cancelled = False
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        for plan in plans:
            if plan.state is WorkerState.READY:
                engine = Engine(plan.worker, self._machines[plan.worker], ready=True)
                self._engines[plan.worker] = engine

    def run(self, cancel_at: float | None = None) -> Self:
        """Run until everything is resolved (or, after a cancel, until nothing happens)."""
        if cancel_at is not None:
            self._at(cancel_at, self._cancel)
        self._perform(self._timed(self.scheduler.begin))
        self._plan_moved()
        while self._heap and (self._cancelled or not self.scheduler.done):
            self.now, _, act = heapq.heappop(self._heap)
            act()
            self._plan_moved()
        assert self.scheduler.done, "nothing left to happen, but requests are not resolved"
        assert all(all(answered) for answered in self._answered.values()), "not resolved"
        return self

    # --- the session's part ------------------------------------------------------------------

    def _at(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (seconds, next(self._order), act))

    def _tell(self, worker: int, event: Event) -> None:
        self.messages += 1
        self._perform(self._timed(self.scheduler.handle, worker, event))

    def _timed(self, act: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        began = time.thread_time()
        result = act(*args, **named)
        self.scheduler_seconds += time.thread_time() - began - _clock_seconds()
        return result

    def _cancel(self) -> None:
        self._perform(self.scheduler.cancel())
        self._cancelled = True

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Record(model, outcomes):
                    self._record(model, outcomes)
                    continue
                case SubmitTo(worker, requests):
                    assert not self._cancelled
                    self._submit(self._engines[worker], requests)
                case StartWorker(worker):
                    self._start(worker)
                case GrantLoad(worker, delay):
                    self._grant(self._engines[worker], delay)
                case AbortAt(worker, indices):
                    assert set(indices) == self._engines[worker].indices()
                case Retire(worker):
                    self._retire(self._engines[worker])
                case _:
                    assert_never(action)
            self.messages += 1

    def _record(self, model: str, outcomes: Sequence[Outcome]) -> None:
        answered = self._answered[model]
        for outcome in outcomes:
            assert not answered[outcome.index], "resolved twice"
            answered[outcome.index] = True

    # --- the workers' part -------------------------------------------------------------------

    def _start(self, worker: int) -> None:
        engine = Engine(worker, self._machines[worker], clock=self.now)
        self._engines[worker] = engine
        self._tell(worker, Started(pid=1))
        self._tell(worker, Hello(protocol=1, pid=1))
        self._tell(worker, Loading("importing"))
        self._at(self.now + engine.machine.import_seconds, partial(self._imported, engine))

    def _lives(self, engine: Engine) -> bool:
        return self._engines.get(engine.worker) is engine

    def _imported(self, engine: Engine) -> None:
        if self._lives(engine):
            self._tell(engine.worker, Loading("imported"))

    def _grant(self, engine: Engine, delay: float) -> None:
        self._first_grant = self.now if self._first_grant is None else self._first_grant
        self._loading.add(engine.worker)
        assert len(self._loading) <= self._parallel_loads
        due = max(self.now, self._first_grant + delay)
        self._at(due + engine.machine.load_seconds, partial(self._loaded, engine))

    def _loaded(self, engine: Engine) -> None:
        self._loading.discard(engine.worker)
        if self._lives(engine) and not engine.retired:
            engine.ready = True
            engine.clock = self.now
            machine = engine.machine
            self._tell(
                engine.worker,
                Ready(
                    machine.capacity,
                    machine.load_seconds,
                    slots=min(machine.most, machine.capacity),
                ),
            )

    def _retire(self, engine: Engine) -> None:
        engine.retired = True
        assert not engine.held()
        self._loading.discard(engine.worker)
        self._at(self.now + 0.1, partial(self._gone, engine))

    def _gone(self, engine: Engine) -> None:
        if engine.ready:
            self._tell(engine.worker, Stopped())
        self._tell(engine.worker, Exited(0, None))

    def _submit(self, engine: Engine, requests: Sequence[Request]) -> None:
        assert engine.ready
        assert not engine.retired
        held = engine.held() + len(requests)
        assert 0 < held <= engine.machine.capacity
        assert held == self.scheduler.in_flight(engine.worker)
        lengths = self._lengths[self._plans[engine.worker].model]
        engine.waiting.extend((request.index, lengths[request.index]) for request in requests)
        self._moved[engine.worker] = engine

    def _plan_moved(self) -> None:
        for engine in self._moved.values():
            engine.advance(self.now)
            engine.plan += 1
            if engine.running:
                self._at(engine.next_end(), partial(self._finish, engine, engine.plan))
        self._moved.clear()

    def _finish(self, engine: Engine, plan: int) -> None:
        if engine.plan != plan:
            return
        ended = engine.ended(self.now)
        self._moved[engine.worker] = engine
        self._report(engine, ended)

    def _report(self, engine: Engine, ended: Sequence[int]) -> None:
        outcomes = [Returned(index=index, data=b"", seconds=0.0, device="cpu:0") for index in ended]
        self._tell(engine.worker, Outcomes(JOB, tuple(outcomes)))


@cache
def _clock_seconds() -> float:
    """What asking for the time of a thread takes: as long as some of what is measured by it."""
    began = time.thread_time()
    for _ in range(1000):
        time.thread_time()
    return (time.thread_time() - began) / 1000


def replicas(count: int, bandwidths: Sequence[float] = ()) -> list[Planned]:
    """One model, `"m"`, on so many devices, all or none of which tell their memory bandwidth."""
    return [
        Planned(worker=number, model="m", devices=(f"cpu:{number}",), memory_bandwidth=bandwidth)
        for number, bandwidth in itertools.zip_longest(range(count), bandwidths)
    ]


def _requests(count: int, limits: Sequence[int] | None) -> list[Request]:
    if limits is None:
        shared = Sampling({"max_tokens": MAX_TOKENS})
        return [Request(index, "", shared) for index in range(count)]
    known = {limit: Sampling({"max_tokens": limit}) for limit in set(limits)}
    return [Request(index, "", known[limits[index]]) for index in range(count)]
