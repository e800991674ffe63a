"""Random crashes, poison prompts, failed loads and interrupts: nothing is lost, nothing twice."""

from __future__ import annotations

import random

import pytest

from benchmarks.machines import Machine
from benchmarks.simulator import replicas
from mgpu_magic.lifecycle import Planned, WorkerState
from mgpu_magic.outcomes import Completion
from mgpu_magic.placement import place
from mgpu_magic.spec import Device, ModelSpec
from simulate.faulty import FaultySimulation


def machine(rng: random.Random, *, fails_to_load: bool = False) -> Machine:
    """A machine of any kind."""
    return Machine(
        step_seconds=rng.choice([0.0, 8.0]),
        token_seconds=rng.choice([1.0, 1 / 3]),
        capacity=rng.choice([1, 3, 10, 40]),
        slots=rng.choice([None, 8]),
        import_seconds=rng.uniform(0, 10),
        load_seconds=rng.uniform(0, 50),
        fails_to_load=fails_to_load,
    )


def lengths(rng: random.Random, at_most: int) -> list[float]:
    """Work of one to `at_most` requests."""
    return [rng.uniform(1, 20) for _ in range(rng.randint(1, at_most))]


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_only_poison_prompts_fail(first: int) -> None:
    """Whatever crashes, each prompt gets one outcome, and a failure only if it kills workers."""
    for seed in range(first, first + 100):
        rng = random.Random(seed)
        work = lengths(rng, 80)
        count = rng.randint(1, 4)
        bad = set(rng.sample(range(len(work)), k=min(len(work), rng.randint(0, 3))))
        crashes = [(rng.uniform(0, 300), rng.randrange(count)) for _ in range(rng.randint(0, 4))]
        simulation = FaultySimulation(
            {"m": work},
            replicas(count, (900e9, 300e9, 100e9, 320e9)[:count] if seed % 2 else ()),
            [machine(rng) for _ in range(count)],
            stagger=rng.choice([None, 0.0, 5.0]),
            parallel_loads=rng.randint(1, 4),
            poison=frozenset(("m", index) for index in bad),
            crashes=crashes,
            noise=rng.random() < 0.3,
        ).run()
        failures = simulation.failures("m")
        assert set(failures) == bad, seed
        for failure in failures.values():
            assert failure.error.kind == "WorkerLost"
            assert failure.attempts >= 2
        assert simulation.scheduler.failed == {}


@pytest.mark.parametrize("every", [2, 3, 5, 10, 20])
@pytest.mark.parametrize("capacity", [8, 100])
def test_many_poison_prompts_cost_no_good_answer(every: int, capacity: int) -> None:
    """Even where each second prompt kills its worker, all others are answered."""
    bad = set(range(0, 200, every))
    simulation = FaultySimulation(
        {"m": [10.0] * 200},
        replicas(2),
        [Machine(capacity=capacity), Machine(capacity=capacity)],
        stagger=0.0,
        poison=frozenset(("m", index) for index in bad),
    ).run()
    assert set(simulation.failures("m")) == bad


def test_a_failed_load_costs_only_its_device() -> None:
    """Workers that cannot load do not matter as long as another one of the model was ready."""
    survived = 0
    for seed in range(100):
        rng = random.Random(seed)
        count = rng.randint(2, 4)
        fails = [rng.random() < 0.5 for _ in range(count)]
        simulation = FaultySimulation(
            {"m": lengths(rng, 60)},
            replicas(count),
            [machine(rng, fails_to_load=bad) for bad in fails],
            stagger=rng.choice([None, 5.0]),
        ).run()
        failures = simulation.failures("m")
        if "m" in simulation.scheduler.failed_models:
            assert len(failures) == len(simulation.outcomes["m"])
            assert {failure.error.kind for failure in failures.values()} == {"ValueError"}
        else:
            survived += 1
            assert failures == {}
        assert all(fails[worker] for worker in simulation.scheduler.failed)
    assert 20 < survived < 80


def ensemble(rng: random.Random) -> FaultySimulation:
    """Random models on random CPU devices, as the placement has them; one may be broken."""
    devices = [
        Device(kind="cpu", index=index, name="CPU", cores=(index,))
        for index in range(rng.randint(1, 3))
    ]
    models = [ModelSpec(name=f"m{n}", model="x", engine="echo") for n in range(rng.randint(2, 6))]
    sizes = {model.name: rng.choice([None, 1, 5, 20]) for model in models}
    placed = place(models, devices, sizes)
    broken = {model.name for model in models if rng.random() < 0.2}
    plans = [
        Planned(
            worker=number,
            model=one.model,
            devices=tuple(device.label for device in one.spec.devices),
            wave=one.wave,
        )
        for number, one in enumerate(placed)
    ]
    if rng.random() < 0.3:  # the last cell left a worker of it warm
        warm = rng.randrange(len(plans))
        plans[warm] = Planned(
            worker=warm,
            model=plans[warm].model,
            devices=plans[warm].devices,
            wave=plans[warm].wave,
            state=WorkerState.READY,
            capacity=4,
        )
        broken.discard(plans[warm].model)
    simulation = FaultySimulation(
        {model.name: [] if rng.random() < 0.1 else lengths(rng, 30) for model in models},
        plans,
        [
            Machine(
                capacity=4,
                import_seconds=rng.uniform(0, 10),
                load_seconds=rng.uniform(0, 50),
                fails_to_load=plan.model in broken,
            )
            for plan in plans
        ],
        parallel_loads=rng.randint(1, 3),
    ).run()
    for model, outcomes in simulation.outcomes.items():
        failed = model in broken and bool(outcomes)
        assert (model in simulation.scheduler.failed_models) == failed
        assert len(simulation.failures(model)) == (len(outcomes) if failed else 0)
    for plan in plans:
        if not simulation.outcomes[plan.model] or plan.state is WorkerState.READY:
            assert simulation.starts[plan.worker] == 0
    return simulation


def test_ensembles_with_more_models_than_devices_finish() -> None:
    """Every model that can be loaded answers all its prompts, in waves where it must."""
    for seed in range(200):
        ensemble(random.Random(seed))


def test_an_interrupt_ends_the_job_at_once() -> None:
    """After it every prompt has its outcome, finished ones keep theirs, and nothing is sent."""
    for seed in range(100):
        rng = random.Random(seed)
        work = lengths(rng, 80)
        plain = FaultySimulation({"m": work}, replicas(2), [Machine(load_seconds=5.0)] * 2).run()
        at = rng.uniform(0, 0.99) * plain.now
        stopped = FaultySimulation({"m": work}, replicas(2), [Machine(load_seconds=5.0)] * 2).run(
            at
        )
        failures = stopped.failures("m")
        assert failures
        assert {failure.error.kind for failure in failures.values()} == {"Interrupted"}
        kept = [o for o in stopped.outcomes["m"].values() if isinstance(o, Completion)]
        assert len(kept) + len(failures) == len(work)
        assert stopped.scheduler.failed == {}


def test_a_machine_that_kills_everything_does_not_run_for_ever() -> None:
    """Where every prompt kills its worker, restarts end and every prompt is a failure."""
    for count in (1, 2):
        simulation = FaultySimulation(
            {"m": [1.0] * 50},
            replicas(count),
            [Machine(capacity=20)] * count,
            poison=frozenset(("m", index) for index in range(50)),
        ).run()
        failures = simulation.failures("m")
        assert len(failures) == 50
        assert {failure.error.kind for failure in failures.values()} == {"WorkerLost"}
        assert simulation.scheduler.restarts == 18 * count
        assert sorted(simulation.scheduler.failed) == list(range(count))
