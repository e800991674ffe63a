"""The user's own modules: the files beside the notebook that its functions import.

```
module ──> its file, compiled ──> code, and the modules that it imports ──> the same of each
    └────> what is loaded of it: refused if that is not what the file says
```

A worker imports the file as it is, a thread has what the kernel imported: an answer can be told
by the file where both are the same. Comments and lines do not count.
Imports `errors` and `sendable` alone.
"""

from __future__ import annotations

import ast
import dis
import marshal
import os
import sys
import sysconfig
import warnings
from contextlib import suppress
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.util import cache_from_source, resolve_name
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from mgpu_magic.errors import SpecError
from mgpu_magic.sendable import digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from importlib.machinery import ModuleSpec


def code_content(code: CodeType) -> bytes:
    """The digest of what code does, wherever it stands."""
    consts = tuple(map(_constant, code.co_consts))
    told = (
        code.co_code, code.co_exceptiontable, consts, code.co_names, code.co_varnames,
        code.co_freevars, code.co_cellvars, code.co_argcount, code.co_posonlyargcount,
        code.co_kwonlyargcount, code.co_flags,
    )  # fmt: skip
    return digest(repr(told).encode("utf-8", "surrogatepass"))


def is_own(module: ModuleType) -> bool:
    """Whether it is the notebook, or a file of the user's: not installed, no part of Python."""
    if module.__name__ == "__main__":
        return True
    file = getattr(module, "__file__", None)
    return file is not None and _is_own_file(module.__name__, Path(file))


def reached(code: CodeType, names: Mapping[str, Any]) -> Iterator[str]:
    """Modules that a function imports when it is called, or reaches through a package.

    Args:
        code: Of the function.
        names: Its globals.
    """
    yield from _imported(code, str(names.get("__package__") or ""))
    attributes = set(_names(code))
    found = [names[name].__name__ for name in attributes if _is_package(names.get(name))]
    while found:
        package = found.pop()
        for name in sorted(attributes):
            module = sys.modules.get(f"{package}.{name}")
            if module is not None:
                yield module.__name__
                found += [module.__name__] * _is_package(module)


class OwnModules:
    """Own modules, as they are met.

    Args:
        where: What uses them, for messages.

    Attributes:
        files: The digest of each file by its path.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._read: dict[str, tuple[bytes, tuple[str, ...]] | None] = {}
        self.files: dict[str, bytes] = {}

    def content(self, names: Iterable[str]) -> bytes:
        """The digest of these modules and all that they import; those of libraries do not count.

        Raises:
            SpecError: A file cannot be read, or was changed since the kernel imported it.
        """
        waiting = [part for name in names for part in _parts(name)]
        told: dict[str, bytes] = {}
        while waiting:
            name = waiting.pop()
            if name in told:
                continue
            if name not in self._read:
                self._read[name] = self._source(name)
            found = self._read[name]
            if found is not None:
                told[name], imports = found
                waiting += [part for imported in imports for part in _parts(imported)]
        if not told:
            return b""
        return digest(b"".join(name.encode() + b"\0" + told[name] for name in sorted(told)))

    def _source(self, name: str) -> tuple[bytes, tuple[str, ...]] | None:
        path = _own_path(name)
        if path is None:
            return None
        try:
            source = path.read_bytes()
            self.files[str(path.absolute())] = digest(source)
            if path.suffix != ".py":
                return digest(source), ()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it was imported with them
                code = compile(source, str(path), "exec", dont_inherit=True)
        except (OSError, SyntaxError, ValueError) as error:
            raise SpecError(
                f"journal: {self._where} uses the module {name}, and {path} cannot be read: {error}"
            ) from error
        module = sys.modules.get(name)
        if module is not None and _was_changed(module, code, source, path):
            raise SpecError(
                f"journal: {self._where} uses the module {name}, and {path} is not what this "
                "kernel imported: nobody could tell which of the two answers; restart the kernel "
                f"or importlib.reload({name})"
            )
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        return code_content(code), tuple(_imported(code, package))


def _constant(value: object) -> object:
    """The constant as something whose `repr` is the same in every kernel."""
    match value:
        case CodeType():
            return code_content(value)
        case tuple():
            return tuple(map(_constant, value))
        case frozenset():
            return ("set", *sorted(repr(_constant(item)) for item in value))
    return value


def _is_own_file(name: str, path: Path) -> bool:
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    library = installed or path.is_relative_to(sysconfig.get_path("stdlib"))
    return not library and name.partition(".")[0] != "mgpu_magic"


def _is_package(value: object) -> bool:
    return isinstance(value, ModuleType) and hasattr(value, "__path__") and is_own(value)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _names(code: CodeType) -> Iterator[str]:
    for each in _codes(code):
        yield from each.co_names


def _imported(code: CodeType, package: str) -> Iterator[str]:
    """Names of modules that it imports; of `from a import b` both."""
    for each in _codes(code):
        level: Any = 0
        names: Any = ()
        for step in dis.get_instructions(each):
            if step.opname == "IMPORT_NAME":
                base = step.argval
                if isinstance(level, int) and level:
                    with suppress(ImportError):  # no package: the import will say so
                        base = resolve_name("." * level + base, package)
                yield base
                yield from (f"{base}.{name}" for name in names or ())
            elif step.opname != "EXTENDED_ARG":
                level, names = names, step.argval


def _parts(name: str) -> Iterator[str]:
    """A module and the packages that it is in."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def _own_path(name: str) -> Path | None:
    module = sys.modules.get(name)
    if module is not None:
        file = getattr(module, "__file__", None)
        return Path(file) if file and name != "__main__" and is_own(module) else None
    spec = _spec(name)
    if spec is None or not spec.has_location or spec.origin is None:
        return None
    path = Path(spec.origin)
    return path if _is_own_file(name, path) else None


def _spec(name: str) -> ModuleSpec | None:
    """Where a module lies that was not imported yet; nothing is imported."""
    parent = name.rpartition(".")[0]
    if not parent:
        return PathFinder.find_spec(name)
    loaded = sys.modules.get(parent)
    above = None if loaded else _spec(parent)
    path: Any = getattr(loaded, "__path__", above and above.submodule_search_locations)
    return None if path is None else PathFinder.find_spec(name, path)


# --- what the kernel has loaded of a file ----------------------------------------------------


def _was_changed(module: ModuleType, code: CodeType, source: bytes, path: Path) -> bool:
    """Whether the module is not what its file says."""
    loader = getattr(module.__spec__, "loader", None)
    if loader is not None and type(loader) is not SourceFileLoader:
        return False  # pytest's compiles in a way of its own
    known = set(map(code_content, _codes(code)))
    loaded = _functions(vars(module), module)
    return (
        any(code_content(function.__code__) not in known for function in loaded)
        or _has_other_values(module, ast.parse(source), code)
        or _was_compiled_from_another(code, path)
    )


def _functions(names: Mapping[str, Any], module: ModuleType) -> Iterator[FunctionType]:
    """The functions of a module's file, in its classes too."""
    waiting, seen = [names], set[type]()
    while waiting:
        for value in list(waiting.pop().values()):
            inner = getattr(value, "__func__", getattr(value, "fget", value))
            with suppress(Exception):  # objects of the user's, whatever they do
                inner = getattr(inner, "__wrapped__", inner)
            if _is_of_file(inner, module):
                yield inner
            elif isinstance(inner, type) and inner.__module__ == module.__name__:
                waiting += [] if inner in seen else [vars(inner)]
                seen.add(inner)


def _is_of_file(value: object, module: ModuleType) -> bool:
    return isinstance(value, FunctionType) and value.__code__.co_filename == module.__file__


def _has_other_values(module: ModuleType, tree: ast.Module, code: CodeType) -> bool:
    """Whether a constant is another, or something that the file defines is not there."""
    changing = {
        step.argval
        for each in _codes(code)
        for step in dis.get_instructions(each)
        if step.opname in ("STORE_GLOBAL", "DELETE_NAME", "DELETE_GLOBAL")
    }
    written: dict[str, Any] = {}
    for statement in tree.body:
        match statement:
            case ast.FunctionDef(name=name, decorator_list=[]):
                if not _is_of_file(vars(module).get(name), module):
                    return True
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                written[name] = None
            case ast.ClassDef(name=name):
                written[name] = None
            case (
                ast.Assign(targets=[ast.Name(name)], value=value)
                | ast.AnnAssign(target=ast.Name(name), value=ast.expr() as value)
            ):
                written[name] = value
            case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
                pass
            case _:  # it may change any of them
                stored = (n for n in ast.walk(statement) if isinstance(n, ast.Name))
                changing |= {name.id for name in stored}
    for name, value in written.items():
        if name in changing:
            continue
        if name not in vars(module):
            return True
        with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            literal = None if value is None else ast.literal_eval(value)
            # What is empty is there to be filled.
            loaded = vars(module)[name]
            if literal and repr(loaded) != repr(literal) and loaded != literal:
                return True
    return False


def _was_compiled_from_another(code: CodeType, path: Path) -> bool:
    """Whether what Python kept of the last import is of another text."""
    cache = Path(cache_from_source(str(path)))
    if sys.dont_write_bytecode or not os.access(cache, os.W_OK):
        return False  # it may be of long ago
    try:
        kept = marshal.loads(cache.read_bytes()[16:])  # noqa: S302  # as each import does
        return code_content(kept) != code_content(code)
    except (OSError, ValueError, EOFError, TypeError, AttributeError):
        return False
