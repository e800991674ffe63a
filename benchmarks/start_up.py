"""Two models in threads until the first answers of both: a fixed delay of 10 s, over `auto`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.classifiers import classifiers
from benchmarks.common import Figure, Stopwatch, show
from mgpu_magic import Session

ROUNDS = 3


def measure() -> list[Figure]:
    """The first load, which imports the libraries, is not counted."""
    with tempfile.TemporaryDirectory() as folder, Session("cpu:2") as session:
        models = {Path(path).name: path for path in classifiers(Path(folder), 2)}
        start(session, models, "auto")
        ratios = [
            start(session, models, "10") / start(session, models, "auto") for _ in range(ROUNDS)
        ]
    return [
        Figure(what="start-up of two models: a delay of 10 s over auto", rounds=ratios, target=1.0)
    ]


def start(session: Session, models: dict[str, str], stagger: str) -> float:
    """Seconds of a job of one prompt, with nothing loaded."""
    with Stopwatch() as watch:
        session.generate(
            models=models,
            prompts=["a comment"],
            engine="transformers",
            launcher="thread",
            task="classify",
            stagger=stagger,
        )
    session.free()
    return watch.seconds


if __name__ == "__main__":
    sys.exit(show(measure()))
