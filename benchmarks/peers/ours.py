"""The same with this package: a session, and the job as often as it is asked for."""

from __future__ import annotations

import os

from benchmarks.peers.job import Job, tell

LOOK_SECONDS = 0.05


def main() -> None:
    """Do the job."""
    job = Job.read()
    os.sched_setaffinity(0, set(job.cores))
    tell("begin", run=1)
    from mgpu_magic import Session
    from mgpu_magic.options import Options

    with Session(f"cpu:{len(job.cores)}") as session:
        for number in range(1, job.runs + 1):
            if number > 1:
                tell("begin", run=number)
            options = Options.of(
                model={"model": job.model, **job.engine_args},
                prompts=job.prompts,
                sampling=job.sampling,
                **job.options,
            )
            run = session.submit(options.job())
            while not run.wait(LOOK_SECONDS):
                if run.snapshot.job.done:
                    tell("answer", run=number)
                    break
            results = run.result()
            results.raise_for_failures()
            tell("answer", run=number)
            loads = [worker.load_seconds for worker in results.stats.workers]
            tokens = results.stats.output_tokens
            tell("all answers", run=number, tokens=tokens, load_seconds=loads)


if __name__ == "__main__":
    main()
