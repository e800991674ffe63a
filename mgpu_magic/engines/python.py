"""The user's own functions as an engine: `load(device) -> state`, `predict(state, batch) -> list`.

`predict` gets as many prompts as `batch_size` says and returns as many results, each of any kind
that can be pickled. Torch tensors among them come back as NumPy arrays: the kernel that reads
them shall neither need torch nor touch CUDA.
"""

from __future__ import annotations

import linecache
import pickle
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from mgpu_magic.engines import Loaded
from mgpu_magic.engines.cuda import device_name
from mgpu_magic.messages import Pickled, Stats
from mgpu_magic.outcomes import Failure, RemoteError, Returned
from mgpu_magic.redaction import redacted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mgpu_magic.messages import Request
    from mgpu_magic.outcomes import Outcome
    from mgpu_magic.sendable import Function
    from mgpu_magic.spec import Sampling, WorkerSpec

BATCH_SIZE = 8
KNOWN = ("load", "predict", "batch_size")


class PythonEngine:
    """Calls the user's functions. `engine_args` hold them, and `batch_size` (8)."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._batch_size = spec.engine_args.get("batch_size", BATCH_SIZE)
        self._load: Callable[..., Any] | None = None
        self._predict: Callable[..., Any] = _missing
        self._state: Any = None
        self._queue: OrderedDict[int, tuple[Any, float]] = OrderedDict()

    def prepare(self) -> None:
        """See `Engine`. Unpickles the functions, which imports the libraries that they use."""
        args = self._spec.engine_args
        if unknown := args.keys() - set(KNOWN):
            raise TypeError(
                f"the python engine has no argument {', '.join(map(repr, sorted(unknown)))}; "
                f"it knows {', '.join(KNOWN)}"
            )
        size = self._batch_size
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"batch_size is {size!r}; pass a whole number of 1 or more")
        self._predict = _revived(args["predict"])
        if "load" in args:
            self._load = _revived(args["load"])

    def check(self, sampling: Sampling) -> None:
        """See `Engine`. A function takes no notice of it."""

    def load(self, report: Callable[[str, float | None], None]) -> Loaded:
        """See `Engine`."""
        report("loading", None)
        if self._load is not None:
            self._state = self._load(device_name(self._spec))
        # One batch at work, one at hand.
        return Loaded(capacity=2 * self._batch_size, slots=self._batch_size)

    def add(self, request: Request) -> None:
        """See `Engine`."""
        prompt: Any = request.prompt
        if isinstance(prompt, Pickled):
            prompt = pickle.loads(prompt.data)  # noqa: S301  # only from the kernel
        self._queue[request.index] = (prompt, time.monotonic())

    def step(self) -> list[Outcome]:
        """See `Engine`. An error of a batch is looked for in its prompts one by one."""
        batch = {index: self._queue.pop(index) for index in list(self._queue)[: self._batch_size]}
        try:
            return self._answered(batch)
        except _Refused as error:
            return [Failure(index, error.told) for index in batch]
        except Exception as error:  # noqa: BLE001  # the user's function
            if len(batch) == 1:
                return [Failure(index, RemoteError.of(error)) for index in batch]
        return [outcome for index in batch for outcome in self._alone(index, batch[index])]

    def abort(self, indices: Iterable[int]) -> None:
        """See `Engine`."""
        for index in indices:
            self._queue.pop(index, None)

    @property
    def busy(self) -> bool:
        """See `Engine`."""
        return bool(self._queue)

    def stats(self) -> Stats:
        """See `Engine`."""
        held = len(self._queue)
        running = min(held, self._batch_size)
        return Stats(running, held - running, prompt_tokens=0, output_tokens=0)

    def close(self) -> None:
        """See `Engine`."""
        self._state = None

    def _alone(self, index: int, entry: tuple[Any, float]) -> list[Outcome]:
        try:
            return self._answered({index: entry})
        except _Refused as error:
            return [Failure(index, error.told)]
        except Exception as error:  # noqa: BLE001  # the user's function
            return [Failure(index, RemoteError.of(error))]

    def _answered(self, batch: Mapping[int, tuple[Any, float]]) -> list[Outcome]:
        prompts = [prompt for prompt, _ in batch.values()]
        returned = _rows(_on_host(self._predict(self._state, prompts)))
        if len(returned) != len(prompts):
            raise _Refused(
                "ValueError",
                f"predict returned {len(returned)} results for {_counted(prompts)}; return one "
                "each, in their order",
            )
        return [
            self._returned(index, begun, result)
            for (index, (_, begun)), result in zip(batch.items(), returned, strict=True)
        ]

    def _returned(self, index: int, begun: float, result: Any) -> Outcome:
        import cloudpickle

        try:
            data = cloudpickle.dumps(result)
        except Exception as error:  # noqa: BLE001  # pickling runs the code of the user's objects
            what = f"the result of prompt {index} ({_kind(result)}) cannot be sent back: {error}"
            return Failure(index, RemoteError(type(error).__name__, redacted(what)))
        seconds = time.monotonic() - begun
        return Returned(index=index, data=data, seconds=seconds, device=self._spec.label)


class _Refused(Exception):  # noqa: N818  # what follows is the same for all prompts of a batch
    """`predict` did not return one result per prompt."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.told = RemoteError(kind, message)


def _counted(prompts: Sequence[object]) -> str:
    """`"1 prompt"`, `"2 prompts"`."""
    return "1 prompt" if len(prompts) == 1 else f"{len(prompts)} prompts"


def _rows(returned: Any) -> list[Any]:
    """The results of a batch: the items of a list or a column, the rows of an array."""
    is_frame = hasattr(returned, "columns")
    if not is_frame:
        if isinstance(returned, list | tuple):
            return list(returned)
        if getattr(returned, "ndim", None) == 0:
            raise _refusal(f"{_kind(returned)} without a dimension")
        if hasattr(returned, "ndim") or hasattr(returned, "to_list"):  # an array, a column
            return list(returned)
    raise _refusal(_kind(returned), ': pass a column of it, df["score"]' if is_frame else "")


def _refusal(what: str, fix: str = "") -> _Refused:
    return _Refused(
        "TypeError",
        f"predict returned {what}{fix}; return a list or an array with one result for each prompt "
        "of the batch",
    )


def _revived(function: Function) -> Callable[..., Any]:
    """The function itself; the lines of its cell become known to tracebacks."""
    if function.live is not None:
        return function.live
    for file, lines in function.sources.items():
        linecache.cache[file] = (sum(map(len, lines)), None, list(lines), file)
    revived: Callable[..., Any] = pickle.loads(function.pickled)  # noqa: S301  # from the kernel
    if function.changed:  # what was imported is not what the journal would say
        raise RuntimeError(f"{function.changed} was changed since the job began; run it again")
    return revived


def _missing(*_: object) -> Any:
    raise RuntimeError("the engine is not prepared")


def _on_host(value: Any) -> Any:
    """`value` with NumPy arrays in place of torch tensors."""
    if isinstance(value, dict) and type(value) is dict:
        return {key: _on_host(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_on_host, value))
    if type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # NumPy has no such type
            value = value.float()
        return value.numpy()
    return value


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
