"""Warm vLLM workers: tokens/s beside vLLM alone, on one device and on two.

```
even lengths     vLLM alone     session, one device     session, both     vLLM twice, a half each
uneven lengths   vLLM twice, a half each     session, both     vLLM twice, the even split
```

Both sides are loaded beforehand, on the same cores; whoever waits uses none.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from benchmarks.common import (
    ENGINE_ARGS,
    PROMPTS,
    SLOTS,
    Figure,
    Peer,
    Stopwatch,
    answers,
    model,
    of_tokens,
    show,
    two_cores,
    warm_up,
)
from mgpu_magic import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

EVEN_ROUNDS, UNEVEN_ROUNDS = 5, 3
EVEN = PROMPTS[:96]
TOKENS = 24
HALF = len(PROMPTS) // 2
SHORT, LONG = 8, 120


def measure(*, quick: bool = False) -> list[Figure]:
    """Alternates between the sides."""
    path = model()
    cores = os.sched_getaffinity(0)
    one, two = two_cores()
    os.sched_setaffinity(0, {one, two})
    try:
        with Peer(one, path) as first, Peer(two, path) as second, Session("cpu:2") as session:
            ours = {"model": path, **ENGINE_ARGS}
            warm_up(session, ours)
            figures = _even(first, second, session, ours, 3 if quick else EVEN_ROUNDS)
            if not quick:
                figures += _uneven(first, second, session, ours)
            return figures
    finally:
        os.sched_setaffinity(0, cores)


def _even(
    first: Peer, second: Peer, session: Session, ours: dict[str, Any], rounds: int
) -> list[Figure]:
    sampling = of_tokens([TOKENS] * len(EVEN))
    one, two, machine = [], [], []
    for _ in range(rounds):
        alone = _scripts([(first, EVEN, sampling)])
        single = _session(session, {**ours, "devices": [0]}, EVEN, sampling)
        both = _session(session, ours, EVEN, sampling)
        twice = _scripts([(first, EVEN[::2], sampling[::2]), (second, EVEN[1::2], sampling[1::2])])
        one.append(alone / single)
        two.append(single / both)
        machine.append(alone / twice)
    return [
        Figure(what="one device: tokens/s over `LLM.generate`", rounds=one, target=0.98),
        Figure(what="two devices over one, even lengths", rounds=two, target=1.95),
        Figure(what="(this machine: two `LLM.generate` side by side over one)", rounds=machine),
    ]


def _uneven(first: Peer, second: Peer, session: Session, ours: dict[str, Any]) -> list[Figure]:
    sampling = of_tokens([SHORT] * HALF + [LONG] * HALF)
    batch = PROMPTS[:SLOTS]
    full = of_tokens([LONG] * len(batch))
    gains, excesses, splits = [], [], []
    for _ in range(UNEVEN_ROUNDS):
        halves = _scripts(
            [(first, PROMPTS[:HALF], sampling[:HALF]), (second, PROMPTS[HALF:], sampling[HALF:])]
        )
        shared = _session(session, ours, PROMPTS, sampling)
        split = _scripts(
            [(first, PROMPTS[::2], sampling[::2]), (second, PROMPTS[1::2], sampling[1::2])]
        )
        # As if each core had a full batch from the first to the last token.
        filled = _scripts([(first, batch, full), (second, batch, full)])
        speed = 2 * LONG * len(batch) / filled
        gains.append(halves / shared)
        excesses.append(shared * speed / sum(one["max_tokens"] for one in sampling))
        splits.append(shared / split)
    return [
        Figure(
            what="two devices, uneven lengths, generation: over the halves script",
            rounds=gains,
            target=1.8,
        ),
        Figure(
            what="same, time to all answers over total work / total speed of full batches",
            rounds=excesses,
            target=1.05,
            at_most=True,
        ),
        Figure(
            what="(same, over the time of two scripts with every other prompt)",
            rounds=splits,
        ),
    ]


def _scripts(jobs: Sequence[tuple[Peer, Sequence[str], Sequence[dict[str, Any]]]]) -> float:
    """Seconds until all of them have answered, each its own prompts."""
    with Stopwatch() as watch:
        for peer, prompts, sampling in jobs:
            peer.begin(prompts, sampling)
        tokens = sum(peer.wait() for peer, _, _ in jobs)
    assert tokens == sum(one["max_tokens"] for _, _, sampling in jobs for one in sampling)
    return watch.seconds


def _session(
    session: Session,
    job: dict[str, Any],
    prompts: Sequence[str],
    sampling: Sequence[dict[str, Any]],
) -> float:
    """Seconds of the same through a session."""
    with Stopwatch() as watch:
        results = answers(session, job, prompts, sampling=sampling)
    assert results.stats.output_tokens == sum(one["max_tokens"] for one in sampling)
    return watch.seconds


if __name__ == "__main__":
    sys.exit(show(measure()))
