"""What can happen to a worker, as functions of its process id.

Signals come from outside. For what only a process can do to itself it is told by `sabotage`, in
its main thread, wherever that is just then.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from mgpu_magic import watchdog

SABOTAGE = Path(__file__).parent / "sabotage"
ORDERS = "MGPU_FAULTS"  # names the folder of the orders, a file per process

EXIT = "import os; os._exit(0)"
LOOP = "import time\nwhile True: time.sleep(60)"
HOLD_THE_GIL = "import ctypes; ctypes.PyDLL(None).sleep(10**6)"
CUT_LIFELINE = """
import os, sys
lifeline = int(sys.orig_argv[sys.orig_argv.index("mgpu_magic.worker") + 2])
ours, theirs = os.pipe()
os.close(theirs)  # what the worker reads now is the end
os.dup2(ours, lifeline, inheritable=False)
"""
HOST_MEMORY = "raise MemoryError()"
DEVICE_MEMORY = """
class OutOfMemoryError(RuntimeError): ...
raise OutOfMemoryError(
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 14.56 GiB of "
    "which 1.02 GiB is free. Process 4711 has 13.54 GiB memory in use. If reserved but "
    "unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True"
)
"""
LAST_WORDS = "the one line that explains it"
FLOOD = f"""
import os, signal
line = b"a warning that nobody reads, again and again and again and again and again and aga\\n"
for _ in range(100):
    os.write(1, line * (1_000_000 // len(line)))
os.write(2, b"{LAST_WORDS}\\n")
os.kill(os.getpid(), signal.SIGSEGV)
"""


@dataclass(frozen=True, slots=True)
class Signalled:
    """A signal from outside."""

    number: signal.Signals

    def __call__(self, pid: int) -> None:
        os.kill(pid, self.number)


@dataclass(frozen=True, slots=True)
class Told:
    """Python that the worker's main thread runs."""

    order: str

    def __call__(self, pid: int) -> None:
        Path(os.environ[ORDERS], str(pid)).write_text(self.order, encoding="utf-8")
        os.kill(pid, signal.SIGUSR2)


def prepare() -> None:
    """Have every worker that this process starts from now on take orders."""
    sys.path.insert(0, str(SABOTAGE))


def be_impatient() -> None:
    """Have hangs found out soon also while loading: these engines load in a second."""
    watchdog.LOAD_STEPS = 1
    watchdog.SIGN_SECONDS = 1.0
