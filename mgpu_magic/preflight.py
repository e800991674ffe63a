"""What can be known to go wrong before a model is loaded.

```
WorkerSpecs, Checkpoints ──┐
                           ├──> findings ──> refusal: one error        (refuse)
World: devices, host ──────┘            └──> warnings: a line each     (warn)
```

Refused is only what is certain; what nobody knows is no finding. Pure; imports `findings`, what
that imports, `fit` and `host` alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mgpu_magic.findings import Seen, capitalised, chip, finding, gib, version
from mgpu_magic.fit import (
    RESERVE_BYTES,
    asked_dtype,
    budget_bytes,
    lacks_bfloat16,
    longest,
    need,
    parallel_sizes,
    utilization,
)
from mgpu_magic.host import counted
from mgpu_magic.snapshot import Reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mgpu_magic.checkpoint import Quantization
    from mgpu_magic.findings import Build, Finding, Plan, Severity, World
    from mgpu_magic.fit import Need
    from mgpu_magic.spec import Device


def findings(plans: Sequence[Plan], world: World) -> tuple[Finding, ...]:
    """All that is known to be wrong, what refuses first; alike on several devices: once."""
    found: dict[Finding, list[str]] = {}
    for plan in plans:
        for one in _of_plan(plan, world):
            found.setdefault(replace(one, devices=()), []).extend(one.devices)
    for one in _of_host(plans, world):
        found.setdefault(one, [])
    joined = [
        replace(one, devices=tuple(dict.fromkeys((*one.devices, *labels))))
        for one, labels in found.items()
    ]
    order: tuple[Severity, ...] = ("refuse", "warn", "note")
    return tuple(sorted(joined, key=lambda one: order.index(one.severity)))


def substitutions(pairs: Iterable[tuple[Plan, Plan]]) -> tuple[str, ...]:
    """What was put in place of a number type, a line each; from plans before and after."""
    said: dict[tuple[str, str, str], list[str]] = {}
    for before, after in pairs:
        if before.spec != after.spec:
            chips = [chip(device) for device in after.spec.devices if lacks_bfloat16(device)]
            key = after.model, str(after.spec.engine_args["dtype"]), chips[0]
            said.setdefault(key, []).append(after.spec.label)
    return tuple(
        f"{model}: {', '.join(labels)}: {dtype} instead of the model's bfloat16, which {card} "
        "does not have."
        for (model, dtype, card), labels in said.items()
    )


# --- one worker ------------------------------------------------------------------------------


def _of_plan(plan: Plan, world: World) -> Iterator[Finding]:
    spec, checkpoint = plan.spec, plan.checkpoint
    yield from _hub(plan, world)
    for trouble in checkpoint.troubles:
        severity: Severity = "refuse" if trouble.certain else "warn"
        yield finding(plan, severity, "files", trouble.what, "", capitalised(trouble.fix))
    if spec.devices[0].kind == "cuda":
        yield from _build(plan, world)
        needed = need(spec, checkpoint)
        for device in spec.devices:
            cards = list(_card(plan, device, world.build))
            yield from cards
            if not any(card.what == "card" and card.severity == "refuse" for card in cards):
                yield from _memory(plan, device, needed, world)


def _hub(plan: Plan, world: World) -> Iterator[Finding]:
    checkpoint = plan.checkpoint
    name = plan.spec.model_label
    if checkpoint.place is None:
        if world.offline:
            what = "this" if name == plan.model else repr(name)
            value = f"{what} is no directory here, and is not in {checkpoint.looked_in}"
            rule = f"{world.offline} forbids the hub"
            fix = "Pass the directory that holds config.json, or unset the variable."
            yield finding(plan, "refuse", "hub", value, rule, fix)
        return
    if not checkpoint.missing:
        return
    first, *more = checkpoint.missing
    files = first + (f" and {len(more)} more" if more else "")
    local = checkpoint.place == checkpoint.looked_in
    if local or world.offline:
        value = f"{checkpoint.place} lacks {files}"
        rule = "its index names them" if more else "its index names it"
        if not local:
            rule += f", and {world.offline} forbids the hub"
        fix = "Copy the rest there." if local else "Download the rest, or unset the variable."
        yield finding(plan, "refuse", "files", value, rule, fix)
    elif checkpoint.total_bytes and world.disk_bytes is not None:
        left = checkpoint.total_bytes - (checkpoint.stored_bytes or 0)
        if left > world.disk_bytes:
            yield no_disk(plan, left, world.disk_bytes)


def no_disk(plan: Plan, wanted: int, free: int) -> Finding:
    """A download that is larger than what is free."""
    value = f"{gib(wanted)} GiB are to be downloaded"
    rule = f"{gib(free)} GiB are free in {plan.checkpoint.looked_in}"
    return finding(plan, "warn", "disk", value, rule, "Set HF_HOME to a folder of a larger disk.")


def _build(plan: Plan, world: World) -> Iterator[Finding]:
    build, driver = world.build, world.driver_cuda
    if build is None or build.cuda is None or driver is None or driver >= build.cuda:
        return
    value = f"{build.name} is built for CUDA {version(build.cuda)}"
    rule = f"the driver runs CUDA {version(driver)}"
    if driver[0] < build.cuda[0]:
        fix = f"Update the driver, or install a build for CUDA {driver[0]}."
        yield finding(plan, "refuse", "driver", value, rule, fix)
    else:
        fix = "That works as a rule: both are of one major version."
        yield finding(plan, "note", "driver", value, rule, fix)


VLLM_CAPABILITY = (7, 0)
BUILDS_WITHOUT_OLD_CARDS = (12, 8)  # of torch, from which on they have no code for these


def _card(plan: Plan, device: Device, build: Build | None) -> Iterator[Finding]:
    """What the card's generation cannot do."""
    if device.capability is None:
        return
    card, where = chip(device), (device.label,)
    if device.capability < VLLM_CAPABILITY:
        if plan.spec.engine == "vllm":
            rule = f"vLLM needs compute capability {version(VLLM_CAPABILITY)}"
            fix = "Choose T4 x2 or L4 x4 on Kaggle, or --engine transformers."
            yield finding(plan, "refuse", "card", f"the device is a {card}", rule, fix, where)
            return
        if build is not None and build.cuda is not None and build.cuda >= BUILDS_WITHOUT_OLD_CARDS:
            value = f"the device is a {card}"
            rule = f"{build.name} may have no code for it"
            fix = "Install a build for CUDA 12.6, or choose another GPU."
            yield finding(plan, "warn", "card", value, rule, fix, where)
    if asked_dtype(plan.spec.engine_args) == "bfloat16" and lacks_bfloat16(device):
        rule = f"{card} does not have it (8.0 does)"
        fix = 'Use dtype="half", or leave dtype out.'
        severity: Severity = "refuse"
        if plan.spec.engine == "transformers":  # torch does it with other numbers
            rule, severity = f"{rule}: it will be slow", "note"
        yield finding(plan, severity, "dtype", 'dtype is "bfloat16"', rule, fix, where)
    packed = plan.checkpoint.quantization
    asked = plan.spec.engine_args.get("quantization")
    least = None
    if packed is not None and plan.spec.engine == "vllm" and asked in (None, packed.method):
        least = _least(packed)
    if least is not None and device.capability < least:
        value = f"the weights are {packed}"
        rule = f"vLLM needs {version(least)} for it, and this is a {card}"
        fix = "Use another quantisation of the model (AWQ runs from 7.5 on, GPTQ from 6.0 on)."
        yield finding(plan, "refuse", "quantisation", value, rule, fix, where)


_LEAST = {
    "awq": (7, 5), "gptq": (6, 0), "fp8": (7, 5), "fbgemm_fp8": (8, 0), "mxfp4": (8, 0),
    "experts_int8": (8, 0), "torchao": (7, 5),
}  # fmt: skip
_LEAST_OF_SCHEME = {
    "W4A16-int": (7, 5), "W8A16-int": (7, 5), "W8A8-int": (7, 5), "W8A8-fp": (7, 5),
    "W8A16-fp": (7, 5), "W4A8-fp": (9, 0),
}  # fmt: skip


def _least(packed: Quantization) -> tuple[int, int] | None:
    """The compute capability that vLLM asks for, where known."""
    if packed.method == "compressed-tensors":
        return _LEAST_OF_SCHEME.get(packed.scheme)
    return _LEAST.get(packed.method)


# --- memory of a GPU -------------------------------------------------------------------------


def _memory(plan: Plan, device: Device, needed: Need, world: World) -> Iterator[Finding]:
    """The first of: weights too large, no room for them now, vLLM's share not free, cache."""
    seen = world.seen.get(device.label) or Seen(reading=Reading())
    total = device.total_bytes or seen.reading.total_bytes
    weights = needed.weights_bytes
    if total is None or weights is None:
        return
    where, args = (device.label,), plan.spec.engine_args
    least = needed.least_bytes or 0
    part = "" if len(plan.spec.devices) == 1 else " here"
    value = f"the weights take {gib(weights)} GiB{part}"
    allowed = budget_bytes(args, total) if plan.spec.engine == "vllm" else None
    if weights > min(total, allowed or total):
        rule = f"{device.name} has {gib(total)} GiB"
        if allowed and weights <= total:
            rule = f"vLLM may use {gib(allowed)} of {gib(total)} GiB ({_percentage(args)})"
        # What embeds needs no cache, and may go over its share.
        most = allowed if allowed and plan.spec.task == "generate" else total
        severity: Severity = "refuse" if least > most else "warn"
        fix = _smaller(plan, total, world)
        yield finding(plan, severity, "memory", value, rule, fix, where)
        return
    free = seen.free_bytes
    if free is not None and free < weights:
        rule = f"{gib(free)} of {gib(total)} GiB are free{_used_by(seen)}"
        fix = "Free the device, or choose others with --devices."
        severity = "refuse" if least > free else "warn"
        yield finding(plan, severity, "memory", value, rule, fix, where, passing=True)
    elif free is not None and allowed is not None and free < allowed:
        rule = f"vLLM asks for {gib(allowed)} ({_percentage(args)}) and will not start"
        value = f"{gib(free)} of {gib(total)} GiB are free{_used_by(seen)}"
        fix = _lower_share(needed, free, total)
        yield finding(plan, "warn", "memory", value, rule, fix, where, passing=True)
    elif allowed is not None and needed.cache_bytes is not None:
        room = allowed - weights - RESERVE_BYTES
        if needed.cache_bytes > room and needed.max_model_len:
            value = (
                f"a sequence of {needed.max_model_len:,} tokens needs {gib(needed.cache_bytes)} "
                "GiB of KV cache"
            )
            rule = f"beside the weights there are about {gib(max(room, 0))}"
            fix = _shorter(plan, needed, room, total, world)
            yield finding(plan, "warn", "cache", value, rule, fix, where)
    else:
        most = total if free is None else free
        most = most if allowed is None else min(most, allowed)
        if weights + RESERVE_BYTES > most:
            rule = (
                f"{gib(most)} of {gib(total)} GiB are for them and for about {gib(RESERVE_BYTES)}"
            )
            rule += " of activations and CUDA"
            fix = _smaller(plan, total, world)
            yield finding(plan, "warn", "memory", value, rule, fix, where)


def _smaller(plan: Plan, total: int, world: World) -> str:
    """What to do about weights that do not fit."""
    args = plan.spec.engine_args
    quantised = plan.checkpoint.quantization or any("quantization" in name for name in args)
    packed = "" if quantised else ", or a quantised model (AWQ, GPTQ)"
    if plan.spec.engine == "vllm" and (size := fitting_size(plan, total, world.devices)):
        return f"Use --tensor-parallel-size {size}{packed}."
    return f"Use a smaller model{packed}."


def fitting_size(plan: Plan, total: int, devices: Sequence[Device]) -> int | None:
    """The smallest tensor-parallel size above the plan's with which the weights fit."""
    same = [device for device in devices if device.kind == "cuda"]
    for size in parallel_sizes(plan.checkpoint, len(same)):
        if size <= len(plan.spec.devices):
            continue
        needed = need(replace(plan.spec, devices=tuple(same[:size])), plan.checkpoint)
        allowed = budget_bytes(plan.spec.engine_args, total) or total
        if needed.weights_bytes and needed.weights_bytes + RESERVE_BYTES < allowed:
            return size
    return None


def _shorter(plan: Plan, needed: Need, room: int, total: int, world: World) -> str:
    """What to do about a cache that does not fit."""
    if tokens := longest(needed, room):
        return f"Use --max-model-len {tokens}, or less."
    return _smaller(plan, total, world)


def _lower_share(needed: Need, free: int, total: int) -> str:
    """What to do where vLLM's share is not free."""
    part = int(100 * max(0, free - RESERVE_BYTES // 2) / total)  # its own context goes off first
    if total * part / 100 > (needed.weights_bytes or 0) + RESERVE_BYTES:
        return f"Use --gpu-memory-utilization {part / 100:.2f}, or free the device."
    return "Free the device, or choose others with --devices."


def _percentage(args: Mapping[str, object]) -> str:
    return f"--gpu-memory-utilization {utilization(args):.2f}"


def _used_by(seen: Seen) -> str:
    if not seen.others:
        return ", and the driver does not say who uses the rest"
    named = [
        f"pid {other.pid}{f' ({other.name})' if other.name else ''}"
        + (f" with {gib(other.used_bytes)} GiB" if other.used_bytes is not None else "")
        for other in sorted(seen.others, key=lambda other: -(other.used_bytes or 0))[:3]
    ]
    return f", used by {', '.join(named)}"


# --- memory of the host ----------------------------------------------------------------------


def _of_host(plans: Sequence[Plan], world: World) -> Iterator[Finding]:
    free = world.free_bytes
    on_cpu = [plan for plan in plans if plan.spec.devices[0].kind == "cpu" and plan.wave == 0]
    if free is None:
        return
    if on_cpu:
        yield from _cpu_memory(on_cpu, free, world)
    for plan in {plan.model: plan for plan in plans}.values():
        stored = plan.checkpoint.stored_bytes or 0
        if plan.spec.devices[0].kind == "cuda" and stored > free:
            value = f"the weights' files have {gib(stored)} GiB"
            rule = f"{gib(free)} GiB of host memory are free"
            fix = "Loading may be slow, or be ended by the system: free some memory."
            yield finding(plan, "warn", "host memory", value, rule, fix)


def _cpu_memory(plans: Sequence[Plan], free: int, world: World) -> Iterator[Finding]:
    """Each worker of a CPU device has all of its model, and a KV cache."""
    total = world.total_bytes
    sums, caches = 0, 0
    for plan in plans:
        needed = need(plan.spec, plan.checkpoint)
        weights = needed.weights_bytes
        if weights is None:
            return
        if total is not None and (needed.least_bytes or 0) > total:
            value, rule = f"the weights take {gib(weights)} GiB", f"the host has {gib(total)} GiB"
            fix = "Use a smaller model, or a quantised one."
            yield finding(plan, "refuse", "host memory", value, rule, fix)
            return
        sums += weights
        if plan.spec.engine == "vllm":
            caches += world.cache_bytes(plan.spec) or 0
    if sums + caches > free:
        count = len(plans)
        cache = f" with {gib(caches)} GiB of KV cache" if caches else ""
        value = f"{counted(count, 'worker')} would take {gib(sums)} GiB of weights{cache}"
        rule = f"{gib(free)} GiB of host memory are free"
        fewer = f"--devices cpu:{count - 1 or 1}" if count > 1 else "a smaller model"
        yield finding(plans[0], "warn", "host memory", value, rule, f"Use {fewer}.")
