"""What a worker of these tests imports first: on SIGUSR2 its main thread does as a file says.

So a fault can be set off in every phase and with every engine, and no engine knows of it.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path


def _obey(number: int, frame: object) -> None:
    order = Path(os.environ["MGPU_FAULTS"], str(os.getpid())).read_text(encoding="utf-8")
    exec(compile(order, "<sabotage>", "exec"), {})


if "MGPU_FAULTS" in os.environ:
    signal.signal(signal.SIGUSR2, _obey)
