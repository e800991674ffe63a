"""The usual script: a spawned process per device, and one half of the prompts for each.

The answers come back in a Manager's dict when all are there. Everything is loaded anew each time.
"""

from __future__ import annotations

import multiprocessing
import time
from typing import TYPE_CHECKING, Any

from benchmarks.peers.job import Job, tell, use_core

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence


def work(job: Job, number: int, part: slice, answers: MutableMapping[int, Any]) -> None:
    """Answer one part of the prompts on one core."""
    began = time.perf_counter()
    use_core(job.cores[number])
    from vllm import LLM, SamplingParams

    imported = time.perf_counter()
    llm = LLM(model=job.model, **job.engine_args)
    loaded = time.perf_counter()
    sampling = [SamplingParams(**fields) for fields in job.sampling[part]]
    outputs = llm.generate(job.prompts[part], sampling, use_tqdm=False)
    answers[number] = [(o.outputs[0].text, len(o.outputs[0].token_ids)) for o in outputs]
    tell(
        "answer",
        device=number,
        import_seconds=imported - began,
        load_seconds=loaded - imported,
        generation_seconds=time.perf_counter() - loaded,
    )


def parts(count: int, into: int) -> Sequence[slice]:
    """As many slices of so many prompts, one after the other."""
    size = -(-count // into)
    return [slice(start, start + size) for start in range(0, count, size)]


def main() -> None:
    """Do the job."""
    job = Job.read()
    tell("begin", run=1)
    spawn = multiprocessing.get_context("spawn")
    with spawn.Manager() as manager:
        answers = manager.dict()
        processes = [
            spawn.Process(target=work, args=(job, number, part, answers))
            for number, part in enumerate(parts(len(job.prompts), len(job.cores)))
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        together = [answer for number in range(len(processes)) for answer in answers[number]]
    tell("all answers", run=1, tokens=sum(tokens for _, tokens in together))


if __name__ == "__main__":
    main()
