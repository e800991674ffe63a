"""What is found before a model is loaded: values, and how they are said.

Pure; imports `budgets`, `checkpoint`, `snapshot`, `spec` and `tables` alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from mgpu_magic.budgets import GIB, cpu_cache_gib
from mgpu_magic.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mgpu_magic.checkpoint import Checkpoint
    from mgpu_magic.snapshot import Reading
    from mgpu_magic.spec import Device, WorkerSpec

Severity = Literal["refuse", "warn", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, or worth knowing.

    Attributes:
        severity: `"refuse"`: it cannot work; `"warn"`: it may fail; `"note"`: good to know.
        model: Name of the model.
        devices: Labels of the devices that it is about; empty: the machine, or the files.
        what: What it is about, in a word.
        value: What there is.
        rule: What it breaks.
        fix: What to do.
        passing: Whether it may be over in a moment, such as memory that is being given back.
    """

    severity: Severity
    model: str
    devices: tuple[str, ...] = ()
    what: str
    value: str
    rule: str
    fix: str
    passing: bool = False

    @property
    def where(self) -> str:
        """Its devices as one would list them."""
        return ", ".join(self.devices)

    @property
    def says(self) -> str:
        """Value and rule."""
        return f"{self.value}; {self.rule}" if self.rule else self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupant:
    """A process that uses a GPU and is none of our workers.

    Attributes:
        pid: As the driver counts; in a container that is another number.
        name: What it is; empty where that is not known.
        used_bytes: Its memory there, where known.
    """

    pid: int
    name: str = ""
    used_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A GPU as it was found.

    Attributes:
        reading: Its memory.
        busy: Whether a worker of ours is on it, which will be gone before a model is loaded.
        others: Who else is.
    """

    reading: Reading
    busy: bool = False
    others: tuple[Occupant, ...] = ()

    @property
    def free_bytes(self) -> int | None:
        """Memory that a new worker will find; None where nobody can tell."""
        free = self.reading.free_bytes
        if free is None or (self.busy and self.reading.own_bytes is None):
            return None
        return free + (self.reading.own_bytes or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """An installed package and the CUDA that it was built for."""

    name: str
    cuda: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The machine; None: not known.

    Attributes:
        devices: All devices of the job.
        seen: GPUs by label.
        free_bytes: Host memory that is free, or will be once our workers are gone.
        total_bytes: Host memory.
        driver_cuda: The newest CUDA that the driver runs.
        build: The installed torch.
        offline: The variable that forbids the hub; empty: it may be asked.
        disk_bytes: Free on the disk of the hub's cache.
        cpu_cache_bytes: What the user set for vLLM's KV cache on CPU devices.
    """

    devices: Sequence[Device]
    seen: Mapping[str, Seen] = field(default_factory=dict)
    free_bytes: int | None = None
    total_bytes: int | None = None
    driver_cuda: tuple[int, int] | None = None
    build: Build | None = None
    offline: str = ""
    disk_bytes: int | None = None
    cpu_cache_bytes: int | None = None

    def cache_bytes(self, spec: WorkerSpec) -> int | None:
        """KV cache that a vLLM worker on a CPU device will take; None: nobody can tell."""
        asked = spec.engine_args.get("kv_cache_memory_bytes")
        if asked is None:
            asked = self.cpu_cache_bytes
        if not asked:
            return cpu_cache_gib(self.free_bytes or 0, spec.host_share) * GIB
        known = isinstance(asked, int) and not isinstance(asked, bool) and 0 < asked < 2**60
        return asked if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A worker that is to load a model: its model's name and files, and its turn."""

    model: str
    spec: WorkerSpec
    checkpoint: Checkpoint
    wave: int = 0


# --- how they are said -----------------------------------------------------------------------


def refusal(found: Iterable[Finding]) -> str:
    """The error of those that refuse: a sentence, or a table; empty where there are none."""
    refused = [finding for finding in found if finding.severity == "refuse"]
    if len(refused) == 1:
        return sentence(refused[0])
    if not refused:
        return ""
    models = ", ".join(dict.fromkeys(finding.model for finding in refused))
    return table(refused, headline=f"{models} cannot be loaded:").text()


def sentence(finding: Finding) -> str:
    """A finding on a line of its own."""
    parts = [finding.model, *([finding.where] if finding.devices else []), finding.says]
    return f"{': '.join(parts)}. {finding.fix}"


def table(found: Sequence[Finding], headline: str = "") -> Table:
    """Findings below each other."""
    several = len({finding.model for finding in found}) > 1
    return Table(
        headlines=[headline] if headline else [],
        header=[*(["model"] if several else []), "device", "finding", "fix"],
        rows=[
            [*([f.model] if several else []), f.where or "-", f.says, f.fix]
            for f in found
        ],
    )  # fmt: skip


def gib(count: float) -> str:
    """`"14.2"`: GiB with one digit."""
    return f"{count / GIB:.1f}"


def finding(
    plan: Plan,
    severity: Severity,
    what: str,
    value: str,
    rule: str,
    fix: str,
    where: tuple[str, ...] = (),
    *,
    passing: bool = False,
) -> Finding:
    """A finding about a plan; see `Finding`."""
    return Finding(
        severity=severity,
        model=plan.model,
        devices=where,
        what=what,
        value=value,
        rule=rule,
        fix=fix,
        passing=passing,
    )


def chip(device: Device) -> str:
    """`"Tesla T4 (7.5)"`."""
    return f"{device.name} ({version(device.capability or (0, 0))})"


def capitalised(text: str) -> str:
    """A sentence of it."""
    return f"{text[:1].upper()}{text[1:]}."


def version(numbers: tuple[int, int]) -> str:
    """`"7.5"`."""
    return "{}.{}".format(*numbers)
