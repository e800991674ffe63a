"""Where a model's weights lie and how big they are, before anything is loaded.

Imports `errors` alone.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from mgpu_magic.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

_WEIGHT_FILES = (".safetensors", ".bin", ".pt", ".gguf")


def resolve(model: str) -> str:
    """The model as a worker should get it: a local path absolute, a hub id as it is.

    Raises:
        SpecError: It is written as a path and nothing is there. (The engine would take it for a
            hub id and complain of its form.)
    """
    path = Path(model).expanduser()
    if path.exists():
        return str(path.absolute())
    if model.startswith(("/", "./", "../", "~")):
        parent = path.parent
        while not parent.exists():
            parent = parent.parent
        raise SpecError(
            f"model {model!r}: there is no such directory ({parent} exists); "
            "pass the directory that holds config.json, or a hub id"
        )
    return model


def weights_bytes(model: str, environ: Mapping[str, str]) -> int | None:
    """Size of a model's weight files in bytes; None where they are not on this machine yet.

    Of several formats the first one of `_WEIGHT_FILES` counts: an engine loads one of them.
    """
    path = Path(model)
    if path.is_file():
        return path.stat().st_size
    if not path.is_dir():
        path = _hub_cache(environ) / ("models--" + model.replace("/", "--")) / "snapshots"
    for suffix in _WEIGHT_FILES:
        files = {file.resolve() for file in path.rglob(f"*{suffix}") if file.is_file()}
        if size := sum(file.stat().st_size for file in files):
            return size
    return None


def _hub_cache(environ: Mapping[str, str]) -> Path:
    if cache := environ.get("HF_HUB_CACHE"):
        return Path(cache)
    home = environ.get("HF_HOME") or os.path.join(
        environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "huggingface"
    )
    return Path(home) / "hub"
