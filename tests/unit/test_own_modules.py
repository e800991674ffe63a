"""What a journal knows of the files beside a notebook that its functions import."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mgpu_magic.content import content
from mgpu_magic.engines.python import PythonEngine
from mgpu_magic.errors import SpecError
from mgpu_magic.functions import to_function
from mgpu_magic.options import Options
from mgpu_magic.own_modules import OwnModules
from mgpu_magic.preparation import prepare
from mgpu_magic.sendable import Function, digest
from mgpu_magic.spec import Device, WorkerSpec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CPU = Device(kind="cpu", index=0, name="CPU", mask="", cores=(0,))
HELPER = """
import os
from dataclasses import dataclass
from functools import cache, cached_property
import second
LABELS = ["a", "b"]
LIMIT = 3
client = os.path.join("a", "b")
seen = {}
_model = None
@dataclass
class Point:
    x: int
    @property
    def twice(self): return 2 * self.x
    @staticmethod
    def still(): return [i for i in range(3)]
@cache
def cached(x): return x
def f(x):
    global _model
    _model = seen[x] = x
    return second.g(x)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The notebook's folder, where modules are imported from."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.syspath_prepend(str(tmp_path))
    write(tmp_path, "helper", HELPER)
    write(tmp_path, "second", "import third\ndef g(x): return third.h(x)\n")
    write(tmp_path, "third", "def h(x): return x\n")
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]
    importlib.invalidate_caches()


def write(folder: Path, name: str, text: str) -> None:
    """Write a module, later than before."""
    file = folder / f"{name}.py"
    stamp = file.stat().st_mtime + 2 if file.exists() else 10**9
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
    os.utime(file, (stamp, stamp))


def cell(source: str) -> Any:
    """The predict of a cell."""
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, "<cell>", "exec", dont_inherit=True), space)
    return space["predict"]


WAYS = [
    "import helper\ndef predict(x): return helper.f(x)\n",
    "from helper import f\ndef predict(x): return f(x)\n",
    "from helper import f as predict\n",
    "from helper import Point\ndef predict(x): return Point(x)\n",
    "from helper import Point\np = Point(1)\ndef predict(x): return p\n",
    "from helper import cached\ndef predict(x): return cached(x)\n",
    "def predict(x):\n    import helper\n    return helper.f(x)\n",
    "def predict(x):\n    def inner():\n        from helper import f\n        f(x)\n    inner()\n",
]


def again(source: str) -> bytes:
    """The content of the predict of a cell, in a kernel that has imported nothing yet."""
    for name in ("helper", "second", "third"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    return content(cell(source), "predict")


@pytest.mark.parametrize("source", WAYS)
@pytest.mark.parametrize("name", ["helper", "second", "third"])
def test_a_module_counts_however_it_is_reached(folder: Path, source: str, name: str) -> None:
    """With what it imports in turn; its comments and empty lines do not."""
    before = again(source)
    text = (folder / f"{name}.py").read_text(encoding="utf-8")
    write(folder, name, f"# words\n\n{text}")
    assert again(source) == before
    write(
        folder,
        name,
        text.replace("return x", "return -x")
        .replace("third.h(x)", "third.h(-x)")
        .replace("second.g(x)", "second.g(-x)")
        + "A = 1",
    )
    assert again(source) != before


CHANGES = [
    ("return second.g(x)", "return -second.g(x)"),
    ("2 * self.x", "3 * self.x"),
    ("range(3)", "range(4)"),
    ("LIMIT = 3", "LIMIT = 4"),
    ('"a", "b"]', '"a", "c"]'),
    ("def cached(x): return x", "def cached(x): return -x"),
    ('join("a", "b")', 'join("a", "c")'),
    ("seen = {}", "seen = {}\nnew = 1"),
]


@pytest.mark.parametrize("source", WAYS)
@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_a_file_that_is_not_what_is_loaded(folder: Path, source: str, old: str, new: str) -> None:
    """It is refused until the kernel loads it again."""
    import helper  # type: ignore[import-not-found]

    before = content(cell(source), "predict")
    write(folder, "helper", HELPER.replace(old, new))
    with pytest.raises(SpecError) as caught:
        content(cell(source), "predict")
    assert str(caught.value) == (
        f"journal: predict uses the module helper, and {folder}/helper.py is not what this kernel "
        "imported: nobody could tell which of the two answers; restart the kernel or "
        "importlib.reload(helper)"
    )
    importlib.reload(helper)
    assert content(cell(source), "predict") != before
    write(folder, "helper", HELPER)
    importlib.reload(helper)
    assert content(cell(source), "predict") == before


@pytest.mark.parametrize("text", ["def f(x: return", None])
def test_a_file_that_cannot_be_read(folder: Path, text: str | None) -> None:
    """It is half written, or gone."""
    predict = cell(WAYS[0])
    (folder / "helper.py").unlink()
    if text:
        write(folder, "helper", text)
    with pytest.raises(SpecError, match=r"uses the module helper, and .*helper.py cannot be read"):
        content(predict, "predict")


def test_a_function_that_was_replaced_in_memory() -> None:
    """The file does not say what answers."""
    predict = cell(WAYS[0])
    import second  # type: ignore[import-not-found]

    second.g = abs
    with pytest.raises(SpecError, match=r"second\.py is not what this kernel imported"):
        content(predict, "predict")


def test_what_a_module_learns_while_it_runs_does_not_count() -> None:
    """Empty collections that fill up, variables that its functions set."""
    predict = cell(WAYS[0])
    before = content(predict, "predict")
    assert predict(5) == 5
    assert content(predict, "predict") == before


def test_packages(folder: Path) -> None:
    """Relative imports, modules that are reached as attributes, those not imported yet."""
    (folder / "pack").mkdir()
    write(folder / "pack", "__init__", "")
    write(folder / "pack", "one", "from . import two\n")
    write(folder / "pack", "two", "def f(): return 1\n")
    write(folder / "pack", "three", "def f(): return 1\n")
    sources = {
        "two": "import pack.one\ndef predict(x): return pack.one.two.f()\n",
        "three": "def predict(x):\n    from pack import three\n    return three.f()\n",
    }
    for changed, source in sources.items():
        found = []
        for text in ("def f(): return 1\n", "def f(): return 2\n", "def f(): return 1\n"):
            write(folder / "pack", changed, text)
            for name in [name for name in sys.modules if name.startswith("pack")]:
                del sys.modules[name]
            importlib.invalidate_caches()
            found.append(content(cell(source), "predict"))
        assert found[0] == found[2] != found[1]


def test_libraries_are_known_by_their_names() -> None:
    """What is installed is not read."""
    assert content(np.linalg, "m") == content(np.linalg, "m") != content(np.random, "m")
    modules = OwnModules("predict")
    source = "import numpy\ndef predict(x):\n    import json\n    return numpy.abs(x)\n"
    content(cell(source), "predict", modules)
    assert modules.files == {}


def test_a_worker_of_another_text_is_none_for_it(folder: Path) -> None:
    """A function is another to it where a file is, and the worker sees whether it is that one."""
    predict = cell(WAYS[0])
    function = to_function(predict, "predict", live=False, told=True)
    assert function == to_function(predict, "predict", live=False, told=True)
    paths = [str(folder / f"{name}.py") for name in ("helper", "second", "third")]
    assert [path for path, _ in function.files] == paths
    assert function.changed == ""
    assert dict(function.files)[paths[2]] == digest(b"def h(x): return x\n")
    write(folder, "third", "def h(x): return -x\n")
    assert function.changed == paths[2]
    importlib.reload(sys.modules["third"])
    assert function != to_function(predict, "predict", live=False, told=True)
    engine = PythonEngine(
        WorkerSpec(engine="python", model="", engine_args={"predict": function}, devices=(CPU,))
    )
    with pytest.raises(RuntimeError, match=r"third\.py was changed since the job began"):
        engine.prepare()
    (folder / "third.py").unlink()
    assert function.changed == paths[2]


def test_objects_among_the_prompts(folder: Path) -> None:
    """They need their class's file too: a worker that imported another is none for them."""
    import helper

    def needs() -> tuple[tuple[str, bytes], ...]:
        options = Options(
            prompts=[helper.Point(1), helper.Point(2)],
            predict=len,
            journal=folder / "j",
            devices="cpu",
        )
        ready = prepare(options.job(), "cpu")
        ready.abandon()
        function = ready.placed[0].spec.engine_args["predict"]
        assert isinstance(function, Function)
        return function.files

    before = needs()
    assert [path for path, _ in before][:1] == [str(folder / "helper.py")]
    write(folder, "helper", HELPER + "B = 1\n")
    importlib.reload(helper)
    assert needs() != before
