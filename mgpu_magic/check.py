"""What `%multigpu check` says of a model: its figures, and where it fits.

```
Checkpoint ─┐
Devices ────┼──> Check: text and HTML
World ──────┘
```

Imports what `preparation` does, and `tables`; `huggingface_hub` where it is used.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mgpu_magic.budgets import GIB
from mgpu_magic.devices import discover
from mgpu_magic.findings import Seen, gib, table
from mgpu_magic.fit import RESERVE_BYTES, budget_bytes, need
from mgpu_magic.placement import place
from mgpu_magic.preflight import findings, fitting_size, no_disk, substitutions
from mgpu_magic.preparation import located, named_devices
from mgpu_magic.siting import fit_devices, plans_of, settled
from mgpu_magic.snapshot import Reading
from mgpu_magic.survey import look_around
from mgpu_magic.tables import Table
from mgpu_magic.weights import WEIGHT_FILES, gguf_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mgpu_magic.checkpoint import Checkpoint
    from mgpu_magic.findings import Finding, Plan, World
    from mgpu_magic.spec import Device, JobSpec, ModelSpec
    from mgpu_magic.survey import Living

HUB_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Check:
    """What is known of a job's models before they are loaded; shown as tables."""

    tables: tuple[Table, ...]

    def __repr__(self) -> str:
        return "\n\n".join(table.text() for table in self.tables)

    def _repr_html_(self) -> str:
        return "".join(table.html() for table in self.tables)


def check(job: JobSpec, devices: str, living: Sequence[Living] = ()) -> Check:
    """Look at each model of a job as if it had all its devices for itself.

    Args:
        job: What the user asks about; its prompts do not matter.
        devices: Where it would run if it does not say so itself.
        living: The workers that live; they would be gone.

    Raises:
        SpecError: An option is wrong, or there is no such directory.
        PlacementError: There are too few devices.
    """
    discovery = discover(os.environ, job.devices or devices)
    world = look_around(discovery.devices, living, os.environ)
    tables: list[Table] = []
    for model in job.models:
        named = model.devices is not None or named_devices(job.devices or devices)
        tables += _model(located(model), world, named=named)
    if discovery.notes:
        tables.append(Table(discovery.notes, (), ()))
    return Check(tuple(tables))


def _model(model: ModelSpec, world: World, *, named: bool) -> Iterator[Table]:
    devices, unfit = (world.devices, ()) if named else fit_devices(model, world.devices, world)
    if model.tensor_parallel_size == 1 or len(devices) < model.tensor_parallel_size:
        devices = world.devices  # those that are not fit are shown too
    placed = place([model], devices, {})
    before = plans_of(placed)
    plans = [settled(_sized(plan, world)) for plan in before if plan is not None]
    if not plans:
        text = f"{model.name}: the engine {model.engine} loads no files that tell its size."
        yield Table([text], (), ())
        return
    found = tuple(dict.fromkeys((*findings(plans, world), *unfit)))
    if (extra := _download(plans[0], world)) is not None:
        found = (*found, extra)
    yield Table(_figures(model.name, plans[0]), _HEADER, [_row(p, world, found) for p in plans])
    lines = [_verdict(plans, world, found, named=named)]
    lines += substitutions(zip(filter(None, before), plans, strict=True))
    yield Table(lines, (), ())
    if found:
        yield table(found)


# --- the model's figures ---------------------------------------------------------------------


def _figures(name: str, plan: Plan) -> list[str]:
    """Two lines: its size, and what a sequence costs."""
    checkpoint = plan.checkpoint
    if checkpoint.place is None:
        return [f"{name}: {_stored(checkpoint)}"]
    parts = [
        _count(checkpoint.parameters) + " parameters" if checkpoint.parameters else "",
        _stored(checkpoint),
        checkpoint.dtype or "",
        str(checkpoint.quantization) if checkpoint.quantization else "",
        f"{checkpoint.vocabulary:,} tokens in its vocabulary" if checkpoint.vocabulary else "",
        checkpoint.architecture or "",
    ]
    needed = need(plan.spec, checkpoint)
    positions = checkpoint.max_positions
    length = f"made for {positions:,} tokens" if positions else "its longest sequence is not known"
    cache = "not known for this architecture"
    if needed.token_bytes:
        count = len(plan.spec.devices)
        cache = f"{needed.token_bytes * 1000 / 2**20:,.1f} MiB per 1,000 tokens"
        cache += f" on each of {count} devices" if count > 1 else ""
    return [f"{name}: {', '.join(filter(None, parts))}", f"KV cache: {cache}; {length}"]


def _stored(checkpoint: Checkpoint) -> str:
    if checkpoint.stored_bytes and not checkpoint.missing:
        return f"{_size(checkpoint.stored_bytes)} of weights"
    if checkpoint.total_bytes:
        here = checkpoint.stored_bytes or 0
        return f"{_size(checkpoint.total_bytes)} of weights, {_size(here)} of them here"
    if checkpoint.place is not None:
        return "its weights are of a size that is not known"
    return "not on this machine yet, its size is not known"


def _size(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB" if count < GIB else f"{gib(count)} GiB"


def _count(parameters: int) -> str:
    if parameters >= 10**9:
        return f"{parameters / 10**9:.1f} billion"
    return f"{parameters / 10**6:.1f} million"


# --- where it fits ---------------------------------------------------------------------------

_HEADER = ("device", "memory", "free", "weights", "left for KV cache", "full sequences", "fits")


def _row(plan: Plan, world: World, found: Sequence[Finding]) -> Sequence[str]:
    device = plan.spec.devices[0]
    needed = need(plan.spec, plan.checkpoint)
    total, free = _memory(device, world)
    room = _room(plan, world)
    sequences = ""
    if room is not None and needed.cache_bytes:
        of = f" of {needed.max_model_len:,} tokens" if needed.max_model_len else ""
        sequences = f"{max(0, room) // needed.cache_bytes:,}{of}"
    return (
        f"{plan.spec.label} {device.name}",
        _gib(total),
        _gib(free),
        "n/a" if needed.weights_bytes is None else _size(needed.weights_bytes),
        "n/a" if room is None else f"about {gib(max(0, room))} GiB",
        sequences or "n/a",
        _fits(plan, found),
    )


def _memory(device: Device, world: World) -> tuple[int | None, int | None]:
    """Total and free bytes."""
    if device.kind == "cpu":
        return world.total_bytes, world.free_bytes
    seen = world.seen.get(device.label) or Seen(reading=Reading())
    return device.total_bytes or seen.reading.total_bytes, seen.free_bytes


def _room(plan: Plan, world: World) -> int | None:
    """Bytes that are left for the KV cache on each device of a worker; None: not known."""
    if plan.spec.engine != "vllm":
        return None
    rooms = []
    for device in plan.spec.devices:
        total, _ = _memory(device, world)
        needed = need(plan.spec, plan.checkpoint)
        if device.kind == "cpu":
            return world.cache_bytes(plan.spec) if needed.weights_bytes else None
        allowed = budget_bytes(plan.spec.engine_args, total) if total else None
        if allowed is None or needed.weights_bytes is None:
            return None
        rooms.append(allowed - needed.weights_bytes - RESERVE_BYTES)
    return min(rooms)


def _fits(plan: Plan, found: Sequence[Finding]) -> str:
    """Yes, no, or what stands in the way."""
    labels = {device.label for device in plan.spec.devices}
    about = [f for f in found if not f.devices or labels & set(f.devices)]
    if any(finding.severity == "refuse" for finding in about):
        return "no"
    if need(plan.spec, plan.checkpoint).weights_bytes is None:
        return "not known"
    return "see below" if any(finding.severity == "warn" for finding in about) else "yes"


def _verdict(plans: Sequence[Plan], world: World, found: Sequence[Finding], *, named: bool) -> str:
    """How many replicas fit, or which tensor-parallel size would."""
    answers = {plan.spec.label: _fits(plan, found) for plan in plans}
    size = len(plans[0].spec.devices)
    group = f", each on {size} devices" if size > 1 else ""
    fitting = [label for label, answer in answers.items() if answer == "yes"]
    if fitting:
        one = len(fitting) == 1
        text = f"{len(fitting)} {'replica fits' if one else 'replicas fit'}{group}"
        asked = " A cell that names the others too is refused." if named else ""
        return f"{text}: {', '.join(fitting)}.{asked if 'no' in answers.values() else ''}"
    if "see below" in answers.values():
        return "It may fit with a change; see below."
    if "not known" in answers.values():
        return "Whether it fits is not known."
    if any(f.severity == "refuse" and f.what not in ("memory", "host memory") for f in found):
        return "It cannot be loaded here; see below."
    total, _ = _memory(plans[0].spec.devices[0], world)
    if total and (larger := fitting_size(plans[0], total, world.devices)):
        return f"It fits with --tensor-parallel-size {larger}: {larger} devices hold one copy."
    return "It fits on none of these devices."


def _gib(count: int | None) -> str:
    return "n/a" if count is None else f"{gib(count)} GiB"


# --- what is to be downloaded ----------------------------------------------------------------


def _sized(plan: Plan, world: World) -> Plan:
    """The plan with the size that the hub tells, where the model is not here."""
    checkpoint = plan.checkpoint
    if checkpoint.place is not None or world.offline:
        return plan
    total = hub_bytes(plan.spec.model, plan.spec.engine_args.get("revision"))
    if total is None:
        return plan
    missing = ("all of its files",)
    return replace(plan, checkpoint=replace(checkpoint, total_bytes=total, missing=missing))


def hub_bytes(model: str, revision: str | None = None) -> int | None:
    """Size of a model's weights by the hub; None where it cannot be asked."""
    with suppress(ImportError):
        from huggingface_hub import HfApi

        try:
            asked = HfApi().model_info(
                model, revision=revision, files_metadata=True, timeout=HUB_SECONDS
            )
        except Exception:  # noqa: BLE001  # foreign code, and the network
            return None
        sizes = {file.rfilename: file.size or 0 for file in asked.siblings or ()}
        for suffix in WEIGHT_FILES:
            files = [Path(name) for name in sizes if name.endswith(suffix)]
            if suffix == ".gguf":
                files = list(gguf_of(files, model))
            weights = [sizes[str(file)] for file in files]
            if any(weights):
                return sum(weights)
    return None


def _download(plan: Plan, world: World) -> Finding | None:
    wanted, free = plan.checkpoint.total_bytes or 0, world.disk_bytes
    if plan.checkpoint.place is None and free is not None and wanted > free:
        return no_disk(plan, wanted, free)
    return None
