"""What a worker drives: an engine that is stepped.

```
create(spec) -> Engine
                  prepare()      import the library            (before Load)
                  check(sampling) refuse what no prompt can have
                  load(report)   load the model                (after Load)
                  add(request)   or raise, for that request alone
                  step()         work a little, return what finished
                  abort(indices) forget requests
                  stats()        figures, asked for from another thread
                  close()
```

The modules of this package run in the worker, which may be a thread of the kernel; they import
`messages`, `outcomes`, `spec` and `errors` alone, and their libraries inside functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, assert_never

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mgpu_magic.messages import Request, Stats
    from mgpu_magic.outcomes import Outcome
    from mgpu_magic.spec import Sampling, WorkerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a loaded engine can do; the fields are those of `messages.Ready`."""

    capacity: int
    slots: int
    max_model_len: int | None = None
    has_chat_template: bool = False
    notes: tuple[str, ...] = ()


class EngineGone(Exception):  # noqa: N818  # not an error of the request that met it
    """The engine is dead, whatever it is asked for; its cause is chained."""


class Engine(Protocol):
    """A loaded model that answers requests. One thread calls it, but for `stats`."""

    def prepare(self) -> None:
        """Import the library."""

    def check(self, sampling: Sampling) -> None:
        """Look at a sampling for all prompts, before the model is loaded.

        Raises:
            Exception: No prompt can have it.
        """

    def load(self, report: Callable[[str, float | None], None]) -> Loaded:
        """Load the model. `report(stage, fraction)` tells how far it is."""

    def add(self, request: Request) -> None:
        """Take a request.

        Raises:
            EngineGone: No request can be taken any more.
            Exception: This request cannot be taken; it is forgotten.
        """

    def step(self) -> list[Outcome]:
        """Work a little; returns the outcomes that became known. Raises if the engine is dead."""

    def abort(self, indices: Iterable[int]) -> None:
        """Forget these requests; unknown ones are ignored."""

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do."""

    def stats(self) -> Stats:
        """Figures for the panel."""

    def close(self) -> None:
        """Release what would outlive the worker: device memory in a thread, say."""


def create(spec: WorkerSpec) -> Engine:
    """The engine that `spec` names, nothing imported or loaded yet."""
    match spec.engine:
        case "vllm":
            from mgpu_magic.engines.vllm import VllmEngine

            return VllmEngine(spec)
        case "transformers":
            from mgpu_magic.engines.transformers import TransformersEngine

            return TransformersEngine(spec)
        case "python":
            from mgpu_magic.engines.python import PythonEngine

            return PythonEngine(spec)
        case "echo":
            from mgpu_magic.engines.echo import EchoEngine

            return EchoEngine(spec)
        case _:
            assert_never(spec.engine)
