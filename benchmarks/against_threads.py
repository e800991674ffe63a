"""Against the usual script with threads: transformers, batches of 8, ten seconds between starts.

Both sides are one process, and load the model once per device.
"""

from __future__ import annotations

import random
import sys

from benchmarks.common import SEED, Figure, show
from benchmarks.sides import job_of, timed

ROUNDS = 1  # of half a minute, for each kind of lengths
COUNT = 64
ENGINE_ARGS = {"dtype": "bfloat16"}
BATCH = 8


def measure(*, quick: bool = False) -> list[Figure]:
    """Alternates between the two on the same two cores."""
    chance = random.Random(SEED)
    mixed = [chance.randint(4, 60) for _ in range(COUNT)]
    figures = []
    for kind, tokens in (("even", [32] * COUNT), ("mixed", mixed)):
        job = job_of(
            tokens, args=ENGINE_ARGS, engine="transformers", launcher="thread", batch_size=BATCH
        )
        ratios = []
        for _ in range(ROUNDS):
            [theirs] = timed("threads", job)
            [ours] = timed("ours", job)
            ratios.append(theirs.all_answers / ours.all_answers)
        what = f"transformers, {kind} lengths, first run: the threaded script over ours"
        figures.append(Figure(what=what, rounds=ratios, target=1.0))
    return figures


if __name__ == "__main__":
    sys.exit(show(measure()))
