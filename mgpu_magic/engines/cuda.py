"""Which device a worker has, as torch counts them.

Knows torch alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mgpu_magic.spec import WorkerSpec


def device_name(spec: WorkerSpec) -> str:
    """`"cpu"` or `"cuda:K"`.

    A process sees its own GPU alone. A thread sees all that the kernel sees, and CUDA may count
    those in another order than NVML: the GPU's UUID tells.
    """
    device = spec.devices[0]
    if device.kind == "cpu":
        return "cpu"
    if spec.launcher == "process":
        return "cuda:0"
    try:
        import torch
    except ImportError:  # whoever uses the GPU without torch counts as we do
        return f"cuda:{device.index}"
    for index in range(torch.cuda.device_count()):
        uuid = str(getattr(torch.cuda.get_device_properties(index), "uuid", ""))
        if device.uuid and uuid.removeprefix("GPU-") == device.uuid.removeprefix("GPU-"):
            return f"cuda:{index}"
    return f"cuda:{device.index}"
