"""Ray Data LLM: a processor of two replicas, each with its engine on a core of its own.

A second `processor(dataset)` starts its actors anew, as it does for everyone.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from typing import Any

from benchmarks.peers.job import VLLM_ON_ONE_CORE, Job, tell

BATCH_SIZE = 8  # of 8, 16 and 32 as quick as any the first time, and the quickest the second
PATIENCE_SECONDS = 20.0
LOCKS = "PEER_CORE_LOCKS"  # in the environment of the actors that hold an engine


def take_core() -> None:
    """Keep an engine's process to the first core that no other one has; Ray calls it."""
    folder = os.environ.get(LOCKS)
    if folder is None:
        return
    deadline = time.monotonic() + PATIENCE_SECONDS  # for those of the run before to be gone
    while time.monotonic() < deadline:
        for core in sorted(os.sched_getaffinity(0)):
            lock = os.open(f"{folder}/{core}", os.O_CREAT | os.O_RDWR)  # open as long as it lives
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
            else:
                os.sched_setaffinity(0, {core})
                return
        time.sleep(0.1)
    raise RuntimeError("no core is free for an engine")


def main() -> None:
    """Do the job."""
    job = Job.read()
    os.sched_setaffinity(0, set(job.cores))
    tell("begin", run=1)
    import ray
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    with tempfile.TemporaryDirectory() as folder:
        ray.init(
            num_cpus=len(job.cores),
            include_dashboard=False,
            log_to_driver=False,
            runtime_env={"worker_process_setup_hook": take_core},
        )
        processor = build_processor(
            vLLMEngineProcessorConfig(
                model_source=job.model,
                engine_kwargs=job.engine_args,
                runtime_env={"env_vars": {**VLLM_ON_ONE_CORE, LOCKS: folder}},
                concurrency=(len(job.cores), len(job.cores)),
                batch_size=BATCH_SIZE,
                chat_template_stage=False,
                tokenize_stage=False,
                detokenize_stage=False,
                log_engine_metrics=False,  # on a CPU it needs this and the next
                placement_group_config={"bundles": [{"CPU": 0.5}]},
            ),
            preprocess=lambda row: {
                "prompt": row["prompt"],
                "sampling_params": row["sampling"],
                "number": row["number"],
            },
            postprocess=lambda row: {
                "number": row["number"],
                "text": row["generated_text"],
                "tokens": row["num_generated_tokens"],
            },
        )
        rows = [
            {"number": number, "prompt": prompt, "sampling": sampling}
            for number, (prompt, sampling) in enumerate(zip(job.prompts, job.sampling, strict=True))
        ]
        for number in range(1, job.runs + 1):
            if number > 1:
                tell("begin", run=number)
            answers: list[Any] = []
            for answer in processor(ray.data.from_items(rows)).iter_rows():
                if not answers:
                    tell("answer", run=number)
                answers.append(answer)
            answers.sort(key=lambda answer: answer["number"])
            assert len(answers) == len(rows)
            tell("all answers", run=number, tokens=sum(answer["tokens"] for answer in answers))


if __name__ == "__main__":
    main()
