"""One device: the time of the usual loop over batches of 8, over ours in a thread.

Both on the same pinned core, loaded beforehand. Texts of mixed lengths show what sorting them by
length saves; texts of one length show what all the rest costs.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.classifiers import Loop, classifiers, ours, texts
from benchmarks.common import Figure, Stopwatch, show
from mgpu_magic import Session

ROUNDS = 5


def measure(*, quick: bool = False) -> list[Figure]:
    """Alternates between the two on one core."""
    import torch

    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder, Session("cpu:1") as session:
            [path] = classifiers(Path(folder), 1)
            loop = Loop(path)
            return [
                Figure(
                    what=f"one thread, {kind} lengths: time of the loop over ours",
                    rounds=rounds(loop, session, path, texts(240, words)),
                    target=1.0,
                )
                for kind, words in (("mixed", (3, 120)), ("equal", (40, 40)))
            ]
    finally:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)


def rounds(loop: Loop, session: Session, path: str, prompts: list[str]) -> list[float]:
    """The ratio in each round; the results are compared, too."""
    ours(session, path, prompts[:8])
    loop.logits(prompts[:8])
    ratios = []
    for _ in range(ROUNDS):
        with Stopwatch() as plain:
            expected = loop.logits(prompts)
        with Stopwatch() as shared:
            logits = ours(session, path, prompts)
        assert np.allclose(logits, expected, atol=1e-4)
        ratios.append(plain.seconds / shared.seconds)
    return ratios


if __name__ == "__main__":
    sys.exit(show(measure()))
