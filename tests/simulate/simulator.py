"""Drives the real `Scheduler` in virtual time: a heap of events, and devices that are formulas.

It also plays the part of the session, and holds the scheduler to what a session relies on: each
request is at one worker at most and resolved once, no worker gets more than its capacity or
anything before it is ready, and no device runs two workers.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, assert_never

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
    Fatal,
    Hello,
    Loading,
    Outcomes,
    Ready,
    Request,
    Started,
    Stats,
    Stopped,
)
from mgpu_magic.outcomes import Completion, Failure, Outcome, RemoteError
from mgpu_magic.scheduler import Scheduler
from mgpu_magic.spec import Sampling

JOB = 7
SAMPLING = Sampling()

Lengths: TypeAlias = Mapping[str, Sequence[float]]
"""Work of each request, by model name and index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a worker runs on.

    Attributes:
        speed: Work per second, all requests together.
        capacity: What its `Ready` says.
        slots: None: the requests in flight share `speed` evenly, however few they are. A number:
            so many run at the same time, each at `speed / slots`, so that a batch that is not
            full wastes the rest.
        import_seconds: From its start to waiting for the load.
        load_seconds: From the grant to ready.
        fails_to_load: Says `Fatal` instead of `Ready`.
    """

    speed: float = 1.0
    capacity: int = 8
    slots: int | None = None
    import_seconds: float = 0.0
    load_seconds: float = 0.0
    fails_to_load: bool = False


@dataclass(slots=True)
class _Process:
    """A worker's process. `service` is what each running request has got since the start."""

    machine: Machine
    ready: bool = False
    retired: bool = False
    clock: float = 0.0
    service: float = 0.0
    running: list[tuple[float, int]] = field(default_factory=list)  # (service at its end, index)
    waiting: deque[tuple[int, float]] = field(default_factory=deque)
    plan: int = 0  # number of the latest wake-up; earlier ones are out of date

    def rate(self) -> float:
        return self.machine.speed / (self.machine.slots or len(self.running))

    def advance(self, now: float) -> None:
        if self.running:
            self.service += self.rate() * (now - self.clock)
        self.clock = now
        while self.waiting and len(self.running) < (self.machine.slots or self.machine.capacity):
            index, length = self.waiting.popleft()
            heapq.heappush(self.running, (self.service + length, index))

    def held(self) -> int:
        return len(self.running) + len(self.waiting)

    def indices(self) -> set[int]:
        return {index for _, index in self.running} | {index for index, _ in self.waiting}


class Simulation:
    """One job on simulated machines.

    Args:
        lengths: The requests.
        plans: The workers.
        machines: What each of them runs on.
        stagger: As of `Scheduler`.
        parallel_loads: As of `Scheduler`.
        poison: Requests that kill their worker at their end, as (model, index).
        crashes: Times at which workers die for no reason, as (seconds, worker). A worker with
            one request is spared: no scheduler could tell that request from a poison one.
        noise: Workers also send what is no news: stats, and outcomes of other jobs.
    """

    def __init__(
        self,
        lengths: Lengths,
        plans: Sequence[Planned],
        machines: Sequence[Machine],
        *,
        stagger: float | None = None,
        parallel_loads: int = 8,
        poison: frozenset[tuple[str, int]] = frozenset(),
        crashes: Sequence[tuple[float, int]] = (),
        noise: bool = False,
    ) -> None:
        self.scheduler = Scheduler(
            job=JOB,
            requests={
                model: [Request(index, "", SAMPLING) for index in range(len(of_model))]
                for model, of_model in lengths.items()
            },
            workers=plans,
            stagger=stagger,
            parallel_loads=parallel_loads,
        )
        self.outcomes: dict[str, dict[int, Outcome]] = {model: {} for model in lengths}
        self.deaths = 0
        self.starts: Counter[int] = Counter()
        self.now = 0.0
        self._lengths = lengths
        self._plans = {plan.worker: plan for plan in plans}
        self._machines = dict(zip(self._plans, machines, strict=True))
        self._poison = poison
        self._noise = noise
        self._processes: dict[int, _Process] = {}
        self._holders: dict[tuple[str, int], int] = {}
        self._parallel_loads = parallel_loads
        self._loading: set[int] = set()
        self._first_grant: float | None = None
        self._cancelled = False
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        for plan in plans:
            if plan.state is WorkerState.READY:
                self._processes[plan.worker] = _Process(self._machines[plan.worker], ready=True)
        for seconds, worker in crashes:
            self._at(seconds, partial(self._crash, worker))

    def run(self, cancel_at: float | None = None) -> Simulation:
        """Run until everything is resolved (or, after a cancel, until nothing happens)."""
        if cancel_at is not None:
            self._at(cancel_at, self._cancel)
        self._perform(self.scheduler.begin())
        while self._heap and (self._cancelled or not self.scheduler.done):
            self.now, _, act = heapq.heappop(self._heap)
            act()
        assert self.scheduler.done, "nothing left to happen, but requests are not resolved"
        for model, of_model in self._lengths.items():
            assert sorted(self.outcomes[model]) == list(range(len(of_model)))
        return self

    def failures(self, model: str) -> dict[int, Failure]:
        """The failed requests of a model, by index."""
        return {i: o for i, o in self.outcomes[model].items() if isinstance(o, Failure)}

    # --- the session's part ------------------------------------------------------------------

    def _at(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (seconds, next(self._order), act))

    def _tell(self, worker: int, event: Event) -> None:
        self._perform(self.scheduler.handle(worker, event))

    def _cancel(self) -> None:
        self._perform(self.scheduler.cancel())
        self._cancelled = True

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case StartWorker(worker):
                    self._start(worker)
                case GrantLoad(worker, delay):
                    self._first_grant = self.now if self._first_grant is None else self._first_grant
                    self._loading.add(worker)
                    assert len(self._loading) <= self._parallel_loads
                    due = max(self.now, self._first_grant + delay)
                    process = self._processes[worker]
                    loaded = due + process.machine.load_seconds
                    self._at(loaded, partial(self._loaded, worker, process))
                case SubmitTo(worker, requests):
                    assert not self._cancelled
                    self._submit(worker, requests)
                case AbortAt(worker, indices):
                    process = self._processes[worker]
                    assert set(indices) == process.indices()
                case Retire(worker):
                    self._retire(worker)
                case Record(model, outcomes):
                    for outcome in outcomes:
                        assert outcome.index not in self.outcomes[model], "resolved twice"
                        self.outcomes[model][outcome.index] = outcome
                case _:
                    assert_never(action)

    # --- the workers' part -------------------------------------------------------------------

    def _start(self, worker: int) -> None:
        mine = set(self._plans[worker].devices)
        for other, process in self._processes.items():
            assert process.retired or not mine & set(self._plans[other].devices)
        process = _Process(self._machines[worker], clock=self.now)
        self._processes[worker] = process
        self.starts[worker] += 1
        self._tell(worker, Started(pid=1))
        self._tell(worker, Hello(protocol=1, pid=1))
        self._tell(worker, Loading("importing"))

        def imported() -> None:
            if self._processes.get(worker) is process:
                self._tell(worker, Loading("imported"))

        self._at(self.now + process.machine.import_seconds, imported)

    def _loaded(self, worker: int, process: _Process) -> None:
        self._loading.discard(worker)
        if self._processes.get(worker) is not process or process.retired:
            return
        if process.machine.fails_to_load:
            self._tell(worker, Fatal(RemoteError("ValueError", "no such model")))
            self._die(worker, Exited(1, None, "the log"))
        else:
            process.ready = True
            process.clock = self.now
            self._tell(worker, Ready(process.machine.capacity, process.machine.load_seconds))

    def _retire(self, worker: int) -> None:
        process = self._processes[worker]
        process.retired = True
        assert not process.held()
        self._loading.discard(worker)

        def gone() -> None:
            if process.ready:
                self._tell(worker, Stopped())
            self._tell(worker, Exited(0, None))

        self._at(self.now + 0.1, gone)

    def _submit(self, worker: int, requests: Sequence[Request]) -> None:
        process = self._processes[worker]
        model = self._plans[worker].model
        assert process.ready
        assert not process.retired
        held = process.held() + len(requests)
        assert 0 < held <= process.machine.capacity
        assert held == self.scheduler.in_flight(worker)
        process.advance(self.now)
        for request in requests:
            key = (model, request.index)
            assert request.index not in self.outcomes[model]
            assert key not in self._holders, "at two workers"
            self._holders[key] = worker
            process.waiting.append((request.index, self._lengths[model][request.index]))
        self._plan(worker, process)

    def _plan(self, worker: int, process: _Process) -> None:
        process.advance(self.now)
        process.plan += 1
        if process.running:
            plan = process.plan
            left = max(0.0, process.running[0][0] - process.service) / process.rate()

            def wake() -> None:
                if process.plan == plan:
                    self._finish(worker, process)

            self._at(self.now + left, wake)

    def _finish(self, worker: int, process: _Process) -> None:
        model = self._plans[worker].model
        process.advance(self.now)
        _, index = heapq.heappop(process.running)
        if (model, index) in self._poison:
            self._die(worker, Exited(None, "SIGSEGV"))
            return
        del self._holders[model, index]
        self._plan(worker, process)
        if self._noise:
            self._tell(worker, Stats(1, 0, 0, 0))
            self._tell(worker, Outcomes(JOB - 1, (completion(index),)))
            self._tell(worker, Outcomes(JOB, (completion(10**6),)))
        self._tell(worker, Outcomes(JOB, (completion(index),)))

    def _crash(self, worker: int) -> None:
        process = self._processes.get(worker)
        if process is not None and process.ready and process.held() != 1:
            self._die(worker, Exited(None, "SIGKILL"))

    def _die(self, worker: int, exited: Exited) -> None:
        process = self._processes.pop(worker)
        process.plan += 1
        self._holders = {key: holder for key, holder in self._holders.items() if holder != worker}
        if not process.retired:
            self.deaths += 1
            self._tell(worker, exited)


def completion(index: int) -> Completion:
    """An answer."""
    return Completion(
        index=index,
        texts=("",),
        finish_reasons=("stop",),
        prompt_tokens=1,
        output_tokens=1,
        seconds=1.0,
        device="cpu:0",
    )
