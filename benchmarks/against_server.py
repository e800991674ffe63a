"""Against vLLM's own server, two of them, with a client that shares the prompts among both.

The whole of a job from nothing, and again with the servers up and our workers warm: there both
sides have engines that only wait for prompts.
"""

from __future__ import annotations

import sys

from benchmarks.common import Figure, show
from benchmarks.sides import one_each, skewed, timed

ROUNDS = 1  # of the whole; one takes more than a minute
WARM = 2
COUNT = 100


def measure(*, quick: bool = False) -> list[Figure]:
    """One after the other, on the same two cores."""
    timed("ours", one_each())  # now the files are in the page cache
    whole, warm = [], []
    for _ in range(ROUNDS):
        theirs, *their_warm = timed("server", skewed(COUNT, runs=1 + WARM))
        ours, *our_warm = timed("ours", skewed(COUNT, runs=1 + WARM))
        whole.append(theirs.all_answers / ours.all_answers)
        warm += [t.all_answers / o.all_answers for t, o in zip(their_warm, our_warm, strict=True)]
    return [
        Figure(what="whole job, uneven, first run: servers over ours", rounds=whole, target=1.0),
        Figure(what="whole job, uneven, warm: servers over ours", rounds=warm, target=1.0),
    ]


if __name__ == "__main__":
    sys.exit(show(measure()))
