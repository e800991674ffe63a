"""Three models on two devices: the time of one after the other on one of them, over ours.

Loading is in it on both sides, as in a job that runs once.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.classifiers import BATCH, Loop, classifiers, texts
from benchmarks.common import Figure, Stopwatch, show
from mgpu_magic import Ensemble, Session

ROUNDS = 2


def measure(*, quick: bool = False) -> list[Figure]:
    """Alternates between the two; the loop is pinned to one core and has one thread."""
    import torch

    threads = torch.get_num_threads()
    cores = os.sched_getaffinity(0)
    one, two = sorted(cores)[:2]
    prompts = texts(400, (20, 100))
    ratios = []
    try:
        with tempfile.TemporaryDirectory() as folder, Session("cpu:2") as session:
            models = {Path(path).name: path for path in classifiers(Path(folder), 3)}
            for _ in range(ROUNDS):
                os.sched_setaffinity(0, {one})
                torch.set_num_threads(1)
                with Stopwatch() as serial:
                    expected = [Loop(path).logits(prompts) for path in models.values()]
                os.sched_setaffinity(0, {one, two})
                with Stopwatch() as shared:
                    results = session.generate(
                        models=models,
                        prompts=prompts,
                        engine="transformers",
                        launcher="thread",
                        task="classify",
                        batch_size=BATCH,
                    )
                session.free()
                assert isinstance(results, Ensemble)
                for name, logits in zip(models, expected, strict=True):
                    assert np.allclose(results[name].logits, logits, atol=1e-4)
                ratios.append(serial.seconds / shared.seconds)
    finally:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)
    return [
        Figure(
            what="three models on two devices: one after the other over ours",
            rounds=ratios,
            target=1.6,
        )
    ]


if __name__ == "__main__":
    sys.exit(show(measure()))
