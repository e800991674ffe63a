"""vLLM's own server, a replica per core, and a client that keeps all of them busy.

The prompts stand in one queue, so that the work is shared as it is done; the servers stay up
between the runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from benchmarks.peers.job import VLLM_ON_ONE_CORE, Job, tell

if TYPE_CHECKING:
    from collections.abc import Iterator

    import aiohttp

MORE_IN_FLIGHT = 1.5  # than it runs at once, so that it does not wait for the client
POLL_SECONDS = 0.1
START_SECONDS = 120.0


@contextlib.contextmanager
def server(job: Job, core: int) -> Iterator[str]:
    """Start one, and end it after the block; gives its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    process = subprocess.Popen(
        [
            "taskset", "--cpu-list", str(core),
            sys.executable, "-m", "vllm.entrypoints.openai.api_server",
            "--model", job.model, "--host", "127.0.0.1", "--port", port,
            "--disable-uvicorn-access-log", *flags(job.engine_args),
        ],
        env={**os.environ, **VLLM_ON_ONE_CORE},
        stdout=sys.stderr,
    )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def flags(arguments: dict[str, Any]) -> list[str]:
    """Arguments of `LLM` as the server's command line has them."""
    found = []
    for name, value in arguments.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            found.append(f"--{option}" if value else f"--no-{option}")
        else:
            found += [f"--{option}", str(value)]
    return found


async def ready(client: aiohttp.ClientSession, address: str) -> None:
    """Return when the server answers."""
    import aiohttp

    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(aiohttp.ClientError):
            async with client.get(f"{address}/health") as response:
                if response.status == 200:
                    return
        await asyncio.sleep(POLL_SECONDS)
    raise TimeoutError(f"the server at {address} does not start")


async def answer(
    job: Job, run: int, client: aiohttp.ClientSession, addresses: list[str]
) -> list[tuple[str, int]]:
    """Text and token count for each prompt; each server starts as soon as it is ready."""
    in_flight = int(job.engine_args["max_num_seqs"] * MORE_IN_FLIGHT)
    waiting = deque(range(len(job.prompts)))
    answers: dict[int, tuple[str, int]] = {}

    async def work(address: str) -> None:
        while waiting:
            number = waiting.popleft()
            body = {"model": job.model, "prompt": job.prompts[number], **job.sampling[number]}
            async with client.post(f"{address}/v1/completions", json=body) as response:
                response.raise_for_status()
                told = await response.json()
            if not answers:
                tell("answer", run=run)
            answers[number] = told["choices"][0]["text"], told["usage"]["completion_tokens"]

    async def keep_busy(address: str) -> None:
        await ready(client, address)
        await asyncio.gather(*(work(address) for _ in range(in_flight)))

    await asyncio.gather(*(keep_busy(address) for address in addresses))
    return [answers[number] for number in range(len(job.prompts))]


async def runs(job: Job, addresses: list[str]) -> None:
    """The job, as often as it is asked for."""
    import aiohttp

    nothing = aiohttp.ClientTimeout()
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=nothing
    ) as client:
        for run in range(1, job.runs + 1):
            if run > 1:
                tell("begin", run=run)
            answers = await answer(job, run, client, addresses)
            tell("all answers", run=run, tokens=sum(tokens for _, tokens in answers))


def main() -> None:
    """Do the job."""
    job = Job.read()
    os.sched_setaffinity(0, set(job.cores))
    tell("begin", run=1)
    with contextlib.ExitStack() as servers:
        addresses = [servers.enter_context(server(job, core)) for core in job.cores]
        asyncio.run(runs(job, addresses))


if __name__ == "__main__":
    main()
