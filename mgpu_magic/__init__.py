"""Run language models on every GPU of a machine at once, from a notebook or a script.

In a notebook: `%load_ext mgpu_magic`, then `%%multigpu`. In a script: `generate`, or a `Session`
that keeps the models loaded. No GPU library is imported here; the workers do that.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mgpu_magic.ensemble import Ensemble
    from mgpu_magic.errors import (
        EngineError,
        JobInterrupted,
        MultiGPUError,
        PlacementError,
        ProtocolError,
        RequestError,
        SpecError,
        WorkerError,
        WorkerLost,
        WorkerStartError,
    )
    from mgpu_magic.outcomes import Completion, Failure, Prediction, Returned
    from mgpu_magic.results import ResultSet
    from mgpu_magic.run import Run
    from mgpu_magic.session import Session, generate
    from mgpu_magic.spec import JobSpec, ModelSpec

__version__ = "0.1.0"

__all__ = [
    "Completion",
    "EngineError",
    "Ensemble",
    "Failure",
    "JobInterrupted",
    "JobSpec",
    "ModelSpec",
    "MultiGPUError",
    "PlacementError",
    "Prediction",
    "ProtocolError",
    "RequestError",
    "ResultSet",
    "Returned",
    "Run",
    "Session",
    "SpecError",
    "WorkerError",
    "WorkerLost",
    "WorkerStartError",
    "generate",
]

_HOMES = {
    "ensemble": ["Ensemble"],
    "errors": [name for name in __all__ if name.endswith(("Error", "Lost", "Interrupted"))],
    "outcomes": ["Completion", "Failure", "Prediction", "Returned"],
    "results": ["ResultSet"],
    "run": ["Run"],
    "session": ["Session", "generate"],
    "spec": ["JobSpec", "ModelSpec"],
}


def __getattr__(name: str) -> Any:
    """Import what is asked for: a worker, which is a part of this package, needs little of it."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"mgpu_magic.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext mgpu_magic` calls."""
    import_module("mgpu_magic.magic").load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """What `%unload_ext mgpu_magic` calls: end the workers."""
    import_module("mgpu_magic.magic").unload(shell)
