"""One process for `orchestration`: `python -m benchmarks.echo_job`, figures as JSON on stdout.

The prompts exist before anything is counted, as in a notebook, and none of the answers costs a
model anything: what is left is what sharing out, sending, collecting and keeping them costs.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from benchmarks.common import answers, warm_up
from mgpu_magic import ResultSet, Session

FEW, MANY = 10_000, 1_000_000
REPEATS = 20  # of the small job, which alone is too short to be measured
JOB = {"model": "echo", "engine": "echo", "engine_args": {"capacity": 288}}  # as vLLM's default


def main(many: int) -> None:
    """A small job many times, then a big one."""
    prompts = [f"Prompt number {number} of many." for number in range(many)]
    with Session("cpu:2") as session:
        warm_up(session, JOB)
        few = [_cost(session, prompts[:FEW]) for _ in range(REPEATS)]
        before = _resident_bytes()
        with _Peak() as peak:
            cost = _cost(session, prompts)
        results = session.last
        assert isinstance(results, ResultSet)
        texts = results.texts
        assert texts == prompts
        answered = sum(map(sys.getsizeof, texts))
    figures = {
        "kernel_us": cost * 1e6,
        "over_few": cost / (sum(few) / len(few)),
        "bytes": (peak.bytes - before - answered) / many,
    }
    print(json.dumps(figures))


def _cost(session: Session, prompts: list[str]) -> float:
    """CPU seconds of this process for each prompt, all its threads together."""
    before = time.process_time()
    answers(session, JOB, prompts)
    return (time.process_time() - before) / len(prompts)


def _resident_bytes() -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)


class _Peak:
    """The most resident memory of this process within a `with` block, looked at 20 times a second.

    Attributes:
        bytes: It.
    """

    def __enter__(self) -> _Peak:
        self.bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._over.set()
        self._thread.join()
        self.bytes = max(self.bytes, _resident_bytes())

    def _look(self) -> None:
        while not self._over.wait(0.05):
            self.bytes = max(self.bytes, _resident_bytes())


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else MANY)
