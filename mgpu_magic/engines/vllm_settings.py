"""What vLLM is told before it is imported, and with which arguments it loads a model.

Pure, but for one look at the host's memory; imports no vLLM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mgpu_magic.budgets import GPU_MEMORY_UTILIZATION, cpu_cache_gib

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mgpu_magic.spec import WorkerSpec

PORTS_PER_WORKER = 50
PORTS = range(12_000, 32_000, 16 * PORTS_PER_WORKER)  # below those that the system hands out
_LOAD_FORMATS = (
    "auto", "hf", "safetensors", "fastsafetensors", "bitsandbytes", "mistral", "pt",
)  # fmt: skip


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
    # torch opens ports, even for one process: where this host is known by another name they must
    # not be seen from outside.
    wanted: dict[str, str] = {"GLOO_SOCKET_IFNAME": "lo"}
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


def ports(spec: WorkerSpec, environ: Mapping[str, str], kernel: int) -> dict[str, str]:
    """Where this worker looks for free ports: a range that no other worker looks at.

    vLLM chooses a port, lets it go and binds it later: two that start together may choose the
    same one, and are sure to where the user's `VLLM_PORT` is the same for both.

    Args:
        spec: The worker.
        environ: What is set already.
        kernel: The kernel's process id; two kernels should not meet either.
    """
    first = environ.get("VLLM_PORT", str(PORTS[kernel % len(PORTS)]))
    if not first.isdecimal():
        return {}
    return {"VLLM_PORT": str(int(first) + spec.devices[0].index * PORTS_PER_WORKER)}


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


def names_on_hub(chosen: Mapping[str, Any], environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """The arguments that may be hub ids, with their values, where vLLM reads the usual files.

    Args:
        chosen: Arguments of `vllm.LLM`.
        environ: Variables: with `VLLM_USE_MODELSCOPE` models come from another hub.
    """
    elsewhere = environ.get("VLLM_USE_MODELSCOPE", "").lower() in ("1", "true")
    if elsewhere or chosen.get("load_format", "auto") not in _LOAD_FORMATS:
        return []
    names = ((what, chosen.get(what)) for what in ("model", "tokenizer"))
    return [(what, name) for what, name in names if isinstance(name, str)]


def free_host_bytes() -> int:
    """Free memory of the host in bytes."""
    import psutil

    return int(psutil.virtual_memory().available)
