"""Models, devices and workers for the tests of what is found before a model is loaded."""

from __future__ import annotations

from typing import Any

from mgpu_magic.checkpoint import Checkpoint, Quantization
from mgpu_magic.findings import Finding, Occupant, Plan, World, sentence
from mgpu_magic.preflight import findings
from mgpu_magic.snapshot import Reading
from mgpu_magic.spec import Device, WorkerSpec

GIB = 2**30


def gpu(name: str, capability: tuple[int, int], gib: float, index: int = 0) -> Device:
    """A GPU of that generation and memory."""
    return Device(
        kind="cuda",
        index=index,
        name=name,
        mask=str(index),
        capability=capability,
        total_bytes=int(gib * GIB),
    )


P100 = gpu("Tesla P100-PCIE-16GB", (6, 0), 16)
V100 = gpu("Tesla V100-SXM2-16GB", (7, 0), 16)
T4 = gpu("Tesla T4", (7, 5), 15)
SECOND_T4 = gpu("Tesla T4", (7, 5), 15, 1)
A100 = gpu("NVIDIA A100", (8, 0), 40)
L4 = gpu("NVIDIA L4", (8, 9), 22.5)
H200 = gpu("NVIDIA H200", (9, 0), 139)
CORES = Device(kind="cpu", index=0, name="CPU (1 core)", cores=(0,))
MORE_CORES = Device(kind="cpu", index=1, name="CPU (1 core)", cores=(1,))


def llama(gib: float = 15.0, **changes: Any) -> Checkpoint:
    """Llama 3.1 8B, or a model like it of that size."""
    size = int(gib * GIB)
    figures: dict[str, Any] = {
        "tensors": {"BF16": size}, "stored_bytes": size, "parameters": size // 2,
        "dtype": "bfloat16", "layers": 32, "heads": 32, "kv_heads": 8, "head_dim": 128,
        "cached": True, "max_positions": 131072, "model_type": "llama", **changes,
    }  # fmt: skip
    return Checkpoint(**figures)


def packed(method: str, scheme: str = "", gib: float = 5.0, **changes: Any) -> Checkpoint:
    """A quantised model."""
    how = Quantization(method=method, bits=None if scheme else 4, scheme=scheme)
    weights = {"tensors": {"I32": int(gib * GIB)}, "dtype": "float16"}
    return llama(gib, quantization=how, **{**weights, **changes})


def plan(checkpoint: Checkpoint, *devices: Device, engine: str = "vllm", **args: Any) -> Plan:
    """A worker that is to load it there."""
    spec = WorkerSpec(
        engine=engine,  # type: ignore[arg-type]  # a name is a name
        model="m",
        engine_args=args,
        devices=devices or (T4,),
    )
    return Plan(model="llama", spec=spec, checkpoint=checkpoint)


def found(*plans: Plan, **world: Any) -> tuple[Finding, ...]:
    """Findings on a machine of these plans' devices."""
    devices = [device for one in plans for device in one.spec.devices]
    return findings(plans, World(**{"devices": devices, **world}))


def said(*plans: Plan, **world: Any) -> list[str]:
    """The same as lines, each with its severity."""
    return [f"{finding.severity} {sentence(finding)}" for finding in found(*plans, **world)]


def reading(total: float, used: float = 0.0, own: float | None = None) -> Reading:
    """Memory in GiB."""
    return Reading(
        used_bytes=int(used * GIB),
        total_bytes=int(total * GIB),
        own_bytes=None if own is None else int(own * GIB),
    )


OTHER = Occupant(pid=4711, name="python3", used_bytes=12 * GIB)
