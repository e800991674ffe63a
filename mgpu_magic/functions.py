"""A function of the notebook, made ready for a worker.

```
def in a cell ── to_function ──> Function(by value, with its source lines)   for a process
                           └───> Function(live)                              for a thread
```

Pure; imports `errors` and `sendable` alone.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import os
from collections import ChainMap
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from mgpu_magic.errors import SpecError
from mgpu_magic.sendable import Function

if TYPE_CHECKING:
    from collections.abc import Iterator


def to_function(function: Any, name: str, *, live: bool) -> Function:
    """`function` as it can be sent to a worker.

    Args:
        function: What the cell defines.
        name: What the cell calls it; used in messages.
        live: Whether the worker is a thread, which calls the function itself. Else it travels
            by value, with all that it refers to in the notebook.

    Raises:
        SpecError: No function, or it refers to something that cannot be pickled.
    """
    if not callable(function):
        raise SpecError(f"{name} is of type {type(function).__name__}; define a function")
    if live:
        return Function(name, live=function, marks=_marks(function, {}))
    try:
        return _by_value(function, name)
    except Exception as error:  # pickling runs the code of the user's objects
        culprit = _culprit(function)
        raise SpecError(
            f"{name} cannot be sent to another process"
            f"{f': it uses {culprit}, which cannot be pickled' if culprit else ''} "
            f"({type(error).__name__}: {error}); make it inside load(device), or run in threads: "
            "--launcher thread"
        ) from error


class _Itself:
    """Something that is equal to nothing but itself. Holds it, so that no other gets its place."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


def _marks(value: Any, seen: dict[int, int]) -> object:
    """What tells whether a function, run anew, is still the same as before.

    Its code and, by the same rule, the functions and classes of the notebook that it uses; small
    plain values by their value; anything else is the same only if it is the same object.

    Args:
        value: A function, or what one uses.
        seen: Numbers of the functions and classes on the way here, by identity.
    """
    if isinstance(value, _PLAIN):
        return (type(value), value)
    if isinstance(value, list | tuple) and len(value) <= _FEW:
        return (type(value), tuple(_marks(item, seen) for item in value))
    if id(value) in seen:
        return seen[id(value)]
    match value:
        case MethodType():
            return (_marks(value.__func__, seen), _Itself(value.__self__))
        case FunctionType():
            seen[id(value)] = len(seen)
            held = [value.__defaults__, list((value.__kwdefaults__ or {}).items())]
            used = [(name, _marks(item, seen)) for name, item in _used(value)]
            return (value.__code__, _marks(held, seen), tuple(used))
        case type() if value.__module__ == "__main__":
            seen[id(value)] = len(seen)
            parts = [(name, _marks(part, seen)) for name, part in _members(value)]
            return (value.__qualname__, _marks(value.__bases__, seen), tuple(parts))
        case _:
            return _Itself(value)


_PLAIN = (str, bytes, int, float, bool, complex, type(None))
_FEW = 100
_MADE_ANEW = ("__dict__", "__weakref__", "__module__", "__doc__", "__firstlineno__")


def _members(kind: type) -> Iterator[tuple[str, object]]:
    for name, member in vars(kind).items():
        if name not in _MADE_ANEW:
            yield name, getattr(member, "__func__", getattr(member, "fget", member))


def _by_value(function: Any, name: str) -> Function:
    """The pickled function, with the lines of the cells that its code stands in.

    cloudpickle names no files, so that equal code has equal bytes whenever its cell ran; a
    traceback needs one. A cell is named by the first function of it that is met.
    """
    import cloudpickle

    cells: dict[str, str] = {}
    sources: dict[str, tuple[str, ...]] = {}
    reduce_code = cloudpickle.Pickler.dispatch_table[CodeType]

    def reduce(code: CodeType) -> tuple[Any, ...]:
        file = code.co_filename
        if not os.path.exists(file):  # else it is there for the worker too
            cell = cells.setdefault(file, f"<cell of {code.co_name}>")
            sources[cell] = tuple(linecache.getlines(file))
            file = cell
        make, parts, *rest = reduce_code(code.replace(co_filename=file))
        return (make, tuple(file if part == "<dynamic-code>" else part for part in parts), *rest)

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
        dispatch_table = ChainMap({CodeType: reduce}, cloudpickle.Pickler.dispatch_table)  # noqa: RUF012  # as pickle wants it

    buffer = io.BytesIO()
    Pickler(buffer, protocol=5).dump(function)
    return Function(name, buffer.getvalue(), sources)


def _culprit(function: Any) -> str:
    """Name and type of the first thing that the function uses and that cannot be pickled."""
    import cloudpickle

    for name, value in _used(function):
        try:
            cloudpickle.dumps(value)
        except Exception:  # noqa: BLE001  # pickling runs the code of the user's objects
            return f"{name} ({type(value).__module__}.{type(value).__qualname__})"
    return ""


def _used(function: Any) -> Iterator[tuple[str, object]]:
    code = getattr(function, "__code__", None)
    if code is None:
        return
    space = function.__globals__
    yield from ((name, space[name]) for name in _names(code) if name in space)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a name that is not bound yet
            yield name, cell.cell_contents


def _names(code: CodeType) -> Iterator[str]:
    """Global names that the code and the functions in it read."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
