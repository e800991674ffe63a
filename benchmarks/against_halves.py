"""Against the usual script, a spawned process and a half of the prompts per device: whole times.

A script that is run again loads everything again; a cell that is run again does not. That the
first cell is no slower to its first answer is measured with one short prompt per device, since
the script gathers its answers at the end.
"""

from __future__ import annotations

import sys

from benchmarks.common import Figure, show
from benchmarks.sides import one_each, skewed, timed

START_ROUNDS = 3
ROUNDS = 2  # one takes a minute and a half


def measure(*, quick: bool = False) -> list[Figure]:
    """Alternates between the two on the same two cores."""
    timed("ours", one_each())  # now the files are in the page cache
    starts, wholes, again = [], [], []
    for _ in range(START_ROUNDS):
        [theirs] = timed("halves", one_each())
        [ours] = timed("ours", one_each())
        starts.append(ours.first_answer / theirs.first_answer)
    for _ in range(ROUNDS):
        [theirs] = timed("halves", skewed())
        first, second = timed("ours", skewed(runs=2))
        wholes.append(theirs.all_answers / first.all_answers)
        again.append(theirs.all_answers / second.all_answers)
    return [
        Figure(
            what="first cell, to the first answer: ours over the halves script's",
            rounds=starts,
            target=1.0,
            at_most=True,
        ),
        Figure(what="first cell, uneven: the halves script over ours", rounds=wholes, target=1.0),
        Figure(
            what="same cell again, uneven: the halves script over ours", rounds=again, target=2.5
        ),
    ]


if __name__ == "__main__":
    sys.exit(show(measure()))
