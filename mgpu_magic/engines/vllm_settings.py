"""What vLLM is told before it is imported, and with which arguments it loads a model.

Pure, but for one look at the host's memory; imports no vLLM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mgpu_magic.budgets import GPU_MEMORY_UTILIZATION, cpu_cache_gib

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mgpu_magic.spec import WorkerSpec


def variables(spec: WorkerSpec, environ: Mapping[str, str], free_bytes: int) -> dict[str, str]:
    """Environment variables of vLLM for this worker; what the user set stays as it is.

    `engine_args["engine_process"]` says whether vLLM runs its engine in a process of its own:
    its default on a GPU (tokenising overlaps the GPU), off on a CPU (where it costs half a
    minute and hides why a start failed).

    Args:
        spec: The worker.
        environ: What is set already.
        free_bytes: Free memory of the host, to be shared with the other workers.
    """
    wanted: dict[str, str] = {}
    on_cpu = spec.devices[0].kind == "cpu"
    own_process = spec.engine_args.get("engine_process", False if on_cpu else None)
    if own_process is not None:
        wanted["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(own_process))
    if on_cpu:
        # The worker is pinned already; its own cores keep vLLM from choosing others. ("nobind"
        # says that more plainly, and is an IndexError in 0.20.)
        cores = [core for device in spec.devices for core in device.cores]
        wanted["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))
        if spec.engine_args.get("enforce_eager", True):
            # Else logprobs are compiled all the same, and the engine dies without a C++ compiler.
            wanted["TORCH_COMPILE_DISABLE"] = "1"
        if "kv_cache_memory_bytes" not in spec.engine_args:
            wanted["VLLM_CPU_KVCACHE_SPACE"] = str(cpu_cache_gib(free_bytes, spec.host_share))
    chosen = {"VLLM_ENABLE_V1_MULTIPROCESSING"} if "engine_process" in spec.engine_args else set()
    return {name: value for name, value in wanted.items() if name in chosen or name not in environ}


def arguments(spec: WorkerSpec) -> dict[str, Any]:
    """Arguments of `vllm.LLM`: our defaults under the user's."""
    defaults: dict[str, Any] = {
        "tensor_parallel_size": len(spec.devices),
        "seed": spec.devices[0].index,  # with equal seeds, replicas would give identical samples
        "disable_log_stats": False,  # the panel's figures
    }
    if spec.task == "generate":
        defaults["scheduling_policy"] = "priority"  # for choices; equal priorities: first come
    else:
        defaults["runner"] = "pooling"
    if spec.devices[0].kind == "cpu":
        defaults["enforce_eager"] = True  # compiling costs more than a CPU job gains
    elif "mig" not in spec.devices[0].mask.lower():
        defaults["gpu_memory_utilization"] = GPU_MEMORY_UTILIZATION
    chosen = {k: v for k, v in spec.engine_args.items() if k != "engine_process"}
    return {**defaults, **chosen}


def free_host_bytes() -> int:
    """Free memory of the host in bytes."""
    import psutil

    return int(psutil.virtual_memory().available)
