"""What vLLM is told before it is imported, and with which arguments it loads a model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from mgpu_magic.budgets import GIB
from mgpu_magic.engines.vllm import VllmEngine
from mgpu_magic.engines.vllm_settings import arguments, names_on_hub, ports, variables
from mgpu_magic.messages import Stats
from mgpu_magic.spec import Device, WorkerSpec

if TYPE_CHECKING:
    from mgpu_magic.spec import Task

T4 = Device(kind="cuda", index=0, name="Tesla T4", mask="0")
SECOND_T4 = Device(kind="cuda", index=1, name="Tesla T4", mask="1")
MIG = Device(kind="cuda", index=0, name="A100 MIG 1g.10gb", mask="MIG-cccc")
CORES = Device(kind="cpu", index=1, name="CPU (2 cores)", cores=(2, 3))


def spec(*devices: Device, **changes: Any) -> WorkerSpec:
    """A vLLM worker on these devices; keywords that are no fields are engine arguments."""
    own = {name: changes.pop(name) for name in ("host_share", "task") if name in changes}
    return WorkerSpec(engine="vllm", model="m", engine_args=changes, devices=devices, **own)


def test_a_gpu_worker_keeps_the_variables_of_vllm() -> None:
    """On a GPU vLLM decides itself, its engine process included; its ports stay on this machine."""
    assert variables(spec(T4), {}, 8 * GIB) == {"GLOO_SOCKET_IFNAME": "lo"}


def test_workers_look_for_ports_in_ranges_of_their_own() -> None:
    """VLLM binds a port some time after it has found it free: two workers must not find the same.

    The ranges of eight workers lie between the ports of services and those of the system, and
    those of two kernels differ.
    """
    eight = [Device(kind="cuda", index=i, name="T4", mask=str(i)) for i in range(8)]
    first = [int(ports(spec(device), {}, 4711)["VLLM_PORT"]) for device in eight]
    assert [port - first[0] for port in first] == [0, 50, 100, 150, 200, 250, 300, 350]
    assert first[0] >= 12_000
    assert first[-1] + 50 <= 32_000
    assert ports(spec(T4), {}, 4711) != ports(spec(T4), {}, 4712)


def test_a_port_of_the_user_is_the_first_workers() -> None:
    """The same for all would be a collision; what is no number is vLLM's to refuse."""
    environ = {"VLLM_PORT": "29500"}
    assert ports(spec(T4), environ, 1) == {"VLLM_PORT": "29500"}
    assert ports(spec(SECOND_T4), environ, 1) == {"VLLM_PORT": "29550"}
    assert ports(spec(T4), {"VLLM_PORT": "tcp://10.0.0.1:80"}, 1) == {}


def test_a_cpu_worker_runs_in_one_process_on_its_cores() -> None:
    """On a CPU: no second process, no choice of other cores, a part of the memory."""
    assert variables(spec(CORES), {}, 20 * GIB) == {
        "GLOO_SOCKET_IFNAME": "lo",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "2,3",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "TORCH_COMPILE_DISABLE": "1",
    }


@pytest.mark.parametrize(
    ("free_gib", "host_share", "cache_gib"),
    [(3.0, 1.0, "1"), (20.0, 0.5, "2"), (20.0, 0.2, "1"), (0.5, 1.0, "1"), (900.0, 1.0, "2")],
)
def test_workers_share_the_free_memory(free_gib: float, host_share: float, cache_gib: str) -> None:
    """The KV cache is part of a worker's share: at least 1 GiB, at most what a CPU has use for."""
    worker = spec(CORES, host_share=host_share)
    found = variables(worker, {}, int(free_gib * GIB))
    assert found["VLLM_CPU_KVCACHE_SPACE"] == cache_gib


def test_a_cache_size_in_bytes_replaces_ours() -> None:
    """The variable, if set, would win over the user's `kv_cache_memory_bytes`."""
    found = variables(spec(CORES, kv_cache_memory_bytes=GIB), {}, 20 * GIB)
    assert "VLLM_CPU_KVCACHE_SPACE" not in found


@pytest.mark.parametrize(("wanted", "value"), [(True, "1"), (False, "0")])
@pytest.mark.parametrize("device", [T4, CORES])
def test_engine_process_is_the_users_choice(device: Device, wanted: bool, value: str) -> None:
    """`engine_process` holds on every device, whatever the environment says."""
    name = "VLLM_ENABLE_V1_MULTIPROCESSING"
    worker = spec(device, engine_process=wanted)
    assert variables(worker, {}, GIB)[name] == value
    assert variables(worker, {name: "user"}, GIB)[name] == value


def test_variables_that_the_user_set_stay() -> None:
    """None of ours replaces one that is set already."""
    environ = dict.fromkeys(variables(spec(CORES), {}, GIB), "user")
    assert variables(spec(CORES), environ, GIB) == {}


def test_code_of_a_model_runs_only_where_it_is_asked_for() -> None:
    """`trust_remote_code` is never ours."""
    assert "trust_remote_code" not in arguments(spec(T4))
    assert arguments(spec(CORES, trust_remote_code=True))["trust_remote_code"] is True


@pytest.mark.parametrize(
    ("chosen", "environ", "expected"),
    [
        ({"model": "a/b"}, {}, [("model", "a/b")]),
        ({"model": "a/b", "tokenizer": "c/d"}, {}, [("model", "a/b"), ("tokenizer", "c/d")]),
        ({"model": "a/b", "load_format": "tensorizer"}, {}, []),
        ({"model": "a/b"}, {"VLLM_USE_MODELSCOPE": "True"}, []),
    ],
)
def test_what_is_looked_for_on_the_hub(
    chosen: dict[str, Any], environ: dict[str, str], expected: list[tuple[str, str]]
) -> None:
    """The model and its tokenizer; not where vLLM reads other files, or another hub's."""
    assert names_on_hub(chosen, environ) == expected


def test_compiling_that_the_user_asks_for_happens() -> None:
    """With `enforce_eager=False` a CPU worker may compile."""
    assert "TORCH_COMPILE_DISABLE" not in variables(spec(CORES, enforce_eager=False), {}, GIB)


def test_arguments_on_a_gpu() -> None:
    """A GPU is used as a whole; figures are on for the panel."""
    assert arguments(spec(T4)) == {
        "tensor_parallel_size": 1,
        "seed": 0,
        "disable_log_stats": False,
        "scheduling_policy": "priority",
        "gpu_memory_utilization": 0.92,
    }


def test_a_slice_of_a_gpu_keeps_vllms_memory_share() -> None:
    """More than vLLM's own part is asked of whole GPUs alone."""
    assert "gpu_memory_utilization" not in arguments(spec(MIG))


def test_a_group_of_gpus_is_one_tensor_parallel_engine() -> None:
    """An engine spans all devices of its worker."""
    assert arguments(spec(T4, SECOND_T4))["tensor_parallel_size"] == 2


def test_arguments_on_a_cpu() -> None:
    """No compiling, and no word of GPU memory."""
    assert arguments(spec(CORES)) == {
        "tensor_parallel_size": 1,
        "seed": 1,
        "disable_log_stats": False,
        "scheduling_policy": "priority",
        "enforce_eager": True,
    }


@pytest.mark.parametrize("task", ["embed", "classify", "score"])
@pytest.mark.parametrize("device", [T4, CORES])
def test_arguments_of_a_pooling_task(device: Device, task: Task) -> None:
    """A model that embeds, classifies or scores is loaded as such; all else is as ever."""
    generating, pooling = arguments(spec(device)), arguments(spec(device, task=task))
    assert pooling["runner"] == "pooling"
    assert "runner" not in generating
    del pooling["runner"], generating["scheduling_policy"]
    assert pooling == generating


def test_what_follows_about_a_prompt_comes_first_unless_the_user_says_so() -> None:
    """Choices ask again about a prompt while vLLM remembers it; the user's policy wins."""
    assert arguments(spec(T4, scheduling_policy="fcfs"))["scheduling_policy"] == "fcfs"


def test_replicas_have_seeds_of_their_own() -> None:
    """With equal seeds they would sample the same."""
    assert [arguments(spec(device))["seed"] for device in (T4, SECOND_T4, CORES)] == [0, 1, 1]


def test_the_users_arguments_win() -> None:
    """Whatever we would set, and whatever vLLM knows beyond it."""
    mine = {
        "gpu_memory_utilization": 0.5,
        "seed": 9,
        "disable_log_stats": True,
        "dtype": "half",
        "scheduling_policy": "fcfs",
    }
    assert arguments(spec(T4, **mine)) == {"tensor_parallel_size": 1, **mine}
    assert arguments(spec(CORES, enforce_eager=False))["enforce_eager"] is False


def test_our_own_switch_does_not_reach_vllm() -> None:
    """`engine_process` is ours; vLLM would refuse it as unknown."""
    assert "engine_process" not in arguments(spec(T4, engine_process=False))


def test_a_model_without_metrics_has_no_figures() -> None:
    """With the user's `disable_log_stats` there are zeros to tell, not an error."""
    engine = VllmEngine(spec(T4, disable_log_stats=True))
    engine._llm = SimpleNamespace(llm_engine=SimpleNamespace(log_stats=False))
    assert engine.stats() == Stats(running=0, waiting=0, prompt_tokens=0, output_tokens=0)
