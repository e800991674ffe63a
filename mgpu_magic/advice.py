"""What helps where a load died of memory: the numbers, and the knobs.

Pure; imports `budgets` alone, else types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mgpu_magic.budgets import GPU_MEMORY_UTILIZATION

if TYPE_CHECKING:
    from mgpu_magic.lifecycle import Death
    from mgpu_magic.spec import WorkerSpec

# How the libraries put it; in small letters.
_HOST = ("memoryerror", "cannot allocate memory", "can't allocate memory", "not enough memory")
_KV_CACHE = ("kv cache", "memory for kv", "cache blocks")
_DEVICE = ("out of memory", "outofmemoryerror", "free memory on device", "gpu memory utilization")


def memory_advice(
    death: Death,
    spec: WorkerSpec,
    *,
    workers: int,
    weights_bytes: int | None,
    free_host_bytes: int,
) -> str:
    """Two sentences for an error message; empty where memory is not to blame.

    Args:
        death: How the load ended.
        spec: What was to be loaded.
        workers: How many of the job there are.
        weights_bytes: Size of the model's weights, where known.
        free_host_bytes: Memory of the host that is free now.
    """
    said = "" if death.error is None else f"{death.error.kind}: {death.error.message}".lower()
    on_gpu = spec.devices[0].kind == "cuda"
    vllm = spec.engine == "vllm"
    if vllm and any(words in said for words in _KV_CACHE):
        return _sentence(_sizes(weights_bytes), _kv_knobs(spec, on_gpu=on_gpu))
    if on_gpu and any(words in said for words in _DEVICE):
        total = spec.devices[0].total_bytes
        device = "" if total is None else f"{spec.label} has {_gib(total)} in all"
        knobs = f"{_kv_knobs(spec, on_gpu=True)}, or a model of fewer bits (quantised)"
        return _sentence(_sizes(weights_bytes, device), knobs if vllm else _FEWER_BITS)
    killed = death.error is None and death.exited.signal == "SIGKILL"
    if killed or any(words in said for words in (*_HOST, *_DEVICE)):
        host = f"the host has {_gib(free_host_bytes)} free now"
        fewer = "loads one after the other (--stagger 60), fewer --devices, or " * (workers > 1)
        return _sentence(_sizes(weights_bytes, host), f"{fewer}{_FEWER_BITS}")
    return ""


_FEWER_BITS = "a smaller model or one of fewer bits (quantised)"


def _kv_knobs(spec: WorkerSpec, *, on_gpu: bool) -> str:
    length = spec.engine_args.get("max_model_len")
    shorter = f"a smaller --max-model-len (now {length or 'the most that the model reads'})"
    if not on_gpu:
        return f"{shorter}, or more memory for the cache (VLLM_CPU_KVCACHE_SPACE, in GiB)"
    part = spec.engine_args.get("gpu_memory_utilization", GPU_MEMORY_UTILIZATION)
    return f"{shorter}, another --gpu-memory-utilization (now {part}), --tensor-parallel-size"


def _sizes(weights_bytes: int | None, memory: str = "") -> str:
    weights = "" if weights_bytes is None else f"the weights are {_gib(weights_bytes)}"
    return ", ".join(part for part in (weights, memory) if part)


def _sentence(sizes: str, knobs: str) -> str:
    numbers = f"{sizes[:1].upper()}{sizes[1:]}. " if sizes else ""
    return f"{numbers}What helps: {knobs}."


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
