"""Headers of safetensors files: what a file holds, read without its numbers.

A file begins with 8 bytes, the length of a header in JSON with type, shape and place of each
tensor. Imports nothing of the package.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What is wrong with the files.

    Attributes:
        what: The file and what is wrong with it.
        fix: What to do.
        certain: Whether no engine can load it so.
    """

    what: str
    fix: str
    certain: bool = False


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a file: its type there, how many numbers and bytes it has."""

    name: str
    type: str
    count: int
    size: int


def tensors_of(file: Path, troubles: list[Trouble]) -> list[Tensor]:
    """What a safetensors file holds by its header; what is wrong is added to the troubles."""
    try:
        with file.open("rb") as opened:
            start = opened.read(8)
            if start == b"version ":
                raise _LfsPointerError
            if len(start) < 8:
                raise ValueError(f"it has {len(start)} bytes")
            (length,) = struct.unpack("<Q", start)
            if not 2 <= length <= MAX_HEADER_BYTES:
                raise ValueError(f"its header would have {length:,} bytes")
            header = json.loads(opened.read(length))
            found = list(_listed(header))
            if not found:
                raise ValueError("it holds no tensors")
            end = max(e["data_offsets"][1] for e in header.values() if "data_offsets" in e)
            size = os.fstat(opened.fileno()).st_size
    except _LfsPointerError:
        what = f"{file.name} holds the address of the weights in place of them (Git LFS)"
        troubles.append(Trouble(what=what, fix="run `git lfs pull` there", certain=True))
    except (OSError, ValueError, ArithmeticError, RecursionError, *_ODD) as error:
        text = str(error) if type(error) is ValueError else type(error).__name__
        what = f"{file.name} is no safetensors file that can be read ({text})"
        troubles.append(Trouble(what=what, fix="download the model again"))
    else:
        if 8 + length + end <= size:
            return found
        what = f"{file.name} is cut: it has {size:,} of {8 + length + end:,} bytes"
        troubles.append(Trouble(what=what, fix="download the model again", certain=True))
    return []


class _LfsPointerError(Exception):
    """A text of three lines in place of a large file."""


_ODD = (TypeError, KeyError, AttributeError, IndexError)  # a header of another shape


def _listed(header: Mapping[str, Any]) -> Iterator[Tensor]:
    for name, entry in header.items():
        if name != "__metadata__":
            (begin, end), shape = entry["data_offsets"], entry["shape"]
            if any(type(number) is not int or number < 0 for number in (begin, end, *shape)):
                raise ValueError("its shapes are no numbers")
            if begin > end:
                raise ValueError("a tensor ends before it begins")
            yield Tensor(name, str(entry["dtype"]), prod(shape), end - begin)
