"""The scheduler on more devices than this machine has: `python -m benchmarks.simulate`.

Runs the real scheduler in virtual time, see `simulator`, and prints three tables in Markdown: how
much longer a job takes than the least time that its work allows, by prompts per device; the same
for unlike devices and lengths; and what the scheduler costs. Seeds are fixed; the figures of cost
alone are this machine's.

Answers have heavy-tailed lengths, of which the scheduler knows nothing where `max_tokens` is the
same for all. Prompts are short here: reading them takes no time of its own, nor do messages. The
devices are warm.
"""

from __future__ import annotations

import platform
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.common import markdown
from benchmarks.machines import Machine, bound
from benchmarks.simulator import MAX_TOKENS, Simulation, replicas
from mgpu_magic.lifecycle import WorkerState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SEED = 20260101
COUNTS = (2, 8, 64)
PER_DEVICE = (12, 125, 1250, 12500, 125000)
MOST = {2: 25000, 8: 1000000, 64: 800000}  # prompts, so that all of it takes under a minute

# Tokens per second by requests in the batch, as a straight line through the seconds of a step.
# The capacity is what our vLLM worker announces: the sequences that vLLM runs by default on such
# a device, and an eighth.

# Mistral 7B AWQ in vLLM 0.16, from the README of github.com/bereketlemma/llm-inference-bench
# (60.5, 227.8 and 429.1 tokens/s with 1, 4 and 8 requests of 512 tokens), drawn on beyond 8.
L4 = Machine(step_seconds=0.0162, token_seconds=0.00030, slots=256, capacity=288)

# Mistral 7B AWQ: 35.0 tokens/s alone, from github.com/casper-hansen/AutoAWQ/pull/92. What each
# request adds is the L4's, by NVIDIA's data sheets for 16 bit (121 TFLOPS there, 65 here).
T4 = Machine(step_seconds=0.0286, token_seconds=0.00056, slots=256, capacity=288)

# Llama 3.1 8B in FP8: 4.63 ms per token alone, from docs.nvidia.com/nim/benchmarking/llm (an
# H100); 20,770 tokens/s at full load with 500 tokens in and 2,000 out, from perf-overview.md of
# github.com/NVIDIA/TensorRT-LLM.
H200 = Machine(step_seconds=0.0046, token_seconds=0.000044, slots=1024, capacity=1152)

# SmolLM2-135M in vLLM 0.32 on one core of the machine this was written on, 48 tokens each: 17, 19,
# 25 and 32 ms per step with 1, 4, 8 and 16 requests.
CORE = Machine(step_seconds=0.017, token_seconds=0.00095, slots=16, capacity=18)


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a job."""

    devices: int
    prompts: int
    excess: float  # its time over the bound
    messages: float  # per prompt
    cost: float  # of the scheduler, in microseconds per prompt
    paces: Mapping[int, float]  # what the next job knows


def lognormal(prompts: int) -> list[int]:
    """Half of the answers above 100 tokens, one in a hundred cut off."""
    lengths = np.random.default_rng(SEED).lognormal(np.log(100), 1.0, prompts)
    return _cut(lengths)


def pareto(prompts: int) -> list[int]:
    """A heavier tail: half of the answers above 63 tokens, one in 130 cut off."""
    return _cut(40 * (1 + np.random.default_rng(SEED).pareto(1.5, prompts)))


def equal(prompts: int) -> list[int]:
    """All of them stop at 100 tokens."""
    return [100] * prompts


def _cut(lengths: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> list[int]:
    return [int(length) for length in np.clip(np.ceil(lengths), 1, MAX_TOKENS)]


def run(
    machines: Sequence[Machine],
    lengths: Sequence[int],
    *,
    known: bool = False,
    paces: Mapping[int, float] | None = None,
    told: bool = False,
) -> Run:
    """One job.

    Args:
        machines: Those without a load time have the model loaded already.
        lengths: Tokens of each answer.
        known: Whether each prompt's `max_tokens` is just that; else it is the same for all.
        paces: What an earlier job has shown of the machines.
        told: Whether the driver tells their memory bandwidth, which a step without requests takes.
    """
    paces = paces or {}
    bandwidths = [1 / machine.step_seconds for machine in machines] if told else []
    plans = [
        plan
        if machine.load_seconds
        else replace(
            plan,
            state=WorkerState.READY,
            capacity=machine.capacity,
            slots=machine.slots,
            pace=paces.get(plan.worker),
        )
        for plan, machine in zip(replicas(len(machines), bandwidths), machines, strict=True)
    ]
    limits = {"m": lengths} if known else None
    job = Simulation({"m": lengths}, plans, machines, limits=limits).run()
    return Run(
        devices=len(machines),
        prompts=len(lengths),
        excess=job.now / bound(lengths, machines),
        messages=job.messages / len(lengths),
        cost=job.scheduler_seconds / len(lengths) * 1e6,
        paces=job.scheduler.paces(),
    )


def curve() -> list[Run]:
    """Alike devices, nothing known of the lengths: few prompts to many."""
    return [
        run([L4] * count, lognormal(count * each))
        for count in COUNTS
        for each in PER_DEVICE
        if count * each <= MOST[count]
    ]


def one_slow(count: int) -> list[Machine]:
    """All alike but one, which has a third of their speed."""
    slow = replace(L4, step_seconds=3 * L4.step_seconds, token_seconds=3 * L4.token_seconds)
    return [L4] * (count - 1) + [slow]


def one_late(count: int, lengths: Sequence[int]) -> list[Machine]:
    """All alike but one, which has loaded when the others would have done half of the work."""
    others = [L4] * (count - 1)
    return [*others, replace(L4, load_seconds=bound(lengths, others) / 2)]


def alternatives(each: int = 1250) -> dict[str, list[Run]]:
    """Other devices and lengths, with so many prompts for each device."""
    kinds: dict[str, Callable[[int], list[Machine]]] = {
        "T4": lambda count: [T4] * count,
        "L4": lambda count: [L4] * count,
        "H200": lambda count: [H200] * count,
        "a CPU core": lambda count: [CORE] * count,
        "T4 and L4, half and half": lambda count: [T4, L4] * (count // 2),
        "L4, one at a third of the speed": one_slow,
    }
    found = {
        name: [run(of(count), lognormal(count * each)) for count in COUNTS]
        for name, of in kinds.items()
    }
    known = [one.paces for one in found["L4, one at a third of the speed"]]
    few = each // 10
    found[f"the same with {few} prompts per device"] = [
        run(one_slow(count), lognormal(count * few)) for count in COUNTS
    ]
    found["the same where the driver tells their memory bandwidth"] = [
        run(one_slow(count), lognormal(count * few), told=True) for count in COUNTS
    ]
    found["the same in a later job, when the speeds are known"] = [
        run(one_slow(count), lognormal(count * few), paces=paces)
        for count, paces in zip(COUNTS, known, strict=True)
    ]
    jobs = [(count, lognormal(count * each)) for count in COUNTS]
    found["L4, one joins at half-time"] = [
        run(one_late(count, lengths), lengths) for count, lengths in jobs
    ]
    found["L4, `max_tokens` tells the lengths"] = [
        run([L4] * count, lengths, known=True) for count, lengths in jobs
    ]
    found["L4, Pareto lengths"] = [run([L4] * count, pareto(count * each)) for count in COUNTS]
    found["L4, equal lengths"] = [run([L4] * count, equal(count * each)) for count in COUNTS]
    return found


def show() -> None:
    """All of it."""
    began = time.perf_counter()
    print(f"seed {SEED}, Python {platform.python_version()}\n")
    runs = {(run.devices, run.prompts // run.devices): run for run in curve()}
    heads = [f"{count} devices" for count in COUNTS]

    def rows(cell: Callable[[Run], str]) -> list[list[str]]:
        return [
            [f"{each:,}", *(cell(runs[c, each]) if (c, each) in runs else "" for c in COUNTS)]
            for each in PER_DEVICE
        ]

    print("Time over the bound, by prompts per device (L4, lognormal lengths):\n")
    print(
        markdown(["prompts per device", *heads], rows(lambda run: f"{run.excess:.3f}")), end="\n\n"
    )
    print("Messages per prompt, and microseconds of the scheduler per prompt:\n")
    cost = rows(lambda run: f"{run.messages:.2f}, {run.cost:.1f}")
    print(markdown(["prompts per device", *heads], cost), end="\n\n")
    print("Time over the bound with 1,250 prompts per device:\n")
    others = [[name, *(f"{r.excess:.3f}" for r in runs)] for name, runs in alternatives().items()]
    print(markdown(["devices and lengths", *heads], others), end="\n\n")
    print(f"{time.perf_counter() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    show()
