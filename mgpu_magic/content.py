"""What a value is, as a digest that another kernel finds again.

```
value ──> its kind and its parts ──> the same of each part ──> digest
function ──> code, defaults, closure, globals that it reads, modules of the user's
object ───> class, state (what pickling it would keep)
```

Pickled bytes will not do: they depend on which equal parts are one object, and a class of a
notebook gets a random name in them. Sources and line numbers do not count.
Imports `errors` and `own_modules` alone.
"""

from __future__ import annotations

import contextlib
import copyreg
import dis
import hashlib
import sys
from itertools import chain
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import TYPE_CHECKING, Any

from mgpu_magic.errors import SpecError
from mgpu_magic.own_modules import OwnModules, code_content, is_own, reached

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DIGEST_BYTES = 16


def content(value: object, where: str, modules: OwnModules | None = None) -> bytes:
    """The digest of a value: equal in every kernel for a value that is made in the same way.

    Args:
        value: Data, arrays, functions and classes of the notebook, objects that can be pickled.
        where: How the user would name it; used in the message.
        modules: Gets to know the modules of the user's that it needs; for many values one.

    Raises:
        SpecError: Something in it has no content that could be told (a lock, a loaded model).
    """
    return _Walk(where, modules or OwnModules(where)).digest(value)


def used(function: Any) -> Iterator[tuple[str, object]]:
    """The globals and the closure that a function reads, by name."""
    code = getattr(function, "__code__", None)
    if code is None:
        return
    space = function.__globals__
    yield from ((name, space[name]) for name in dict.fromkeys(_globals(code)) if name in space)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a name that is not bound yet
            yield name, cell.cell_contents


def members(kind: type) -> Iterator[tuple[str, object]]:
    """What a class of the notebook defines, without what each definition makes anew."""
    for name, member in vars(kind).items():
        if name not in _MADE_ANEW:
            yield name, getattr(member, "__func__", getattr(member, "fget", member))


_MADE_ANEW = (
    "__dict__", "__weakref__", "__module__", "__doc__", "__firstlineno__", "_abc_impl",
)  # fmt: skip


def _globals(code: CodeType) -> Iterator[str]:
    """Global names that the code and the functions in it read."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield step.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals(constant)


class _Walk:
    """Goes through one value; what contains itself is met once."""

    def __init__(self, where: str, modules: OwnModules) -> None:
        self._where = where
        self._modules = modules
        self._name = ""  # of the last variable on the way
        self._way: dict[int, int] = {}
        self._known: dict[int, tuple[object, bytes]] = {}  # holds them, so that ids stay theirs

    def digest(self, value: Any) -> bytes:
        kind = type(value)
        if kind in _SCALARS:
            return _hash(kind.__name__, _scalar(value))
        if id(value) in self._known:
            return self._known[id(value)][1]
        if id(value) in self._way:
            return _hash("again", b"%d" % self._way[id(value)])
        self._way[id(value)] = len(self._way)
        try:
            digest = self._parts(value)
        except RecursionError:
            raise self._refusal(value, "it is nested too deeply") from None
        finally:
            del self._way[id(value)]
        self._known[id(value)] = value, digest
        return digest

    def _parts(self, value: Any) -> bytes:
        kind = type(value)
        if kind in (list, tuple):
            return self._all(kind.__name__, value)
        if kind in (dict, MappingProxyType):
            return self._all("dict", chain.from_iterable(value.items()))
        if kind in (set, frozenset):
            return _hash("set", *sorted(map(self.digest, value)))
        match value:
            case FunctionType() | type() if _stands_alone(value):
                own = self._modules.content([value.__module__])
                return _hash("global", value.__module__.encode(), value.__qualname__.encode(), own)
            case FunctionType():
                code = value.__code__
                held = (value.__defaults__, value.__kwdefaults__)
                reads = self._modules.content(reached(code, value.__globals__))
                names = self._named(used(value))
                return _hash("def", code_content(code), self.digest(held), reads, *names)
            case MethodType():
                return self._all("method", (value.__func__, value.__self__))
            case BuiltinFunctionType() if not isinstance(value.__self__, ModuleType | None):
                return self._all("method", (value.__name__, value.__self__))
            case ModuleType():
                own = self._modules.content([value.__name__])
                return _hash("module", value.__name__.encode(), own)
            case type():
                names = self._named(members(value))
                return _hash("class", value.__qualname__.encode(), self._bases(value), *names)
            case CodeType():
                return code_content(value)
            case MemberDescriptorType() | GetSetDescriptorType():
                return _hash("slot", value.__name__.encode())
        if _is_of(kind, "torch", "Tensor"):
            return self._tensor(value)
        if kind.__module__ == "numpy" and hasattr(value, "tobytes"):
            return self._array(value)
        return self._reduced(value)

    def _all(self, tag: str, parts: Iterable[object]) -> bytes:
        return _hash(tag, *map(self.digest, parts))

    def _named(self, parts: Iterable[tuple[str, object]]) -> Iterator[bytes]:
        for name, part in sorted(parts, key=lambda named: named[0]):
            before, self._name = self._name, name
            yield name.encode()
            yield self.digest(part)
            self._name = before

    def _bases(self, kind: type) -> bytes:
        return self._all("bases", kind.__bases__)

    def _array(self, array: Any) -> bytes:
        if array.dtype.hasobject:
            return self._all("array", (array.shape, array.tolist()))
        return self._all("array", (str(array.dtype.descr), array.shape, array.tobytes()))

    def _tensor(self, tensor: Any) -> bytes:
        values = tensor.detach().cpu()
        name = str(tensor.dtype)
        narrow = "bfloat16" in name or "float8" in name  # NumPy has no such type
        return self._all("tensor", (name, (values.float() if narrow else values).numpy()))

    def _reduced(self, value: Any) -> bytes:
        """What pickling would keep of an object."""
        if _is_of(type(value), "torch.nn", "Module"):
            raise self._refusal(value, "a model in memory has no name that another kernel knows")
        try:
            reduce = copyreg.dispatch_table.get(type(value))
            parts: Any = value.__reduce_ex__(4) if reduce is None else reduce(value)
            if isinstance(parts, str):
                return _hash("global", parts.encode(), self._wrapped(value))
            make, args, state, items, pairs = (*parts, None, None, None)[:5]
            kept = (make, args, state, items and list(items), pairs and list(pairs))
        except SpecError:
            raise
        except Exception as error:  # pickling runs the code of the user's objects
            raise self._refusal(value, f"{type(error).__name__}: {error}") from error
        return self._all("object", kept)

    def _wrapped(self, value: Any) -> bytes:
        """What a function of the user's is that is known by its name: one with a cache, say."""
        module = sys.modules.get(getattr(value, "__module__", None) or "")
        if module is None or not is_own(module):
            return b""
        if module.__name__ == "__main__":
            return self.digest(getattr(value, "__wrapped__", None))
        return self._modules.content([module.__name__])

    def _refusal(self, value: object, why: str) -> SpecError:
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        what = f"{self._name} ({kind})" if self._name else kind
        return SpecError(
            f"journal: {self._where} uses {what}, and another kernel could not tell whether its "
            f"own is the same: {why}; make it inside load(device), or leave the journal out"
        )


_SCALARS = (str, bytes, int, float, bool, complex, type(None), type(Ellipsis))


def _scalar(value: Any) -> bytes:
    match value:
        case str():
            return value.encode("utf-8", "surrogatepass")
        case bytes():
            return value
        case bool() | complex():
            return repr(value).encode()
        case int():
            return b"%x" % value
        case float():
            return value.hex().encode()
    return b""


def _hash(tag: str, *parts: bytes) -> bytes:
    digest = hashlib.blake2b(tag.encode(), digest_size=DIGEST_BYTES)
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.digest()


def _is_of(kind: type, package: str, name: str) -> bool:
    """Whether a class is that of a library, or derived from it; the library is not imported."""
    return any(
        base.__name__ == name and f"{base.__module__}.".startswith(f"{package}.")
        for base in kind.__mro__
    )


def _stands_alone(value: Any) -> bool:
    """Whether a module other than the notebook has a function or class under its name."""
    module = _found_in(value)
    return module is not None and module.__name__ != "__main__"


def _found_in(value: Any) -> ModuleType | None:
    """The module that has a function or class under its name."""
    module = sys.modules.get(value.__module__ or "")
    found: Any = module
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return module if found is value else None
