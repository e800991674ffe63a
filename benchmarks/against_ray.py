"""Against Ray Data LLM with two replicas: the whole of an uneven job, and the same job again.

Its second run is in the same process, with Ray up; its actors are started anew, as they always
are. One round: it takes three minutes.
"""

from __future__ import annotations

import sys

from benchmarks.common import Figure, show
from benchmarks.sides import one_each, skewed, timed

ROUNDS = 1


def measure(*, quick: bool = False) -> list[Figure]:
    """One after the other, on the same two cores."""
    timed("ours", one_each())  # now the files are in the page cache
    rounds = [
        (timed("ray_data", skewed(runs=2)), timed("ours", skewed(runs=2))) for _ in range(ROUNDS)
    ]
    return [
        Figure(
            what=f"whole job, uneven, {which} run: Ray Data LLM over ours",
            rounds=[theirs[run].all_answers / ours[run].all_answers for theirs, ours in rounds],
            target=target,
        )
        for run, (which, target) in enumerate((("first", 1.3), ("second", 1.5)))
    ]


if __name__ == "__main__":
    sys.exit(show(measure()))
