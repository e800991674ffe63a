"""What may be sent to a worker: plain data, and functions of the notebook.

Imports `errors` alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mgpu_magic.errors import SpecError


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the notebook that a worker shall call.

    Two are equal where a worker that holds the one need not load the other.

    Attributes:
        name: What the cell calls it.
        pickled: The function by value, as cloudpickle bytes, for another process; else empty.
        sources: The lines of the cells that it is made of, by the name that their code has, so
            that an error in another process points at them.
        live: The function itself, for a thread of the kernel; else None.
        marks: Of a live function: its code and what it uses, to be compared.
        content: The digest of its code and of what it uses, for a journal; empty without one.
        files: Of a journal's job: paths of the user's modules that it needs, and their digests. A
            worker that imported another text of them is none for it.
    """

    name: str
    pickled: bytes = b""
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False)
    live: Callable[..., Any] | None = field(default=None, compare=False)
    marks: object = None
    content: bytes = field(default=b"", compare=False)
    files: tuple[tuple[str, bytes], ...] = ()

    @property
    def changed(self) -> str:
        """The first of its files that is another by now; empty if none is."""
        for path, content in self.files:
            try:
                if digest(Path(path).read_bytes()) != content:
                    return path
            except OSError:
                return path
        return ""


def digest(content: bytes) -> bytes:
    """A short name of the content."""
    return hashlib.blake2b(content, digest_size=16).digest()


_SCALARS = (str, bytes, bool, int, float, type(None))


def plain(value: object, where: str) -> Any:
    """Return a copy of `value` that holds only data.

    Args:
        value: Nested dicts, lists, tuples, sets, strings, bytes, numbers, booleans, None.
            NumPy scalars become Python numbers, and instances of subclasses (an `Enum`, a
            named tuple) the plain value: the worker may not know the class.
        where: How the user would name it, such as `sampling["stop"]`; used in the message.

    Raises:
        SpecError: Something in it is not data (a function, an engine, a lock).
    """
    if isinstance(value, _SCALARS):
        return _exact(value)
    match value:
        case Function():
            return value
        case Mapping():
            for key in value:
                if not isinstance(key, _SCALARS):
                    raise SpecError(
                        f"{where} has the key {key!r} of type {type(key).__name__}; "
                        "keys must be text or numbers"
                    )
            return {_exact(key): plain(item, f"{where}[{key!r}]") for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            kind = next(kind for kind in (list, tuple, set, frozenset) if isinstance(value, kind))
            return kind(plain(item, f"{where}[{i}]") for i, item in enumerate(value))
    scalar = getattr(value, "item", None)  # NumPy and torch scalars, without importing either
    if callable(scalar) and getattr(value, "ndim", None) == 0:
        return plain(scalar(), where)
    raise SpecError(
        f"{where} is of type {type(value).__module__}.{type(value).__qualname__}; it is sent to "
        "another process and must be plain data (text, numbers, lists, dicts)"
    )


def _exact(value: Any) -> Any:
    if type(value) in _SCALARS:
        return value
    match value:
        case str():
            return str.__str__(value)
        case bytes():
            return bytes(value)
        case int():
            return int.__index__(value)
        case _:
            return float.__float__(value)
