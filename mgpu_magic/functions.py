"""A function of the notebook, made ready for a worker.

```
def in a cell ── to_function ──> Function(by value, with its source lines)   for a process
                           └───> Function(live)                              for a thread
```

Pure; imports `content`, `errors`, `own_modules` and `sendable` alone.
"""

from __future__ import annotations

import io
import linecache
import os
from collections import ChainMap
from dataclasses import replace
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from mgpu_magic.content import content, members, used
from mgpu_magic.errors import SpecError
from mgpu_magic.own_modules import OwnModules
from mgpu_magic.sendable import Function

if TYPE_CHECKING:
    from collections.abc import Mapping


def to_function(function: Any, name: str, *, live: bool, told: bool = False) -> Function:
    """`function` as it can be sent to a worker.

    Args:
        function: What the cell defines.
        name: What the cell calls it; used in messages.
        live: Whether the worker is a thread, which calls the function itself. Else it travels
            by value, with all that it refers to in the notebook.
        told: Whether a journal wants to tell it from others, in another kernel too.

    Raises:
        SpecError: No function, or it refers to something that cannot be pickled or told.
    """
    if not callable(function):
        raise SpecError(f"{name} is of type {type(function).__name__}; define a function")
    made = _live(function, name) if live else _sent(function, name)
    if not told:
        return made
    modules = OwnModules(name)
    digest = content(function, name, modules)
    return with_files(replace(made, content=digest), modules.files)


def with_files(function: Function, files: Mapping[str, bytes]) -> Function:
    """The function for a worker that has loaded these files as they are."""
    return replace(function, files=tuple(sorted({**dict(function.files), **files}.items())))


def _live(function: Any, name: str) -> Function:
    return Function(name, live=function, marks=_marks(function, {}))


def _sent(function: Any, name: str) -> Function:
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
            read = [(name, _marks(item, seen)) for name, item in used(value)]
            return (value.__code__, _marks(held, seen), tuple(read))
        case type() if value.__module__ == "__main__":
            seen[id(value)] = len(seen)
            parts = [(name, _marks(part, seen)) for name, part in members(value)]
            return (value.__qualname__, _marks(value.__bases__, seen), tuple(parts))
        case _:
            return _Itself(value)


_PLAIN = (str, bytes, int, float, bool, complex, type(None))
_FEW = 100


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

    for name, value in used(function):
        try:
            cloudpickle.dumps(value)
        except Exception:  # noqa: BLE001  # pickling runs the code of the user's objects
            return f"{name} ({type(value).__module__}.{type(value).__qualname__})"
    return ""
