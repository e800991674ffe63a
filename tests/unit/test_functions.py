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
    assert hash(sent(source, "<ipython-input-9>", 1)) == hash(first)
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
    assert sent != "f"


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
