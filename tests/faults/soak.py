"""Random jobs, faults and interrupts for a long time: `make soak SECONDS=1200 SEED=1`.

```
seed ── plan(number) ──> carry_out ──> wrong outcomes? ──┐
every so many jobs: close the session ──> anything left? ├──> what is said at the end
                                          does it grow? ─┘
```
"""

from __future__ import annotations

import gc
import os
import random
import sys
import tempfile
import time
import traceback
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import psutil
from process.living import MARK

from faults.carried import carry_out
from faults.footprint import Footprint
from faults.plans import plan
from faults.strikes import ORDERS, be_impatient, prepare
from mgpu_magic import Session

if TYPE_CHECKING:
    from collections.abc import Callable

JOBS_PER_SESSION = 30
GROWTH_BYTES = 25 * 2**20
ENOUGH_FAILURES = 10


@dataclass(slots=True)
class Soak:
    """One soak.

    Attributes:
        seed: Decides what the jobs are.
        seconds: For how long.
        say: Told how it goes.
        jobs: Jobs carried out.
        prompts: Prompts of those.
        events: How often what happened.
        memory: Bytes of this process after each session.
        failures: What went wrong.
    """

    seed: int
    seconds: float
    say: Callable[[str], None]
    jobs: int = 0
    prompts: int = 0
    events: Counter[str] = field(default_factory=Counter)
    memory: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Go on until the time is over or enough has gone wrong."""
        prepare()
        be_impatient()
        end = time.monotonic() + self.seconds
        footprint = Footprint()
        while time.monotonic() < end and len(self.failures) < ENOUGH_FAILURES:
            session = Session("cpu:2")
            try:
                while self._one(session) and time.monotonic() < end:
                    pass
            finally:
                session.close()
            if left := footprint.left():
                self._fail(f"after job {self.jobs} is left: {left}")
            self._weigh()
        footprint.close()
        self._compare()

    def _one(self, session: Session) -> bool:
        """Carry the next job out; whether its session goes on."""
        self.jobs += 1
        this = plan(self.seed, self.jobs)
        self.prompts += len(this.prompts)
        self.events[this.event or "nothing"] += 1
        try:
            wrong = carry_out(this, session)
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
        except Exception:  # noqa: BLE001  # it is what the soak looks for
            wrong = [traceback.format_exc()]
        if wrong:
            self._fail(f"{this}: " + "\n    ".join(wrong))
        return not wrong and self.jobs % JOBS_PER_SESSION != 0

    def _fail(self, what: str) -> None:
        self.failures.append(what)
        self.say(f"seed {self.seed}, {what}")

    def _weigh(self) -> None:
        gc.collect()
        self.memory.append(psutil.Process().memory_info().rss)
        self.say(
            f"{self.jobs} jobs, {self.prompts} prompts, {self.memory[-1] / 2**20:.0f} MiB, "
            f"load {os.getloadavg()[0]:.1f}, {len(self.failures)} failures"
        )

    def _compare(self) -> None:
        """The first third of the sessions against the last."""
        third = len(self.memory) // 3
        if third:
            growth = median(self.memory[-third:]) - median(self.memory[:third])
            self.say(f"memory grew by {growth / 2**20:.1f} MiB from the first to the last third")
            if growth > GROWTH_BYTES:
                self._fail(f"memory grows: {[size // 2**20 for size in self.memory]} MiB")


def main() -> int:
    """Soak as the environment says; returns how much went wrong."""
    seed = int(os.environ.get("SEED") or random.randrange(10**6))
    soak = Soak(seed, float(os.environ.get("SECONDS") or 1200), _say)
    _say(f"seed {seed}, {soak.seconds:.0f} s")
    with tempfile.TemporaryDirectory(prefix="mgpu-soak-") as scratch:
        for name in "tmp", "orders":
            (Path(scratch) / name).mkdir()
        os.environ |= {MARK: uuid.uuid4().hex, ORDERS: f"{scratch}/orders"}
        tempfile.tempdir = os.environ["TMPDIR"] = f"{scratch}/tmp"
        soak.run()
    _say(f"{soak.jobs} jobs with {soak.prompts} prompts; {dict(soak.events.most_common())}")
    _say(f"seed {seed}: {len(soak.failures)} failures")
    return len(soak.failures)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
