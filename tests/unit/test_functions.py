"""How a function of the notebook is made ready for a worker."""

from __future__ import annotations

import linecache
import pickle
import threading
from typing import Any

import pytest

from mgpu_magic.errors import SpecError
from mgpu_magic.functions import to_function


def cell(source: str, name: str = "<ipython-input-1>", **names: Any) -> dict[str, Any]:
    """What a cell of that file name binds."""
    space = {"__name__": "__main__", **names}
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), space)
    return space


def test_a_function_by_value() -> None:
    """It takes along what it uses, and the lines of its cell under the name of its code."""
    source = "def helper(x): return x + one\ndef f(x): return helper(x)\n"
    sent = to_function(cell(source, one=1)["f"], "predict", live=False)
    revived = pickle.loads(sent.pickled)
    assert revived(2) == 3
    assert revived.__code__.co_filename == "<cell of f>"
    assert sent.sources == {"<cell of f>": tuple(source.splitlines(keepends=True))}
    assert (sent.name, sent.live) == ("predict", None)


def test_the_same_code_is_the_same_function() -> None:
    """Whenever and as whichever cell it ran; other code, or another value that it uses, is not."""
    source = "def f(x): return x + one\n"

    def sent(source: str, name: str, one: int) -> Any:
        return to_function(cell(source, name, one=one)["f"], "f", live=False)

    first = sent(source, "<ipython-input-1>", 1)
    assert sent(source, "<ipython-input-9>", 1) == first
    assert sent(source, "<ipython-input-9>", 2) != first
    assert sent(source.replace("+", "-"), "<ipython-input-1>", 1) != first


def test_a_live_function_is_itself() -> None:
    """Nothing is copied; the same code with the same closure counts as the same."""
    lock = threading.Lock()

    def make(value: int) -> Any:
        def f() -> tuple[int, object]:
            return value, lock

        return f

    function = make(1)
    sent = to_function(function, "f", live=True)
    assert sent.live is function
    assert sent.pickled == b""
    assert sent == to_function(make(1), "f", live=True)
    assert sent != to_function(make(2), "f", live=True)
    assert sent != to_function(len, "f", live=True)


LIVE = """
from os import path as folder
class Base:
    pass
class Scorer(Base):
    weight = 2
    def score(self, x): return self.weight * x + helper(x)
    @property
    def half(self): return self.weight / 2
    @staticmethod
    def known(): return [1, 2]
def helper(x, most=[3], *, least=0): return f"{x}{most}{prefix}{folder.sep}"
def f(x, k=(1, 2)): return Scorer().score(x), f
"""


def live(source: str = LIVE, prefix: str = "p", kept: object = None) -> Any:
    """The function of a cell that ran once more, for a thread."""
    return to_function(cell(source, prefix=prefix, kept=kept)["f"], "f", live=True)


def test_the_same_cell_again_is_the_same_to_a_thread() -> None:
    """However often it ran, with the classes and helpers that it defines anew each time."""
    assert live() == live()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("self.weight * x", "self.weight + x"),
        ("weight = 2", "weight = 3"),
        ("return [1, 2]", "return [1]"),
        ("weight / 2", "weight / 3"),
        ("most=[3]", "most=[4]"),
        ("least=0", "least=1"),
        ("k=(1, 2)", "k=(1, 3)"),
        ("class Scorer(Base)", "class Scorer(object)"),
    ],
)
def test_a_change_anywhere_below_is_seen(old: str, new: str) -> None:
    """In a class, a helper, a default: a thread must not go on with what was there before."""
    assert live() != live(LIVE.replace(old, new))


def test_a_value_that_is_used_counts() -> None:
    """Plain ones by value, others by themselves."""
    source = "def f(x): return kept, prefix\n"
    thing = object()
    assert live(source, kept=thing) == live(source, kept=thing)
    assert live(source, kept=thing) != live(source, kept=object())
    assert live(source, "p") != live(source, "q")
    assert live(source, kept=[1, "a"]) == live(source, kept=[1, "a"])
    assert live(source, kept=[1, "a"]) != live(source, kept=(1, "a"))
    assert live(source, kept=1) != live(source, kept=True)


def test_a_method_belongs_to_its_object() -> None:
    """The same method of another object is another function."""

    class Adder:
        def __init__(self, by: int) -> None:
            self.by = by

        def predict(self, _: object, batch: list[int]) -> list[int]:
            return [self.by + x for x in batch]

    one, other = Adder(1), Adder(1)
    assert to_function(one.predict, "f", live=True) == to_function(one.predict, "f", live=True)
    assert to_function(one.predict, "f", live=True) != to_function(other.predict, "f", live=True)


def test_an_empty_closure_can_be_compared() -> None:
    """A name that is not bound yet does not fail the second run of a cell."""
    source = (
        "def outer():\n"
        "    def f(): return g\n"
        "    keep = f\n"
        "    if False:\n"
        "        g = 1\n"
        "    return keep\n"
        "f = outer()\n"
    )
    assert live(source) == live(source)


def test_a_file_that_is_there_keeps_its_name() -> None:
    """A script's function points at the script."""
    sent = to_function(cell("def f(): pass\n", name=__file__)["f"], "f", live=False)
    assert pickle.loads(sent.pickled).__code__.co_filename == __file__
    assert sent.sources == {}


@pytest.mark.parametrize(
    ("source", "culprit"),
    [
        ("def f(): return lock\n", "lock (_thread.lock)"),
        ("def f():\n    def inner(): return lock\n    return inner\n", "lock (_thread.lock)"),
        ("def outer(held):\n    return lambda: held\nf = outer(lock)\n", "held (_thread.lock)"),
    ],
)
def test_what_cannot_be_pickled_is_named(source: str, culprit: str) -> None:
    """The message names the variable and what to do."""
    function = cell(source, lock=threading.Lock())["f"]
    with pytest.raises(SpecError) as caught:
        to_function(function, "predict", live=False)
    assert str(caught.value).startswith(
        f"predict cannot be sent to another process: it uses {culprit}, which cannot be pickled ("
    )


def test_an_object_that_cannot_be_pickled() -> None:
    """A callable without code of its own has nothing to name."""

    class Caller:
        lock = threading.Lock()

        def __call__(self) -> None: ...

        def __reduce__(self) -> Any:
            raise TypeError("not me")

    with pytest.raises(SpecError, match=r"^load cannot be sent to another process \(TypeError: no"):
        to_function(Caller(), "load", live=False)


def test_what_is_no_function() -> None:
    """The name and the type are told."""
    with pytest.raises(SpecError, match="predict is of type list; define a function"):
        to_function([1], "predict", live=True)


def test_a_function_that_calls_itself_before_it_is_bound() -> None:
    """An empty closure does not hide the real cause."""
    source = (
        "def outer():\n"
        "    def f(): return g, lock\n"
        "    keep = f\n"
        "    if False:\n"
        "        g = 1\n"
        "    return keep\n"
        "f = outer()\n"
    )
    with pytest.raises(SpecError, match=r"it uses lock \(_thread\.lock\)"):
        to_function(cell(source, lock=threading.Lock())["f"], "predict", live=False)
