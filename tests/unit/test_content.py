"""What counts of a value, and what another kernel finds again."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mgpu_magic.content import content
from mgpu_magic.errors import SpecError


def of(value: object) -> bytes:
    """Its content."""
    return content(value, "predict")


def cell(source: str, **names: Any) -> dict[str, Any]:
    """What a cell of a notebook binds."""
    space = {"__name__": "__main__", **names}
    exec(compile(source, "<cell>", "exec"), space)
    return space


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        ("1", 1),
        ("a", b"a"),
        ([1], (1,)),
        ([1, 2], [2, 1]),
        (["ab", "c"], ["a", "bc"]),
        ([[1], 2], [[1, 2]]),
        ({"a": 1}, {"a": 2}),
        (None, ...),
        (0.1, 0.2),
        (np.zeros(2), np.zeros(3)),
        (np.zeros(2), np.zeros(2, np.float32)),
        (np.zeros((2, 1)), np.zeros((1, 2))),
        (np.float32(1), 1.0),
        (Path("a"), Path("b")),
        (re.compile("a"), re.compile("b")),
        (len, max),
        (partial(max, 1), partial(max, 2)),
        ([].append, [1].append),
        (re, sys),
        (np.array([{"a": 1}]), np.array([{"a": 2}])),
    ],
)
def test_different_values_differ(one: object, other: object) -> None:
    """Also those that are equal to Python but of another kind."""
    assert of(one) != of(other)


def test_which_parts_are_one_object_does_not_count() -> None:
    """Where pickle would see a difference, there is none."""
    part = ["x" * 3]
    assert of([part, part]) == of([["xxx"], ["xxx"]])
    assert of({"b", "a", "c"}) == of({"c", "b", "a"})
    assert of(np.asfortranarray(np.eye(3)[:2])) == of(np.eye(3)[:2])
    assert of(OrderedDict(a=1)) == of(OrderedDict(a=1))


def test_what_contains_itself() -> None:
    """It has an end, and the same each time."""

    def endless(end: int) -> list[object]:
        value: list[object] = [end]
        value.append(value)
        return value

    assert of(endless(1)) == of(endless(1))
    assert of(endless(1)) != of(endless(2))


@dataclass
class Point:
    """A class of the user's own module."""

    x: int


def test_objects_are_their_class_and_state() -> None:
    """Two of the same state are the same."""
    assert of(Point(1)) == of(Point(1))
    assert of(Point(1)) != of(Point(2))


SOURCE = """
import math
from os import path as folder
class Base:
    '''Words.'''
class Scorer(Base):
    weight = 2
    def score(self, x): return self.weight * x + helper(x)
    @property
    def half(self): return self.weight / 2
def helper(x, most=[3], *, least=0): return f"{x}{most}{prefix}{folder.sep}{math.pi}"
def predict(x, k=(1, 2)): return Scorer().score(x), predict, x.unrelated
"""


def predict(source: str = SOURCE, **names: Any) -> bytes:
    """The content of the function of a cell."""
    return of(cell(source, **{"prefix": "p", **names})["predict"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("self.weight * x", "self.weight + x"),
        ("weight = 2", "weight = 3"),
        ("weight / 2", "weight / 3"),
        ("most=[3]", "most=[4]"),
        ("least=0", "least=1"),
        ("k=(1, 2)", "k=(1, 3)"),
        ("class Scorer(Base)", "class Scorer(object)"),
        ("math.pi", "math.e"),
    ],
)
def test_a_change_below_a_function_counts(old: str, new: str) -> None:
    """In a class, a helper, a default that it uses."""
    assert predict(SOURCE.replace(old, new)) != predict()


def test_what_a_function_does_not_read_does_not_count() -> None:
    """Lines, other names of the notebook, attributes that are called like them, words."""
    assert predict("\n\n" + SOURCE) == predict()
    assert predict(unrelated=threading.Lock(), other=1) == predict()
    assert predict(SOURCE.replace("Words", "Other words")) == predict()
    assert predict(prefix="q") != predict()


PACKAGE = str(Path(content.__code__.co_filename).parents[1])
PRINTED = f"""
from mgpu_magic.content import content
from dataclasses import dataclass
from enum import Enum
{SOURCE}
prefix = "p"
@dataclass(frozen=True, slots=True)
class Setting:
    name: str = "a"
    kinds: frozenset = frozenset({{"x", "y", "z"}})
class Kind(Enum):
    A = 1
setting = Setting()
def every(state, batch):
    return predict(batch), setting, Kind.A, [x for x in batch if x in {{"u", "v", "w"}}]
print(content(every, "every").hex(), content(Setting(), "").hex())
"""


def test_another_kernel_finds_the_same() -> None:
    """Whatever its hash seed is, for classes and functions of its own."""
    printed = {
        subprocess.run(
            [sys.executable, "-c", PRINTED],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": PACKAGE},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(printed) == 1


def test_a_function_with_a_cache_is_what_it_wraps() -> None:
    """Though pickle knows it by its name alone."""

    def cached(number: int) -> bytes:
        source = f"from functools import cache\n@cache\ndef f(): return {number}\n"
        return of(cell(f"{source}def predict(): return f()")["predict"])

    assert cached(1) == cached(1) != cached(2)


def test_where_an_error_is_caught_counts() -> None:
    """Code of the same steps with another range of its handler."""
    one = "def predict(x):\n try:\n  x()\n  x()\n except ValueError: pass\n"
    other = "def predict(x):\n try:\n  x()\n except ValueError: pass\n else:\n  x()\n"
    assert of(cell(one)["predict"]) != of(cell(other)["predict"])


class Tensor:
    """Stands in for torch's, by name."""

    __module__ = "torch"
    dtype = "torch.float32"

    def __init__(self, *numbers: float) -> None:
        self.numbers = numbers

    def detach(self) -> Tensor:
        return self

    cpu = float = detach

    def numpy(self) -> np.ndarray[Any, Any]:
        return np.array(self.numbers)


class Narrow(Tensor):
    """One of a type that NumPy lacks."""

    dtype = "torch.bfloat16"


class Module:
    """Stands in for a model of torch."""

    __module__ = "torch.nn.modules.module"


def test_tensors_and_models_of_torch() -> None:
    """A tensor is its numbers; a model is loaded from files, and those are its identity."""
    assert of(Tensor(1, 2)) == of(Tensor(1, 2)) != of(Tensor(1, 3))
    assert of(Narrow(1, 2)) != of(Tensor(1, 2))
    with pytest.raises(SpecError, match="a model in memory has no name that another kernel knows"):
        of({"model": Module()})


def test_what_no_other_kernel_could_know() -> None:
    """The message names the variable and what to do."""
    with pytest.raises(SpecError) as caught:
        of(cell("def predict(): return lock\n", lock=threading.Lock())["predict"])
    assert str(caught.value) == (
        "journal: predict uses lock (_thread.lock), and another kernel could not tell whether its "
        "own is the same: TypeError: cannot pickle '_thread.lock' object; make it inside "
        "load(device), or leave the journal out"
    )
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(SpecError, match="nested too deeply"):
        of(deep)
