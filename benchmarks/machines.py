"""Simulated devices: engines that are formulas, and the least time that work takes on them.

An engine runs its batch in steps, each of which gives every request of it one token, so that a
request ends when the engine's count of steps reaches a number that is known when it begins: it
costs two operations on a heap, whatever happens beside it.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROUNDING = 1e-6  # steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a worker runs on: a step of its engine gives each running request one token.

    Attributes:
        step_seconds: What a step takes, however few requests run; where it is 0, nothing waits
            for the next step to begin.
        token_seconds: What each running request adds to that.
        slots: How many run at the same time; None: all that it holds.
        capacity: What its `Ready` says.
        import_seconds: From its start to waiting for the load.
        load_seconds: From the grant to ready.
        fails_to_load: Says `Fatal` instead of `Ready`.
    """

    step_seconds: float = 0.0
    token_seconds: float = 1.0
    slots: int | None = None
    capacity: int = 8
    import_seconds: float = 0.0
    load_seconds: float = 0.0
    fails_to_load: bool = False

    @property
    def most(self) -> int:
        """How many requests run at the same time."""
        return self.slots or self.capacity

    def step(self, running: int) -> float:
        """Seconds of a step with so many requests."""
        return self.step_seconds + self.token_seconds * running

    def speed(self, running: int) -> float:
        """Tokens per second with so many requests in the batch."""
        return running / self.step(running) if running else 0.0


@dataclass(slots=True, eq=False)
class Engine:
    """What runs in a worker's process; `steps` are those that it has done since its start."""

    worker: int
    machine: Machine
    ready: bool = False
    retired: bool = False
    clock: float = 0.0
    steps: float = 0.0
    running: list[tuple[float, int]] = field(default_factory=list)  # (steps at its end, index)
    waiting: deque[tuple[int, float]] = field(default_factory=deque)
    plan: int = 0  # number of the latest wake-up; earlier ones are out of date

    def advance(self, now: float) -> None:
        """Work until then; what waits begins with the next step."""
        if self.running:
            self.steps += (now - self.clock) / self.machine.step(len(self.running))
        self.clock = now
        free = self.machine.most - len(self.running)
        if self.waiting and free > 0:
            stepped = self.running and self.machine.step_seconds
            begin = math.ceil(self.steps - ROUNDING) if stepped else self.steps
            for _ in range(min(free, len(self.waiting))):
                index, length = self.waiting.popleft()
                heapq.heappush(self.running, (begin + length, index))

    def next_end(self) -> float:
        """When the next request ends, if nothing is added before."""
        left = max(0.0, self.running[0][0] - self.steps)
        return self.clock + left * self.machine.step(len(self.running))

    def ended(self, now: float) -> list[int]:
        """Take those that end with the step that ends now."""
        self.clock, self.steps = now, self.running[0][0]
        found = []
        while self.running and self.running[0][0] <= self.steps + ROUNDING:
            found.append(heapq.heappop(self.running)[1])
        return found

    def held(self) -> int:
        """Requests that it has."""
        return len(self.running) + len(self.waiting)

    def indices(self) -> set[int]:
        """The same, by index."""
        return {index for _, index in self.running} | {index for index, _ in self.waiting}


def bound(lengths: Sequence[float], machines: Sequence[Machine]) -> float:
    """Seconds that no scheduler can do without, even one that knows all lengths.

    However many they are, the longest requests get no more tokens per second than the machines
    give to that many requests, spread best: for all requests that is total work over total speed,
    for one it is the longest request, alone on the fastest machine. A machine counts from the
    moment on at which it has loaded.
    """
    joins = sorted({machine.load_seconds for machine in machines})
    speeds = [
        _speeds([m for m in machines if m.load_seconds <= joined], len(lengths)) for joined in joins
    ]
    longest = 0.0
    work = list(itertools.accumulate(sorted(lengths, reverse=True)))
    for count in (*range(1, min(len(speeds[-1]), len(work)) + 1), len(work)):
        left = work[count - 1]
        for now, of_counts, until in zip(joins, speeds, [*joins[1:], math.inf], strict=True):
            speed = of_counts[min(count, len(of_counts)) - 1]
            if speed * (until - now) >= left:
                longest = max(longest, now + left / speed)
                break
            left -= speed * (until - now)
    return longest


def _speeds(machines: Sequence[Machine], requests: int) -> list[float]:
    """Tokens per second of one request, of two, and so on."""
    gains: list[float] = []
    for machine in machines:
        speeds = [machine.speed(count) for count in range(min(machine.most, requests) + 1)]
        gains += [after - before for before, after in itertools.pairwise(speeds)]
    return list(itertools.accumulate(sorted(gains, reverse=True)))
