"""The usual script with threads: one per device, ten seconds between their starts.

vLLM is made for one engine in a process, so this is transformers: each thread takes its half of the
prompts in batches of eight, in the order in which they came.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from benchmarks.peers.halves import parts
from benchmarks.peers.job import Job, tell

BATCH = 8
SECONDS_BETWEEN_STARTS = 10


def work(job: Job, number: int, part: slice, answers: dict[int, list[tuple[str, int]]]) -> None:
    """Answer one part of the prompts on one core."""
    os.sched_setaffinity(0, {job.cores[number]})  # of this thread alone
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(job.model, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(job.model, dtype=job.engine_args["dtype"])
    prompts, sampling = job.prompts[part], job.sampling[part]
    mine: list[Any] = []
    for start in range(0, len(prompts), BATCH):
        batch = tokenizer(list(prompts[start : start + BATCH]), padding=True, return_tensors="pt")
        wanted = [fields["max_tokens"] for fields in sampling[start : start + BATCH]]
        with torch.inference_mode():
            outputs = model.generate(
                **batch,
                do_sample=False,
                min_new_tokens=max(wanted),  # vLLM's `ignore_eos`
                max_new_tokens=max(wanted),
            )
        new = outputs[:, batch["input_ids"].shape[1] :]
        for ids, count in zip(new, wanted, strict=True):
            kept = ids[:count]
            mine.append((tokenizer.decode(kept, skip_special_tokens=True), len(kept)))
        if not start:
            tell("answer", run=1, device=number)
    answers[number] = mine


def main() -> None:
    """Do the job."""
    job = Job.read()
    tell("begin", run=1)
    answers: dict[int, list[tuple[str, int]]] = {}
    threads = []
    for number, part in enumerate(parts(len(job.prompts), len(job.cores))):
        if number:
            time.sleep(SECONDS_BETWEEN_STARTS)
        threads.append(threading.Thread(target=work, args=(job, number, part, answers)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    together = [answer for number in range(len(threads)) for answer in answers[number]]
    tell("all answers", run=1, tokens=sum(tokens for _, tokens in together))


if __name__ == "__main__":
    main()
