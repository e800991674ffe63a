"""Random jobs, faults and interrupts for a long time: `make soak SECONDS=1200 SEED=1`.

```
seed ── plan(number) ──> carry_out ──> wrong outcomes? ──┐
every so many jobs: close the session ──> anything left? ├──> what is said
                                          does it grow? ─┘
```
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import tempfile
import time
import traceback
import uuid
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import psutil
from process.living import MARK, workers

from faults import real
from faults.carried import carry_out
from faults.footprint import Footprint
from faults.plans import Plan, plan
from faults.strikes import ORDERS, be_impatient, prepare
from mgpu_magic import Session

if TYPE_CHECKING:
    from collections.abc import Callable

JOBS_PER_SESSION = 30
GROWTH_BYTES = 20 * 2**20
ENOUGH_FAILURES = 10


class Soak:
    """One soak.

    Args:
        seed: Decides what the jobs are.
        say: Told how it goes.
        real: A session that has the real model for a share of the jobs, if there is one.

    Attributes:
        jobs: Jobs carried out.
        prompts: Prompts of those.
        events: How often what happened.
        failures: What went wrong.
    """

    def __init__(self, seed: int, say: Callable[[str], None], real: Session | None) -> None:
        self.jobs = 0
        self.prompts = 0
        self.events: Counter[str] = Counter()
        self.failures: list[str] = []
        self._seed = seed
        self._say = say
        self._real = real
        self._real_workers = workers()
        self._memory: list[int] = []  # bytes of this process after each session
        self._footprint = Footprint()

    def run(self, seconds: float) -> None:
        """Go on until the time is over or enough has gone wrong."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and len(self.failures) < ENOUGH_FAILURES:
            with Session("cpu:2") as session:
                while self._one(session) and time.monotonic() < end:
                    pass
            if left := self._footprint.left():
                self._fail(f"after job {self.jobs} is left: {left}")
            self._weigh()
        self._footprint.close()
        self._compare()

    def _one(self, session: Session) -> bool:
        """Carry the next job out; whether its session goes on."""
        self.jobs += 1
        this = plan(self._seed, self.jobs, real=self._real is not None)
        self.prompts += len(this.prompts)
        self.events[this.event or "nothing"] += 1
        try:
            wrong = self._carried(this, session)
        except Exception:  # noqa: BLE001  # it is what the soak looks for
            wrong = [traceback.format_exc()]
        if wrong:
            self._fail(f"{this}: " + "\n    ".join(wrong))
        return not wrong and self.jobs % JOBS_PER_SESSION != 0

    def _carried(self, this: Plan, session: Session) -> list[str]:
        if this.kind == "vLLM" and self._real is not None:
            others = workers() - self._real_workers
            wrong = carry_out(this, self._real, others)
            self._real_workers = workers() - others
            return wrong
        wrong = carry_out(this, session, self._real_workers)
        match this.after:
            case "free":
                session.free()
            case "restart":
                session.restart()
            case "look":
                session.status()
                session.logs()
            case "":
                pass
        return wrong

    def _fail(self, what: str) -> None:
        self.failures.append(what)
        self._say(f"seed {self._seed}, {what}")

    def _weigh(self) -> None:
        gc.collect()
        self._memory.append(psutil.Process().memory_info().rss)
        self._say(
            f"{self.jobs} jobs, {self.prompts} prompts, {self._memory[-1] / 2**20:.0f} MiB, "
            f"load {os.getloadavg()[0]:.1f}, {len(self.failures)} failures"
        )

    def _compare(self) -> None:
        """What the middle third of the sessions took against the last: the first fills caches."""
        third = len(self._memory) // 3
        if third:
            growth = median(self._memory[-third:]) - median(self._memory[third : 2 * third])
            self._say(f"memory grew by {growth / 2**20:.1f} MiB from the middle to the last third")
            if growth > GROWTH_BYTES:
                self._fail(f"memory grows: {[size // 2**20 for size in self._memory]} MiB")


def soaked(seed: int, seconds: float, *, with_model: bool) -> int:
    """Soak in folders of its own; returns how much went wrong."""
    _say(f"seed {seed}, {seconds:.0f} s")
    with ExitStack() as leaving:
        scratch = leaving.enter_context(tempfile.TemporaryDirectory(prefix="mgpu-soak-"))
        for name in "tmp", "orders", "real":
            (Path(scratch) / name).mkdir()
        os.environ |= {
            MARK: uuid.uuid4().hex,
            ORDERS: f"{scratch}/orders",
            "TORCHINDUCTOR_CACHE_DIR": f"{scratch}/compiled",
        }
        prepare()
        model = None
        if with_model:
            tempfile.tempdir = f"{scratch}/real"
            real.compile_nothing()
            model = leaving.enter_context(Session("cpu"))
            model.run(real.job(["France"]))
        tempfile.tempdir = os.environ["TMPDIR"] = f"{scratch}/tmp"
        be_impatient()
        soak = Soak(seed, _say, model)
        soak.run(seconds)
        tempfile.tempdir = None
    _say(f"{soak.jobs} jobs with {soak.prompts} prompts; {dict(soak.events.most_common())}")
    _say(f"seed {seed}: {len(soak.failures)} failures")
    return len(soak.failures)


def _say(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    """Soak as the command line says."""
    parser = argparse.ArgumentParser(prog="soak")
    parser.add_argument("--seconds", type=float, default=1200.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--real", action="store_true", help="a share with vLLM and a real model")
    args = parser.parse_args()
    return soaked(args.seed, args.seconds, with_model=args.real)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
