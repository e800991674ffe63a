"""Which model runs on which devices, and in which order.

```
models, devices, sizes ──> groups of devices per model ──> waves ──> Placed, one per worker
```

Models that fit side by side share the devices out; where they do not, each device runs its models
one after the other. Pure; imports `errors` and `spec` alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mgpu_magic.errors import PlacementError
from mgpu_magic.spec import Device, ModelSpec, WorkerSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Placed:
    """One worker and its turn.

    Attributes:
        model: Name of the model.
        spec: The worker to start.
        wave: Its turn on its devices: 0 starts at once; a higher one starts when the models of
            the lower ones on the same devices have finished.
    """

    model: str
    spec: WorkerSpec
    wave: int


def place(
    models: Sequence[ModelSpec],
    devices: Sequence[Device],
    sizes: Mapping[str, int | None],
) -> tuple[Placed, ...]:
    """Share the devices out among the models.

    `devices` and `replicas` of a model are honoured first. The other models divide the devices
    that are left, the spare ones going to the bigger models. Where the models do not fit side by
    side, each takes the devices that are free soonest, the bigger models first.

    Args:
        models: The models, in the order of the cell.
        devices: The devices that this job may use.
        sizes: Weights in bytes by model name; a model that is missing or None counts as the mean.

    Returns:
        The workers, in the order of the models and, for each, of the devices. A worker's
        `host_share` is its part of the devices in use, so that the workers that can be alive at
        the same time never plan with more than the host has.

    Raises:
        PlacementError: A model needs a device that is not there, or more than there are.
    """
    weights = _weights(models, sizes)
    groups = _groups(models, devices, weights)
    used = {device.index for of_model in groups.values() for group in of_model for device in group}
    waves = _waves(sorted(models, key=lambda model: -weights[model.name]), groups)
    return tuple(
        Placed(
            model.name,
            WorkerSpec(
                engine=model.engine,
                model=model.model,
                task=model.task,
                launcher=model.launcher,
                engine_args=dict(model.engine_args),
                devices=group,
                host_share=len(group) / len(used),
            ),
            waves[model.name, replica],
        )
        for model in models
        for replica, group in enumerate(groups[model.name])
    )


Groups = list[tuple[Device, ...]]


def _weights(models: Sequence[ModelSpec], sizes: Mapping[str, int | None]) -> dict[str, float]:
    known = [size for model in models if (size := sizes.get(model.name))]
    mean = sum(known) / len(known) if known else 1.0
    return {model.name: sizes.get(model.name) or mean for model in models}


def _groups(
    models: Sequence[ModelSpec], devices: Sequence[Device], weights: Mapping[str, float]
) -> dict[str, Groups]:
    allowed = {model.name: _allowed(model, devices) for model in models}
    busy = dict.fromkeys((device.index for device in devices), 0.0)
    groups: dict[str, Groups] = {}

    def take(model: ModelSpec, pool: Sequence[Device], count: int) -> None:
        size = model.tensor_parallel_size
        soonest = sorted(pool, key=lambda device: busy[device.index])[: count * size]
        soonest.sort(key=pool.index)
        chosen = [tuple(soonest[at : at + size]) for at in range(0, len(soonest), size)]
        for group in chosen:
            begin = max(busy[device.index] for device in group)
            for device in group:
                busy[device.index] = begin + weights[model.name] / len(soonest)
        groups[model.name] = chosen

    bigger_first = sorted(models, key=lambda model: -weights[model.name])
    for model in bigger_first:
        if model.devices is not None:
            pool = allowed[model.name]
            take(model, pool, model.replicas or len(pool) // model.tensor_parallel_size)
    free = [device for device in devices if not busy[device.index]]
    others = [model for model in models if model.devices is None]
    if (counts := _split(others, len(free), weights)) is not None:
        for model in others:
            take(model, free, counts[model.name])
    else:
        queue = [model for model in bigger_first if model.devices is None]
        for place_, model in enumerate(queue):
            last = len(queue) - place_ <= len(queue) % len(devices)
            take(model, devices, model.replicas or (_fitting(model, devices) if last else 1))
    return groups


def _fitting(model: ModelSpec, devices: Sequence[Device]) -> int:
    return len(devices) // model.tensor_parallel_size


def _allowed(model: ModelSpec, devices: Sequence[Device]) -> list[Device]:
    by_index = {device.index: device for device in devices}
    visible = _visible(by_index)
    for index in model.devices or ():
        if index not in by_index:
            raise PlacementError(f"model {model.name!r} asks for device {index!r}; {visible}")
    allowed = [by_index[index] for index in model.devices or by_index]
    size = model.tensor_parallel_size
    if size > 1 and any(device.kind == "cpu" for device in allowed):
        raise PlacementError(
            f"model {model.name!r} has tensor_parallel_size={size}, which needs CUDA devices; "
            "leave it out on CPU devices: each runs a replica"
        )
    needed = size * (model.replicas or 1)
    if needed > len(allowed):
        what = f"tensor_parallel_size={size}" if size > 1 else ""
        if model.replicas is not None:
            what = f"replicas={model.replicas}" + (f" with {what}" if what else "")
        have = f"its devices are {_listed(model.devices)}" if model.devices else visible
        raise PlacementError(
            f"model {model.name!r} needs {needed} device{'s' if needed > 1 else ''}"
            f"{f' ({what})' if what else ''}; {have}: ask for fewer, or for more devices"
        )
    return allowed


def _split(
    models: Sequence[ModelSpec], free: int, weights: Mapping[str, float]
) -> dict[str, int] | None:
    """Replicas by model name if all fit side by side, else None."""
    counts = {model.name: model.replicas or 1 for model in models}
    spare = free - sum(counts[model.name] * model.tensor_parallel_size for model in models)
    if spare < 0:
        return None
    growing = [model for model in models if model.replicas is None]
    while fitting := [model for model in growing if model.tensor_parallel_size <= spare]:
        slowest = max(
            fitting,
            key=lambda model: (
                weights[model.name] / (counts[model.name] * model.tensor_parallel_size)
            ),
        )
        counts[slowest.name] += 1
        spare -= slowest.tensor_parallel_size
    return counts


def _waves(
    bigger_first: Iterable[ModelSpec], groups: Mapping[str, Groups]
) -> dict[tuple[str, int], int]:
    """Wave by model name and replica: each takes the next turn that is free on its devices."""
    turns: dict[int, int] = {}
    waves = {}
    for model in bigger_first:
        for replica, group in enumerate(groups[model.name]):
            wave = max(turns.get(device.index, 0) for device in group)
            waves[model.name, replica] = wave
            turns.update((device.index, wave + 1) for device in group)
    return waves


def _visible(indices: Iterable[int]) -> str:
    listed = list(indices)
    if not listed:
        return "no device is visible"
    are = "device is" if len(listed) == 1 else "devices are"
    return f"{len(listed)} {are} visible ({_listed(listed)})"


def _listed(indices: Iterable[int] | None) -> str:
    return ", ".join(str(index) for index in indices or ())
