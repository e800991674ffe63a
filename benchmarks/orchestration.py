"""What a prompt costs the kernel beside the engines' work: CPU, and memory."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.common import ROOT, Figure, show
from benchmarks.echo_job import FEW, MANY

ROUNDS = 3


def measure(*, quick: bool = False) -> list[Figure]:
    """A process each round; the engine is the echo, which answers at once."""
    many = MANY // 5 if quick else MANY
    rounds = [_round(many) for _ in range(ROUNDS)]
    each = f"{many:,} prompts, two echo workers"
    return [
        Figure(
            what=f"{each}: kernel CPU per prompt, µs",
            rounds=[figures["kernel_us"] for figures in rounds],
            target=10,
            at_most=True,
        ),
        Figure(
            what=f"{each}: cost per prompt over that of {FEW:,}",
            rounds=[figures["over_few"] for figures in rounds],
            target=1.2,
            at_most=True,
        ),
        Figure(
            what=f"{each}: kernel memory per prompt beside prompts and answers, bytes",
            rounds=[figures["bytes"] for figures in rounds],
            target=400,
            at_most=True,
        ),
    ]


def _round(many: int) -> dict[str, float]:
    script = [sys.executable, "-m", "benchmarks.echo_job", str(many)]
    out = subprocess.run(script, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    figures: dict[str, float] = json.loads(out)
    return figures


if __name__ == "__main__":
    sys.exit(show(measure()))
