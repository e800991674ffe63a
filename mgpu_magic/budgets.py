"""What an engine plans with unless the user says otherwise; workers load by it, the kernel counts.

Pure; imports nothing of the package.
"""

from __future__ import annotations

GIB = 2**30

GPU_MEMORY_UTILIZATION = 0.92  # vLLM's own 0.9 wastes GPU memory where nothing else runs on it
CPU_KV_CACHE_GIB = 2  # vLLM fills it while it loads: its own 4 GiB can take longer than the rest

DTYPES = {"half": "float16", "fp16": "float16", "bf16": "bfloat16", "float": "float32"}
"""Other names of number types."""
BFLOAT16_CAPABILITY = (8, 0)


def cpu_cache_gib(free_bytes: int, host_share: float) -> int:
    """KV cache of a vLLM worker on a CPU device, in GiB.

    Args:
        free_bytes: Free memory of the host.
        host_share: The worker's part of it, as in `WorkerSpec`.
    """
    share = int(free_bytes * host_share * 0.4 / GIB)
    return min(max(share, 1), CPU_KV_CACHE_GIB)
