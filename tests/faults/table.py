"""The cases: a row per fault, a column per phase, and why a cell makes no sense."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from faults import kernels, poison, real, strikes, threaded
from faults.strikes import Signalled, Told
from faults.struck import PHASES, Fault, Phase, struck

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

KILL, SEGV, STOP, TERM = signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP, signal.SIGTERM


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A fault.

    Attributes:
        name: What happens.
        run: Has it happen in a phase; returns in short how it went, or raises.
        senseless: Why there is no such thing, by phase.
        quick: Phases in which each change is tested.
        outside: It happens to another process than that of the cell.
        gpus: The machine seems to have two Tesla T4.
        heavy: It needs a core for each worker, and minutes.
    """

    name: str
    run: Callable[[Phase], str]
    senseless: Mapping[Phase, str] = field(default_factory=dict)
    quick: tuple[Phase, ...] = ()
    outside: bool = False
    gpus: bool = False
    heavy: bool = False

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Those in which it can happen."""
        return tuple(phase for phase in PHASES if phase not in self.senseless)


def _without(reason: str, *phases: Phase) -> dict[Phase, str]:
    return dict.fromkeys(phases, reason)


UNTOUCHED = _without("no worker has a prompt then", "importing", "loading", "idle")
ONE_WAY = _without(
    "shown while running; by phase, see 'kernel:'", "importing", "loading", "tail", "idle"
)
AS_ECHO = _without("as with other engines, see 'worker:'", "importing", "loading", "tail", "idle")
NO_THREAD = _without("a thread imports nothing, and does nothing between jobs", "importing", "idle")

DEVICE_NUMBERS = ("OutOfMemoryError", "14.56 GiB", "1.02 GiB")
_WORKERS: dict[str, tuple[Fault, tuple[Phase, ...]]] = {
    "worker: SIGKILL": (
        Fault(strike=Signalled(KILL), reason=("killed by SIGKILL (often: out of host memory)",)),
        PHASES,
    ),
    "worker: SIGSEGV": (
        Fault(strike=Signalled(SEGV), reason=("killed by SIGSEGV",)),
        ("running",),
    ),
    "worker: os._exit(0)": (
        Fault(strike=Told(strikes.EXIT), reason=("exit code 0",)),
        ("loading", "tail"),
    ),
    "worker: lifeline cut": (
        Fault(strike=Told(strikes.CUT_LIFELINE), reason=("killed by SIGKILL",), late=True),
        ("running", "idle"),
    ),
    "worker: SIGSTOP": (
        Fault(strike=Signalled(STOP), hangs=True, reason=("was killed",)),
        ("importing", "idle"),
    ),
    "worker: endless loop": (
        Fault(strike=Told(strikes.LOOP), hangs=True, reason=("was killed",)),
        ("loading", "running"),
    ),
    "worker: GIL held": (
        Fault(strike=Told(strikes.HOLD_THE_GIL), hangs=True, reason=("was killed",)),
        ("tail",),
    ),
    "worker: host memory": (
        Fault(strike=Told(strikes.HOST_MEMORY), reason=("MemoryError",)),
        ("running",),
    ),
    "worker: device memory": (
        Fault(strike=Told(strikes.DEVICE_MEMORY), reason=DEVICE_NUMBERS),
        ("running",),
    ),
    "all workers: host memory": (
        Fault(
            strike=Told(strikes.HOST_MEMORY),
            everyone=True,
            reason=("MemoryError",),
            explained=("GiB free now", "--stagger"),
        ),
        ("loading",),
    ),
    "all workers: device memory": (
        Fault(
            strike=Told(strikes.DEVICE_MEMORY),
            everyone=True,
            reason=DEVICE_NUMBERS,
            explained=("cuda:", "has 15.0 GiB in all", "What helps: a smaller model"),
            devices="0,1",
        ),
        ("loading",),
    ),
    "worker: log of 100 MB": (
        Fault(strike=Told(strikes.FLOOD), reason=("killed by SIGSEGV",), flood=True),
        ("loading", "running"),
    ),
    "all workers: SIGKILL": (
        Fault(strike=Signalled(KILL), everyone=True, reason=("killed by SIGKILL",)),
        ("loading", "running", "tail"),
    ),
    "all workers: SIGSTOP": (
        Fault(strike=Signalled(STOP), everyone=True, hangs=True, reason=("was killed",)),
        ("running",),
    ),
}
_SIGNALS = {
    "SIGKILL": Signalled(KILL),
    "SIGSEGV": Signalled(SEGV),
    "SIGSTOP": Signalled(STOP),
}


def _real(name: str, strike: Signalled, *, engine_process: bool = False, core: bool = False) -> Row:
    where = f", {'engine' if core else 'worker'} of two processes" if engine_process else ""
    run = partial(real.struck, strike, engine_process=engine_process, core=core)
    return Row(name=f"vLLM{where}: {name}", run=run, senseless=AS_ECHO, heavy=True)


_ROWS = (
    *(
        Row(name=name, run=partial(struck, fault), quick=quick, gpus=fault.devices != "cpu:2")
        for name, (fault, quick) in _WORKERS.items()
    ),
    Row(
        name="1 poison prompt in 500",
        run=partial(poison.poisoned, 1),
        senseless=UNTOUCHED,
        quick=("running",),
    ),
    Row(
        name="3 poison prompts in 500",
        run=partial(poison.poisoned, 3),
        senseless=UNTOUCHED,
        quick=("running", "tail"),
    ),
    Row(
        name="all workers: each prompt kills",
        run=poison.beyond_the_budget,
        senseless={**UNTOUCHED, **_without("all prompts are, from the first", "tail")},
        quick=("running",),
    ),
    Row(
        name="thread: raises",
        run=threaded.raises,
        senseless=NO_THREAD,
        quick=("running",),
    ),
    Row(name="thread: hangs", run=threaded.hangs, senseless=NO_THREAD, quick=("loading",)),
    Row(
        name="thread: interrupted",
        run=threaded.interrupted,
        senseless=NO_THREAD,
        quick=("tail",),
    ),
    Row(name="kernel: SIGKILL", run=partial(kernels.signalled, KILL), quick=("loading", "idle")),
    Row(name="kernel: SIGTERM", run=partial(kernels.signalled, TERM), quick=("running",)),
    Row(name="kernel: os._exit(0)", run=kernels.exits, quick=("tail",)),
    Row(
        name="kernel: SIGKILL, workers stopped",
        run=partial(kernels.killed_with_deaf_workers, Signalled(STOP)),
        quick=("running",),
    ),
    Row(
        name="kernel: SIGKILL, workers hold GIL",
        run=partial(kernels.killed_with_deaf_workers, Told(strikes.HOLD_THE_GIL)),
        quick=("loading",),
    ),
    Row(
        name="Jupyter: restarted",
        run=kernels.restarted,
        senseless=ONE_WAY,
        outside=True,
    ),
    Row(
        name="Jupyter: shut down",
        run=kernels.shut_down,
        senseless=ONE_WAY,
        quick=("running",),
        outside=True,
    ),
    *(_real(name, strike) for name, strike in _SIGNALS.items()),
    *(_real(name, strike, engine_process=True) for name, strike in _SIGNALS.items()),
    *(
        _real(name, strike, engine_process=True, core=True)
        for name, strike in _SIGNALS.items()
        if name != "SIGSEGV"
    ),
)

ROWS = {row.name: row for row in _ROWS}
