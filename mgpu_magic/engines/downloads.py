"""Brings the files of a model from the hub to this machine, and tells how far it is.

```
hub id ── fetched ──┬─ the hub says which files ──> needed ──> those not in the cache: downloading
                    └─ no hub (offline, no network) ──> the cache alone
                          │
                          └──> directory on this machine, or a DownloadError that says the fix
```

The scheduler lets one worker of a job do this at a time; the others find the files. The one
module that knows the hub's library, which is imported inside functions.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mgpu_magic.engines.weight_files import needed, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mgpu_magic.engines.weight_files import Reader

    Report = Callable[[str, float | None], None]

REPORT_SECONDS = 0.2
_SETTINGS = ("config.json", "adapter_config.json", "params.json", "tokenizer_config.json")


class DownloadError(OSError):
    """A model cannot be had: what is wrong, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A model, adapter or tokenizer as the user named it.

    Attributes:
        name: Hub id, or a path.
        what: How the user would name it: `"model"`, `"lora"` or `"tokenizer"`.
        reader: The engine that reads it.
        revision: Branch, tag or commit; None: the main branch.
        subfolder: Where in its directory the model is.
        load_format: vLLM's argument.
        cache: The cache's folder; None: the hub's own.
        token: A token of the hub; None: the one that the user's variables or login say.
    """

    name: str
    what: str = "model"
    reader: Reader
    revision: str | None = None
    subfolder: str = ""
    load_format: str = "auto"
    cache: str | None = None
    token: Any = None

    @property
    def on_hub(self) -> bool:
        """Whether it is a hub id, and no path, address or name with a quantisation after a `:`."""
        return ":" not in self.name and not Path(self.name).exists()


def fetched(wanted: Wanted, report: Report) -> str:
    """The directory with the model's files; those that are missing are downloaded.

    Args:
        wanted: The model; a path is returned as it is.
        report: Told of `"downloading"` with the part of the bytes that is there, where there
            is something to download.

    Raises:
        DownloadError: It is not on this machine and cannot be had.
    """
    if not wanted.on_hub:
        return wanted.name
    if _offline():
        if (found := _cached(wanted)) is None:
            raise DownloadError(_offline_text(wanted))
        return found
    try:
        return _downloaded(wanted, report)
    except Exception as error:  # the hub's library and its network library have many
        if (found := _cached(wanted)) is not None:
            return found
        raise DownloadError(_explained(wanted, error)) from error


def _downloaded(wanted: Wanted, report: Report) -> str:
    from huggingface_hub import HfApi, constants, snapshot_download

    info = HfApi(token=wanted.token).model_info(
        wanted.name,
        revision=wanted.revision,
        files_metadata=True,
        timeout=constants.HF_HUB_ETAG_TIMEOUT,
    )
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    files = _needed(sizes, wanted)
    here = {file: _directory(wanted, file, info.sha) for file in files}
    missing = [file for file, directory in here.items() if directory is None]
    if files and not missing:
        return str(here[files[0]])
    report("downloading", 0.0)
    return str(
        snapshot_download(
            wanted.name,
            revision=wanted.revision,
            allow_patterns=[_literally(file) for file in files],
            cache_dir=wanted.cache,
            token=wanted.token,
            tqdm_class=_bars(sum(sizes[file] for file in missing), report),
        )
    )


def _needed(files: Iterable[str], wanted: Wanted) -> list[str]:
    if wanted.what == "tokenizer":
        return settings(files)
    return needed(files, wanted.reader, subfolder=wanted.subfolder, load_format=wanted.load_format)


def _directory(wanted: Wanted, file: str, revision: str | None) -> Path | None:
    """The model's directory in the cache, if this file is in it."""
    from huggingface_hub import try_to_load_from_cache

    found = None
    with contextlib.suppress(ValueError):  # no name of the hub
        found = try_to_load_from_cache(wanted.name, file, cache_dir=wanted.cache, revision=revision)
    return Path(found).parents[file.count("/")] if isinstance(found, str) else None


def _literally(file: str) -> str:
    """A pattern that matches this file alone."""
    return "".join(f"[{mark}]" if mark in "*?[" else mark for mark in file)


def _bars(total: int, report: Report) -> type:
    """A class of progress bars that print nothing, and report the part of `total` bytes."""
    from tqdm import tqdm

    lock = threading.Lock()
    said, most = time.monotonic(), 0.0

    class Bar(tqdm):  # type: ignore[misc]  # untyped
        monitor_interval = 0  # no thread that redraws

        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            self._bytes = options.get("unit") == "B"
            super().__init__(*args, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> None:
            nonlocal said, most
            with lock:
                self.n += n or 0
                if not self._bytes or not total:
                    return
                most = min(max(self.n / total, most), 1.0)  # two bars: what came, what is written
                if time.monotonic() - said >= REPORT_SECONDS:
                    said = time.monotonic()
                    report("downloading", most)

    return Bar


def _cached(wanted: Wanted) -> str | None:
    """The directory of the model in the cache, if it is there and whole."""
    for name in _SETTINGS:
        directory = _directory(wanted, f"{wanted.subfolder}/{name}".lstrip("/"), wanted.revision)
        if directory is not None:
            return str(directory) if _whole(directory / wanted.subfolder, wanted) else None
    return None


def _whole(folder: Path, wanted: Wanted) -> bool:
    """Whether the weights are there, all of those that an index names."""
    if wanted.what == "tokenizer":
        return True
    names = {file.name for file in folder.iterdir() if file.exists()}  # a link may lead nowhere
    weights = set(_needed(names, replace(wanted, subfolder=""))) - set(settings(names))
    if len(weights) == 1 and not any("-of-" in name for name in weights):
        return True
    indices = [
        json.loads((folder / name).read_text(encoding="utf-8"))["weight_map"]
        for name in names
        if name.endswith(".index.json")
        and any(name.endswith(f"{Path(file).suffix}.index.json") for file in weights)
    ]
    listed = [set(index.values()) <= names for index in indices]
    return any(listed) if listed else bool(weights)


# --- what went wrong -------------------------------------------------------------------------


def _offline() -> bool:
    from huggingface_hub import constants

    said = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return bool(constants.HF_HUB_OFFLINE) or said.upper() in ("1", "ON", "YES", "TRUE")


def _cache_folder(wanted: Wanted) -> str:
    from huggingface_hub import constants

    return wanted.cache or str(constants.HF_HUB_CACHE)


def _offline_text(wanted: Wanted) -> str:
    return (
        f"{_named(wanted)} is not in the cache {_cache_folder(wanted)}, and HF_HUB_OFFLINE forbids "
        "to download it: pass the directory that holds it, run once with internet, or take the "
        'variable away: os.environ.pop("HF_HUB_OFFLINE", None)'
    )


def _explained(wanted: Wanted, error: Exception) -> str:
    """What is wrong and the fix, for an error of the hub's library."""
    from huggingface_hub import constants

    hub = constants.ENDPOINT
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    name = _named(wanted)
    match type(error).__name__:
        case "GatedRepoError":
            return f"{name} is gated on {hub}: ask for access on its page; {_token_text(wanted)}"
        case "RepositoryNotFoundError":
            return (
                f"{name} is not on {hub}, or it is private: check the spelling (owner/name; a "
                f"directory is written as ./name); {_token_text(wanted)}"
            )
        case "RevisionNotFoundError":
            return f"{name} has no revision {wanted.revision!r} on {hub}"
        case "HFValidationError":
            return f"{name} is neither a directory here nor a hub id: {error}"
    if status in (401, 403):
        return f"{hub} refuses {name} ({status}); {_token_text(wanted)}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"{name}: no space is left in {_cache_folder(wanted)}; make room, or set HF_HOME to a "
            "folder on a larger disk before the cell"
        )
    if isinstance(error, PermissionError):
        return (
            f"{name} cannot be written to {_cache_folder(wanted)} ({error}); set HF_HOME to a "
            "folder of yours before the cell"
        )
    said = str(error).strip().splitlines()
    what = f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
    return (
        f"{name} could not be downloaded from {hub} ({what}). Run the cell again: files that are "
        "complete are kept. Without internet, pass the directory that holds it"
    )


def _token_text(wanted: Wanted) -> str:
    """Which token was sent, never the token."""
    from huggingface_hub import get_token

    if isinstance(wanted.token, str):
        return 'the token of engine_args["hf_token"] was sent'
    for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if os.environ.get(variable):
            return f"the token of {variable} was sent, which may be another account's or expired"
    if get_token():
        return "the token that `hf auth login` stored was sent; HF_TOKEN goes before it"
    return 'no token was sent: set os.environ["HF_TOKEN"] before the cell'


def _named(wanted: Wanted) -> str:
    return f"{wanted.what} {wanted.name!r}"
