"""One device: output tokens/s through a session over those of `LLM.generate` on the same core."""

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
)
from mgpu_magic import Session

ROUNDS = 5
TOKENS = 24


def measure() -> list[Figure]:
    """Alternates between the two; whoever waits uses no core."""
    path = model()
    core = min(os.sched_getaffinity(0))
    sampling = of_tokens([TOKENS] * len(PROMPTS))
    ours = {"model": path, "devices": [0], **ENGINE_ARGS}
    ratios = []
    with Peer(core, path) as peer, Session(f"cpu:{len(os.sched_getaffinity(0))}") as session:
        answers(session, ours, PROMPTS[:1], max_tokens=1)
        for _ in range(ROUNDS):
            with Stopwatch() as alone:
                peer.begin(PROMPTS, sampling)
                tokens = peer.wait()
            with Stopwatch() as through_us:
                results = answers(session, ours, PROMPTS, sampling=sampling)
            assert results.stats.output_tokens == tokens
            ratios.append(alone.seconds / through_us.seconds)
    return [Figure(what="one device: tokens/s over LLM.generate's", rounds=ratios, target=0.95)]


if __name__ == "__main__":
    sys.exit(show(measure()))
