"""The job that a script is given, and the lines that it prints.

A job is alike for all scripts: one replica of the model on each of its cores. What comes back is
a line for each moment; whatever else a library prints is no line of ours.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

MARK = "@moment "


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be done.

    Attributes:
        model: Directory of the model.
        prompts: The prompts.
        sampling: Fields of vLLM's `SamplingParams`, for each prompt.
        engine_args: Arguments of `vllm.LLM`.
        cores: One per replica.
        runs: How often the job is done, one after the other; a script may keep what it loaded.
        options: Further ones, of this package alone.
    """

    model: str
    prompts: Sequence[str]
    sampling: Sequence[dict[str, Any]]
    engine_args: dict[str, Any]
    cores: Sequence[int]
    runs: int = 1
    options: dict[str, Any] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write it to a file."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls) -> Job:
        """The job that the command line names."""
        return cls(**json.loads(Path(sys.argv[1]).read_text()))


def use_core(core: int) -> None:
    """Keep this process to one core, as vLLM on a CPU has to be told: before it is imported."""
    os.sched_setaffinity(0, {core})
    os.environ.update(VLLM_ON_ONE_CORE)


VLLM_ON_ONE_CORE = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}


def tell(moment: str, **values: Any) -> None:
    """Print a line; its clock is one for all processes of the machine."""
    line = MARK + json.dumps({"moment": moment, "at": time.perf_counter(), **values}) + "\n"
    sys.stdout.write(line)  # at once: several processes print here
    sys.stdout.flush()
