"""`%load_ext mgpu_magic` in a fresh IPython: its seconds, and what it must not import."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.common import ROOT, Figure, show

ROUNDS = 10
HEAVY = ("torch", "vllm", "transformers", "ray")
SCRIPT = f"""
import json, sys, time
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
began = time.perf_counter()
shell.run_line_magic("load_ext", "mgpu_magic")
seconds = time.perf_counter() - began
assert "multigpu" in shell.magics_manager.magics["cell"]
print(json.dumps([seconds, [name for name in {HEAVY} if name in sys.modules]]))
"""


def measure(*, quick: bool = False) -> list[Figure]:
    """A process each round."""
    rounds = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", SCRIPT],
                cwd=ROOT,
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            ).stdout
        )
        for _ in range(ROUNDS)
    ]
    heavy = [float(len(names)) for _, names in rounds]
    return [
        Figure(
            what="`%load_ext` in a fresh kernel, ms",
            rounds=[1000 * seconds for seconds, _ in rounds],
            target=150,
            at_most=True,
        ),
        Figure(
            what="(of torch, vLLM, transformers and ray it imports)",
            rounds=heavy,
            target=0,
            at_most=True,
        ),
    ]


if __name__ == "__main__":
    sys.exit(show(measure()))
