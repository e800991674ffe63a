"""The files of a model or adapter, as a digest: the same wherever they lie and whenever copied.

Names, sizes, small files whole. Of a big file samples are read: the two ends, blocks between
them, and of safetensors the beginning and the middle of each tensor, since training that leaves
the size alone changes every number of a tensor but perhaps not every tensor.
Imports `errors` alone.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from mgpu_magic.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator

DIGEST_BYTES = 16
_WHOLE_BYTES = 16 * 2**20
_END_BYTES = 2**20
_BLOCKS, _BLOCK_BYTES = 256, 4096
_TENSOR_BYTES = 256
_BESIDE = (".md", ".ipynb", ".jsonl", ".log", ".csv", ".lock", ".pyc")  # answer no prompt


def fingerprint(name: str) -> bytes | None:
    """The digest of a file or directory; None where there is none of that name.

    Raises:
        SpecError: A file cannot be read.
    """
    path = Path(name).expanduser()
    if not path.exists():
        return None
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    try:
        for relative, file in _files(path):
            size = file.stat().st_size
            digest.update(f"{relative}\0{size}\0".encode("utf-8", "surrogateescape"))
            for block in _blocks(file, size):
                digest.update(block)
    except OSError as error:
        raise SpecError(
            f"journal: {error.filename or path} of the model cannot be read "
            f"({error.strerror or error}); its files tell whether answers are still right"
        ) from error
    return digest.digest()


def _files(path: Path) -> list[tuple[str, Path]]:
    """The files by their names within the directory; of one file the name does not count."""
    if path.is_file():
        return [("", path)]
    found = []
    for folder, folders, files in os.walk(path, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith((".", "__pycache__"))]
        for name in files:
            file = Path(folder) / name
            if not name.startswith(".") and file.suffix not in _BESIDE and file.is_file():
                found.append((str(file.relative_to(path)), file))
    return sorted(found)


def _blocks(file: Path, size: int) -> Iterator[bytes]:
    if size <= _WHOLE_BYTES:
        yield file.read_bytes()
        return
    with file.open("rb") as opened:
        line = opened.fileno()
        yield os.pread(line, _END_BYTES, 0)
        yield os.pread(line, _END_BYTES, size - _END_BYTES)
        for step in range(1, _BLOCKS):
            yield os.pread(line, _BLOCK_BYTES, size * step // _BLOCKS)
        if file.suffix == ".safetensors":
            for start, end in _tensors(line, size):
                yield os.pread(line, min(_TENSOR_BYTES, end - start), start)
                yield os.pread(line, min(_TENSOR_BYTES, end - start), (start + end) // 2)


def _tensors(line: int, size: int) -> Iterator[tuple[int, int]]:
    """Where each tensor begins and ends; nothing where the header is none."""
    length = int.from_bytes(os.pread(line, 8, 0), "little")
    if length > size:
        return
    try:
        header = json.loads(os.pread(line, length, 8))
        places = [entry["data_offsets"] for entry in header.values() if "data_offsets" in entry]
        yield from ((8 + length + int(start), 8 + length + int(end)) for start, end in places)
    except (ValueError, TypeError, AttributeError):
        return
