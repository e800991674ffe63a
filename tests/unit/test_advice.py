"""What is said where a load died of memory."""

from __future__ import annotations

from typing import Any

import pytest

from mgpu_magic.advice import memory_advice
from mgpu_magic.lifecycle import Death
from mgpu_magic.messages import Exited
from mgpu_magic.outcomes import RemoteError
from mgpu_magic.spec import Device, EngineName, WorkerSpec

T4 = Device(kind="cuda", index=1, name="Tesla T4", mask="1", total_bytes=15 * 2**30)
CPU = Device(kind="cpu", index=0, name="CPU (1 core)", cores=(0,))


def advice(
    device: Device,
    error: RemoteError | None,
    signal: str | None,
    *,
    engine: EngineName = "vllm",
    workers: int = 2,
    **args: Any,
) -> str:
    """For a model of 14.2 GiB on a host that has 1.5 GiB free."""
    return memory_advice(
        Death(device.label, error, Exited(None if signal else 1, signal)),
        WorkerSpec(engine=engine, model="m", engine_args=args, devices=(device,)),
        workers=workers,
        weights_bytes=round(14.2 * 2**30),
        free_host_bytes=round(1.5 * 2**30),
    )


HOST = (
    "The weights are 14.2 GiB, the host has 1.5 GiB free now. What helps: loads one after the "
    "other (--stagger 60), fewer --devices, or a smaller model or one of fewer bits (quantised)."
)


@pytest.mark.parametrize("device", [T4, CPU])
def test_a_loader_that_the_system_killed(device: Device) -> None:
    """SIGKILL without a word is the host's memory, mostly."""
    assert advice(device, None, "SIGKILL") == HOST


def test_a_loader_that_got_no_memory_of_the_host() -> None:
    """Python, torch and the system put it differently."""
    for error in (
        RemoteError("MemoryError", "MemoryError()"),
        RemoteError("RuntimeError", "DefaultCPUAllocator: can't allocate memory: you tried ..."),
        RemoteError("OSError", "[Errno 12] Cannot allocate memory"),
    ):
        assert advice(T4, error, None) == HOST


def test_a_gpu_that_is_too_small() -> None:
    """What it has in all, and each knob with its value now."""
    error = RemoteError("OutOfMemoryError", "CUDA out of memory. Tried to allocate 1.02 GiB ...")
    assert advice(T4, error, None) == (
        "The weights are 14.2 GiB, cuda:1 has 15.0 GiB in all. What helps: a smaller "
        "--max-model-len (now the most that the model reads), another --gpu-memory-utilization "
        "(now 0.92), --tensor-parallel-size, or a model of fewer bits (quantised)."
    )


def test_a_cache_that_is_too_small() -> None:
    """On a GPU it is what is left beside the weights, on a CPU a setting of its own."""
    error = RemoteError(
        "ValueError",
        "To serve at least one request with the models's max seq len (131072), (16.00 GiB KV "
        "cache is needed, which is larger than the available KV cache memory (0.50 GiB).",
    )
    assert advice(T4, error, None, max_model_len=131072, gpu_memory_utilization=0.9) == (
        "The weights are 14.2 GiB. What helps: a smaller --max-model-len (now 131072), another "
        "--gpu-memory-utilization (now 0.9), --tensor-parallel-size."
    )
    assert advice(CPU, error, None) == (
        "The weights are 14.2 GiB. What helps: a smaller --max-model-len (now the most that the "
        "model reads), or more memory for the cache (VLLM_CPU_KVCACHE_SPACE, in GiB)."
    )


def test_advice_names_what_the_engine_has_alone() -> None:
    """No share of a GPU for transformers, and no fewer devices than one."""
    smaller = "What helps: a smaller model or one of fewer bits (quantised)."
    error = RemoteError("OutOfMemoryError", "CUDA out of memory. Tried to allocate 1.02 GiB ...")
    for engine in ("transformers", "python"):
        assert advice(T4, error, None, engine=engine) == (
            f"The weights are 14.2 GiB, cuda:1 has 15.0 GiB in all. {smaller}"
        )
    assert advice(CPU, None, "SIGKILL", workers=1) == (
        f"The weights are 14.2 GiB, the host has 1.5 GiB free now. {smaller}"
    )


def test_other_causes_get_no_advice_on_memory() -> None:
    """It would lead away from what is wrong."""
    assert advice(T4, RemoteError("ValueError", "no such model"), None) == ""
    assert advice(T4, None, "SIGSEGV") == ""
    assert advice(CPU, None, None) == ""
