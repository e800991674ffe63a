"""All that can be checked and decided about a job before a worker exists.

```
JobSpec ──> prompts ──> requests by model ─┐
        ──> adapters ──> models            ├──> Preparation
        ──> devices, weights ──> placement ┘
```

Whatever is wrong is raised here, in the thread that asks for the job, with nothing started.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mgpu_magic.devices import Discovery, discover, free_host_bytes
from mgpu_magic.placement import Placed, place
from mgpu_magic.prompts import Prepared, to_requests
from mgpu_magic.weights import resolve, weights_bytes, with_adapters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mgpu_magic.spec import JobSpec, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """A job that can begin.

    Attributes:
        job: What the user asked for.
        prompts: The prompts by model name.
        discovery: The devices that it may use.
        placed: Its workers.
        parallel_loads: How many of them may load their weights at the same time.
        sizes: Bytes of the weights by model name; None where they are not known.
    """

    job: JobSpec
    prompts: Mapping[str, Prepared]
    discovery: Discovery
    placed: tuple[Placed, ...]
    parallel_loads: int
    sizes: Mapping[str, int | None]


def prepare(job: JobSpec, devices: str) -> Preparation:
    """Check a job and place its models.

    Args:
        job: What the user asked for.
        devices: Where it runs if it does not say so itself.

    Raises:
        SpecError: An option or a prompt is wrong.
        PlacementError: The models do not fit the devices.
    """
    prompts: dict[str, Prepared] = {}
    for model in job.models:
        prompts[model.name] = _prompts(job, model)
        job = _read_once(job, prompts[model.name], model)
    discovery = discover(os.environ, job.devices or devices)
    models = []
    for model in job.models:
        if prompts[model.name].requests:
            found = _found(model)
            found, prompts[model.name] = with_adapters(found, prompts[model.name])
            models.append(found)
    sizes = {model.name: _bytes(model) for model in models}
    placed = place(models, discovery.devices, sizes) if models else ()
    return Preparation(
        job=job,
        prompts=prompts,
        discovery=discovery,
        placed=placed,
        parallel_loads=_parallel_loads(placed, sizes),
        sizes=sizes,
    )


def _parallel_loads(placed: Sequence[Placed], sizes: Mapping[str, int | None]) -> int:
    """How many workers may load at once: threads one by one, processes as host memory allows."""
    if any(place_.spec.launcher == "thread" for place_ in placed):
        return 1
    largest = max((size for size in sizes.values() if size), default=0)
    return max(free_host_bytes() // largest, 1) if largest else max(len(placed), 1)


def _bytes(model: ModelSpec) -> int | None:
    if model.built:
        footprint = getattr(model.model, "get_memory_footprint", None)
        return int(footprint()) if callable(footprint) else None
    return weights_bytes(model.model, os.environ)


def _prompts(job: JobSpec, model: ModelSpec) -> Prepared:
    return to_requests(
        job.prompts if model.prompts is None else model.prompts,
        sampling=job.sampling if model.sampling is None else model.sampling,
        chat=job.chat,
        task=model.task,
        objects=model.engine == "python",
        choices=job.choices,
        lora=model.lora,
    )


def _read_once(job: JobSpec, read: Prepared, model: ModelSpec) -> JobSpec:
    """The job, with what a generator of prompts gave in its place: other models need it too."""
    if model.prompts is None and isinstance(job.prompts, Iterator):
        return replace(job, prompts=list(read.originals))
    return job


def _found(model: ModelSpec) -> ModelSpec:
    """The model with its path absolute; the names of the other engines say nothing of files."""
    if model.built or model.engine not in ("vllm", "transformers"):
        return model
    return replace(model, model=resolve(model.model))
