"""The peer's process: `python -m benchmarks.peer CORE MODEL`, jobs on stdin, token counts back."""

from __future__ import annotations

import json
import os
import sys

from benchmarks.common import ENGINE_ARGS
from benchmarks.peers.job import use_core


def main(core: int, model: str) -> None:
    """Answer jobs until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM writes its log to stdout
    use_core(core)
    from vllm import LLM, SamplingParams

    llm = LLM(model=model, **ENGINE_ARGS)
    print(json.dumps("loaded"), file=answers, flush=True)
    for line in sys.stdin:
        prompts, sampling = json.loads(line)
        each = [SamplingParams(**fields) for fields in sampling]
        outputs = llm.generate(prompts, each, use_tqdm=False)
        tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        print(tokens, file=answers, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
