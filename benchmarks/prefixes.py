"""Prompts that begin alike: what two devices find in their prefix caches, over what one finds.

Each device reads each beginning once. Nothing is done to keep prompts that begin alike together:
with 64 of them, reading a beginning twice costs less than an uneven end would.
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

from benchmarks.common import ENGINE_ARGS, SEED, Figure, answers, model, show, warm_up
from mgpu_magic import Session

if TYPE_CHECKING:
    from mgpu_magic import ResultSet

ROUNDS = 1  # the hits are the same in each
SYSTEM_PROMPTS, QUESTIONS, SYSTEM_WORDS = 8, 64, 560  # words of this kind: about 600 tokens
WORDS = ("model", "answer", "prompt", "sentence", "number", "device", "kernel", "worker")


def measure(*, quick: bool = False) -> list[Figure]:
    """Each job has system prompts of its own: no cache knows them."""
    shared = {**ENGINE_ARGS, "max_model_len": 1024, "enable_prefix_caching": True}
    ours: dict[str, Any] = {"model": model(), **shared}
    chance = random.Random(SEED)
    hits, speeds = [], []
    with Session("cpu:2") as session:
        warm_up(session, ours)
        for _ in range(ROUNDS):
            one = answers(session, {**ours, "devices": [0]}, _prompts(chance), max_tokens=1)
            two = answers(session, ours, _prompts(chance), max_tokens=1)
            hits.append(_found(two) / _found(one))
            speeds.append((one.stats.seconds or 0.0) / (two.stats.seconds or 1.0))
    job = f"{QUESTIONS} prompts with each of {SYSTEM_PROMPTS} system prompts of 600 tokens"
    return [
        Figure(what=f"{job}: prefix-cache hits over one device's", rounds=hits, target=0.95),
        Figure(what="(the same: time of one device over that of two)", rounds=speeds),
    ]


def _prompts(chance: random.Random) -> list[str]:
    """In random order, as rows of a table are."""
    systems = [" ".join(chance.choices(WORDS, k=SYSTEM_WORDS)) for _ in range(SYSTEM_PROMPTS)]
    prompts = [
        f"{system}\nWrite one sentence about the number {number}."
        for system in systems
        for number in range(QUESTIONS)
    ]
    return chance.sample(prompts, len(prompts))


def _found(results: ResultSet) -> float:
    """Part of the prompts' tokens that came from a cache."""
    assert results.stats.cached_tokens is not None
    assert results.stats.prompt_tokens > SYSTEM_PROMPTS * QUESTIONS * 500
    return results.stats.cached_tokens / results.stats.prompt_tokens


if __name__ == "__main__":
    sys.exit(show(measure()))
