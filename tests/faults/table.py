"""The cases: a row per fault, a column per phase, and why a cell makes no sense."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from faults import strikes
from faults.strikes import Signalled, Told
from faults.struck import PHASES, Fault, Phase, struck

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HUNG = "that there is no sign of life, or no progress"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A fault.

    Attributes:
        name: What happens.
        run: Has it happen in a phase; returns in short how it went, or raises.
        senseless: Why there is no such thing, by phase.
        quick: Phases in which each change is tested.
    """

    name: str
    run: Callable[[Phase], str]
    senseless: Mapping[Phase, str] = field(default_factory=dict)
    quick: tuple[Phase, ...] = ()

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Those in which it can happen."""
        return tuple(phase for phase in PHASES if phase not in self.senseless)


def _worker(name: str, fault: Fault, quick: tuple[Phase, ...]) -> Row:
    return Row(name=name, run=partial(struck, fault), quick=quick)


ROWS = (
    _worker(
        "SIGKILL",
        Fault(strike=Signalled(signal.SIGKILL), reason=("killed by SIGKILL",)),
        quick=PHASES,
    ),
    _worker(
        "SIGSEGV",
        Fault(strike=Signalled(signal.SIGSEGV), reason=("killed by SIGSEGV",)),
        quick=("running",),
    ),
    _worker(
        "os._exit(0)",
        Fault(strike=Told(strikes.EXIT), reason=("exit code 0",)),
        quick=("loading", "tail"),
    ),
    _worker(
        "lifeline cut",
        Fault(strike=Told(strikes.CUT_LIFELINE), reason=("killed by SIGKILL",)),
        quick=("running",),
    ),
    _worker(
        "SIGKILL of both",
        Fault(strike=Signalled(signal.SIGKILL), everyone=True, reason=("killed by SIGKILL",)),
        quick=("loading", "running"),
    ),
)
