"""The simulation of `benchmarks/simulator.py` with faults: crashes, poison prompts, failed loads.

It holds the scheduler to two things more: each request is at one worker at most, and no device
runs two workers.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.simulator import JOB, Lengths, Simulation
from mgpu_magic.messages import Exited, Fatal, Outcomes, Request, Stats
from mgpu_magic.outcomes import Completion, Failure, Outcome, RemoteError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.machines import Engine, Machine
    from mgpu_magic.lifecycle import Planned


class FaultySimulation(Simulation):
    """One job on simulated machines, of which things go wrong.

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
        super().__init__(lengths, plans, machines, stagger=stagger, parallel_loads=parallel_loads)
        self.outcomes: dict[str, dict[int, Outcome]] = {model: {} for model in lengths}
        self.deaths = 0
        self.starts: Counter[int] = Counter()
        self._poison = poison
        self._noise = noise
        self._holders: dict[tuple[str, int], int] = {}
        for seconds, worker in crashes:
            self._at(seconds, partial(self._crash, worker))

    def failures(self, model: str) -> dict[int, Failure]:
        """The failed requests of a model, by index."""
        return {i: o for i, o in self.outcomes[model].items() if isinstance(o, Failure)}

    def _record(self, model: str, outcomes: Sequence[Outcome]) -> None:
        super()._record(model, outcomes)
        self.outcomes[model].update((outcome.index, outcome) for outcome in outcomes)

    def _start(self, worker: int) -> None:
        mine = set(self._plans[worker].devices)
        for other, engine in self._engines.items():
            assert engine.retired or not mine & set(self._plans[other].devices)
        self.starts[worker] += 1
        super()._start(worker)

    def _loaded(self, engine: Engine) -> None:
        if engine.machine.fails_to_load and self._lives(engine) and not engine.retired:
            self._loading.discard(engine.worker)
            self._tell(engine.worker, Fatal(RemoteError("ValueError", "no such model")))
            self._die(engine, Exited(1, None, "the log"))
        else:
            super()._loaded(engine)

    def _submit(self, engine: Engine, requests: Sequence[Request]) -> None:
        model = self._plans[engine.worker].model
        for request in requests:
            key = (model, request.index)
            assert request.index not in self.outcomes[model]
            assert key not in self._holders, "at two workers"
            self._holders[key] = engine.worker
        super()._submit(engine, requests)

    def _report(self, engine: Engine, ended: Sequence[int]) -> None:
        model = self._plans[engine.worker].model
        if any((model, index) in self._poison for index in ended):
            self._die(engine, Exited(None, "SIGSEGV"))
            return
        for index in ended:
            del self._holders[model, index]
        if self._noise:
            self._tell(engine.worker, Stats(1, 0, 0, 0))
            self._tell(engine.worker, Outcomes(JOB - 1, tuple(map(completion, ended))))
            self._tell(engine.worker, Outcomes(JOB, (completion(10**6),)))
        self._tell(engine.worker, Outcomes(JOB, tuple(map(completion, ended))))

    def _crash(self, worker: int) -> None:
        engine = self._engines.get(worker)
        if engine is not None and engine.ready and engine.held() != 1:
            self._die(engine, Exited(None, "SIGKILL"))

    def _die(self, engine: Engine, exited: Exited) -> None:
        worker = engine.worker
        del self._engines[worker]
        self._moved.pop(worker, None)
        engine.plan += 1
        self._holders = {key: holder for key, holder in self._holders.items() if holder != worker}
        if not engine.retired:
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
