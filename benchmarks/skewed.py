"""Two devices, uneven lengths: time to generate, over the usual script's with a half for each.

The usual script starts a process per device and gives each one half of the prompts. The first
half asks for short answers here, the second for long ones. Loading is left out on both sides.
"""

from __future__ import annotations

import os
import sys

from benchmarks.common import (
    ENGINE_ARGS,
    PROMPTS,
    Figure,
    Peer,
    Stopwatch,
    answers,
    model,
    of_tokens,
    show,
    warm_up,
)
from mgpu_magic import Session

ROUNDS = 5
HALF = len(PROMPTS) // 2
SHORT, LONG = 8, 120


def measure() -> list[Figure]:
    """Alternates between the two on the same two cores."""
    path = model()
    one, two = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, {one, two})
    sampling = of_tokens([SHORT] * HALF + [LONG] * HALF)
    ours = {"model": path, **ENGINE_ARGS}
    gains, excesses = [], []
    with Peer(one, path) as first, Peer(two, path) as second, Session("cpu:2") as session:
        warm_up(session, ours)
        for _ in range(ROUNDS):
            with Stopwatch() as halves:
                first.begin(PROMPTS[:HALF], sampling[:HALF])
                second.begin(PROMPTS[HALF:], sampling[HALF:])
                tokens = first.wait() + second.wait()
            with Stopwatch() as shared:
                results = answers(session, ours, PROMPTS, sampling=sampling)
            assert results.stats.output_tokens == tokens
            with Stopwatch() as even:
                first.begin(PROMPTS[::2], sampling[::2])
                second.begin(PROMPTS[1::2], sampling[1::2])
                assert first.wait() + second.wait() == tokens
            gains.append(halves.seconds / shared.seconds)
            excesses.append(shared.seconds / even.seconds)
    return [
        Figure(what="two devices, uneven: time of halves over ours", rounds=gains, target=1.7),
        Figure(
            what="two devices, uneven: our time over the perfect split's",
            rounds=excesses,
            target=1.05,
            at_most=True,
        ),
    ]


if __name__ == "__main__":
    sys.exit(show(measure()))
