"""Where the models of a job can be loaded: placement, with what is known of files and devices.

```
models ──> devices that are fit for each ──> place ──> preflight ──> Sited
               (others are left out)                     (a refused model is left out)
```

Imports `preflight`, what that imports, `checkpoint`, `errors` and `placement`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mgpu_magic.checkpoint import Checkpoint, read_checkpoint
from mgpu_magic.errors import PlacementError
from mgpu_magic.findings import Plan, refusal, sentence
from mgpu_magic.fit import replaced_dtype
from mgpu_magic.placement import Placed, place
from mgpu_magic.preflight import findings, substitutions

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from mgpu_magic.findings import Finding, World
    from mgpu_magic.spec import Device, ModelSpec, WorkerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Sited:
    """Where a job's models go.

    Attributes:
        placed: The workers.
        decided: What was decided, or may go wrong, a line each.
        refused: Models that cannot be loaded while others can, with the reason.
        passing: Whether a reason to leave something out may be over in a moment.
    """

    placed: tuple[Placed, ...]
    decided: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    passing: bool = False


def site(
    models: Sequence[ModelSpec],
    devices: Sequence[Device],
    sizes: Mapping[str, int | None],
    world: World,
    warm: Sequence[WorkerSpec] = (),
    *,
    named: bool = False,
) -> Sited:
    """Place the models where they can be loaded.

    A device that cannot hold a model is left out for it, unless the user named it; a model that no
    device can hold, or whose files are no good, is left out of an ensemble.

    Args:
        models: The models.
        devices: The devices of the job.
        sizes: Weights in bytes by model name.
        world: The machine.
        warm: What the living workers hold: that is loaded already.
        named: Whether the user named the devices one by one.

    Raises:
        PlacementError: The models do not fit the devices, or none can be loaded there.
    """
    left, unfit = {}, {}
    for model in models:
        explicit = named or model.devices is not None
        left[model.name], unfit[model.name] = (
            (list(devices), ()) if explicit else fit_devices(model, devices, world, warm)
        )
    refusals = {
        model.name: unfit[model.name]
        for model in models
        if unfit[model.name] and len(left[model.name]) < model.tensor_parallel_size
    }
    while True:
        rest = [model for model in models if model.name not in refusals]
        if not rest:
            break
        placed = place(*_narrowed(rest, devices, left), sizes)
        plans, lines = _cold(placed, warm)
        placed = tuple(
            replace(one, spec=plan.spec) if plan else one
            for one, plan in zip(placed, plans, strict=True)
        )
        cold = [plan for plan in plans if plan and plan.spec not in warm]
        found = findings(cold, world) if cold else ()
        refusing = [one for one in found if one.severity == "refuse"]
        if not refusing:
            break
        for one in refusing:
            refusals[one.model] = (*refusals.get(one.model, ()), one)
    passing = any(one.passing for each in (*refusals.values(), *unfit.values()) for one in each)
    if not rest:
        all_of_them = [one for each in refusals.values() for one in each]
        raise UnfitError(refusal(all_of_them), passing=passing)
    gone = [_without(one) for model in rest for one in unfit[model.name]]
    gone += [f"Not loaded: {sentence(one)}" for each in refusals.values() for one in each]
    told = [sentence(one) for one in found if one.severity == "warn" or one.what == "dtype"]
    return Sited(
        placed=placed,
        decided=(*gone, *lines, *told),
        refused={name: refusal(each) for name, each in refusals.items()},
        passing=passing,
    )


class UnfitError(PlacementError):
    """No model can be loaded; `passing` as in `Sited`."""

    def __init__(self, message: str, *, passing: bool) -> None:
        super().__init__(message)
        self.passing = passing


def fit_devices(
    model: ModelSpec, devices: Sequence[Device], world: World, warm: Sequence[WorkerSpec] = ()
) -> tuple[list[Device], tuple[Finding, ...]]:
    """The devices that may hold a copy of a model, and why others certainly cannot."""
    left, unfit = list(devices), []
    anywhere = replace(model, replicas=None)
    while len(left) >= model.tensor_parallel_size:
        plans, _ = _cold(place([anywhere], left, {}), warm)
        cold = [plan for plan in plans if plan and plan.spec not in warm]
        found = [one for one in findings(cold, world) if one.severity == "refuse" and one.devices]
        if not found:
            break
        unfit += found
        labels = {label for one in found for label in one.devices}
        left = [device for device in left if device.label not in labels]
    return left, tuple(unfit)


def plans_of(placed: Sequence[Placed]) -> list[Plan | None]:
    """What each worker is to load; None for engines and models without files of their own."""
    read: dict[str, Checkpoint] = {}
    plans: list[Plan | None] = []
    for one in placed:
        spec, args = one.spec, one.spec.engine_args
        by_files = spec.engine in ("vllm", "transformers") and isinstance(spec.model, str)
        if not by_files or "://" in spec.model:
            plans.append(None)
            continue
        if one.model not in read:
            revision, cache = args.get("revision"), args.get("download_dir")
            read[one.model] = read_checkpoint(
                spec.model,
                os.environ,
                revision and str(revision),
                cache and str(cache),
                engine=spec.engine,
                load_format=str(args.get("load_format") or "auto"),
                subfolder=str(args.get("subfolder") or ""),
            )
        plans.append(Plan(model=one.model, spec=spec, checkpoint=read[one.model], wave=one.wave))
    return plans


def settled(plan: Plan) -> Plan:
    """The plan with the number type that its devices need."""
    dtype = replaced_dtype(plan.spec, plan.checkpoint)
    if dtype is None:
        return plan
    args = {**plan.spec.engine_args, "dtype": dtype}
    return replace(plan, spec=replace(plan.spec, engine_args=args))


def _cold(
    placed: Sequence[Placed], warm: Collection[WorkerSpec]
) -> tuple[list[Plan | None], tuple[str, ...]]:
    """The plans as they can be loaded, and what was put in place of number types."""
    before = plans_of(placed)
    after = [
        plan if plan is None or plan.spec in warm else settled(plan)  # else it would load anew
        for plan in before
    ]
    cold = [
        (old, new)
        for old, new in zip(before, after, strict=True)
        if old and new and new.spec not in warm
    ]
    return after, substitutions(cold)


def _narrowed(
    models: Sequence[ModelSpec], devices: Sequence[Device], left: Mapping[str, list[Device]]
) -> tuple[list[ModelSpec], list[Device]]:
    """The models and the devices that are fit for any; a model is held to those fit for it."""
    wanted = {index for model in models for index in model.devices or ()}
    fit = {device.index for model in models if not model.devices for device in left[model.name]}
    missing = wanted - {device.index for device in devices}
    if missing:  # placement names them
        return list(models), list(devices)
    shared = [device for device in devices if device.index in wanted | fit]
    narrowed = []
    for model in models:
        own = left[model.name]
        if len(own) < len(devices):
            copies = len(own) // model.tensor_parallel_size
            model = replace(model, replicas=model.replicas and min(model.replicas, copies))
            if own != shared:
                model = replace(model, devices=tuple(device.index for device in own))
        narrowed.append(model)
    return narrowed, shared


def _without(one: Finding) -> str:
    return f"{one.model}: goes on without {one.where}: {one.says}. {one.fix}"
