"""How long jobs take against the least time that their work allows."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import fmean

import pytest

from benchmarks.machines import Machine, bound
from benchmarks.simulator import Simulation, replicas


def workload(rng: random.Random, *, batch: bool) -> tuple[list[float], list[Machine]]:
    """Uneven lengths; often one device that is three times slower, often one that joins late."""
    count = rng.randint(50, 400)
    lengths = {
        "exponential": [1 + rng.expovariate(1 / 60) for _ in range(count)],
        "uniform": [rng.uniform(1, 120) for _ in range(count)],
        "equal": [60.0] * count,
        "short, then long": [8.0] * (count // 2) + [120.0] * (count - count // 2),
    }[rng.choice(["exponential", "uniform", "equal", "short, then long"])]
    speeds = [1.0] * rng.randint(2, 4)
    if rng.random() < 0.6:
        speeds[rng.randrange(len(speeds))] = 1 / 3
    joins = [0.0] * len(speeds)
    if rng.random() < 0.6:
        joins[rng.randrange(len(joins))] = rng.uniform(0, 0.6) * sum(lengths) / sum(speeds)
    slots = rng.choice([4, 8, 16])
    machines = [
        Machine(
            step_seconds=slots / speed if batch else 0.0,
            token_seconds=0.0 if batch else 1 / speed,
            capacity=slots + slots // 4,
            slots=slots if batch else 1,
            load_seconds=join,
        )
        for speed, join in zip(speeds, joins, strict=True)
    ]
    return lengths, machines


def makespan(lengths: list[float], machines: list[Machine]) -> float:
    """How long the scheduler needs for it."""
    return Simulation({"m": lengths}, replicas(len(machines)), machines, stagger=0.0).run().now


def ratios(seeds: range, *, batch: bool) -> list[float]:
    """Makespan over bound of random workloads."""
    loads = [workload(random.Random(seed), batch=batch) for seed in seeds]
    return [makespan(*load) / bound(*load) for load in loads]


def test_devices_finish_close_to_the_bound() -> None:
    """400 random jobs take, on average, at most 8 % longer than their work allows."""
    found = ratios(range(400), batch=False)
    assert min(found) > 0.999
    assert fmean(found) < 1.08


def test_batch_engines_are_kept_full() -> None:
    """Engines that are fast only with a full batch get one, as far as there are requests.

    The bound is out of reach for them: the last requests never fill a batch.
    """
    found = ratios(range(300), batch=True)
    assert min(found) > 0.999
    assert fmean(found) < 1.30


@pytest.mark.parametrize("slow", [0, 1])
def test_a_slow_device_simply_gets_less(slow: int) -> None:
    """A device at a third of the speed costs a job at most 5 % over the bound."""
    machines = [Machine(token_seconds=3.0 if number == slow else 1.0) for number in range(2)]
    assert makespan([10.0] * 300, machines) < 1.05 * bound([10.0] * 300, machines)


def test_a_first_job_heeds_memory_bandwidth() -> None:
    """Of a device at a third of the speed a job hears before it begins: it ends much sooner.

    How much depends on whether the slow device happens to get one of the longest answers.
    """
    fast = Machine(step_seconds=16.0, token_seconds=0.3, slots=256, capacity=288)
    slow = replace(fast, step_seconds=48.0, token_seconds=0.9)
    found: dict[bool, list[float]] = {False: [], True: []}
    for seed in range(60):
        rng = random.Random(seed)
        lengths = [rng.lognormvariate(4.6, 1) for _ in range(rng.choice([12, 60, 200, 400]))]
        machines = rng.sample([fast, slow], 2)
        for told, over in found.items():
            bandwidths = [1 / machine.step_seconds for machine in machines if told]
            job = Simulation({"m": lengths}, replicas(2, bandwidths), machines, stagger=0.0).run()
            over.append(job.now / bound(lengths, machines))
    assert fmean(found[False]) > 2.5
    assert fmean(found[True]) < 2.0


def test_a_device_that_joins_late_still_helps() -> None:
    """A job half done when the second device joins is finished by both."""
    machines = [Machine(), Machine(load_seconds=1000.0)]
    assert makespan([10.0] * 200, machines) < 1.05 * 1500


def test_all_short_prompts_first_leaves_no_device_idle() -> None:
    """Short prompts first, long ones last: shared out by pulling, not in halves."""
    lengths = [8.0] * 100 + [120.0] * 100
    machines = [Machine(capacity=20, slots=1), Machine(capacity=20, slots=1)]
    halves = 120.0 * 100
    assert halves / makespan(lengths, machines) > 1.8


def test_a_few_equal_prompts_are_answered_in_one_go() -> None:
    """Where all fit into the batches at once, none waits until others have ended."""
    engine = Machine(step_seconds=16.0, token_seconds=0.3, slots=256, capacity=288)
    for count in (2, 8):
        lengths, machines = [100.0] * (count * 100), [engine] * count
        assert makespan(lengths, machines) == pytest.approx(100 * engine.step(100))
        assert bound(lengths, machines) == pytest.approx(100 * engine.step(100))


def test_engines_in_steps_answer_each_prompt_once() -> None:
    """Whatever the batch and the lengths; and no job is faster than its work allows."""
    for seed in range(100):
        rng = random.Random(seed)
        lengths = [float(rng.choice([1, 4, 100, 1000])) for _ in range(rng.randint(1, 300))]
        machines = [
            Machine(
                step_seconds=rng.choice([1.0, 3.0]),
                token_seconds=rng.choice([0.0, 0.01, 0.2]),
                slots=16,
                capacity=18,
                load_seconds=rng.choice([0.0, 500.0]),
            )
            for _ in range(rng.randint(1, 5))
        ]
        job = Simulation({"m": lengths}, replicas(len(machines)), machines, stagger=0.0).run()
        assert job.scheduler.done
        assert job.scheduler.dropped == 0
        assert job.now >= 0.999999 * bound(lengths, machines)
