"""The same cell again: seconds of a job on warm workers beside those that its engines work."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.common import (
    ENGINE_ARGS,
    PROMPTS,
    Figure,
    Stopwatch,
    answers,
    model,
    show,
    warm_up,
)
from mgpu_magic import Completion, Session

ROUNDS = 10


def measure() -> list[Figure]:
    """With the echo engine, which answers at once, and with vLLM."""
    vllm = {"model": model(), **ENGINE_ARGS}
    echo = {"model": "echo", "engine": "echo"}
    with Session("cpu:2") as session:
        return [
            Figure(
                what=f"same cell again, {name}: seconds beside generation",
                rounds=overheads(session, job),
                target=0.2,
                at_most=True,
            )
            for name, job in (("echo", echo), ("vLLM", vllm))
        ]


def overheads(session: Session, job: dict[str, Any]) -> list[float]:
    """One prompt per device, so that the longest answer is all that the engines do."""
    warm_up(session, job)
    found = []
    for _ in range(ROUNDS):
        with Stopwatch() as whole:
            results = answers(session, job, PROMPTS[:2], max_tokens=24)
        found.append(whole.seconds - max(r.seconds for r in results if isinstance(r, Completion)))
    return found


if __name__ == "__main__":
    sys.exit(show(measure()))
