"""Where the weights of models and adapters lie and how big they are, before anything is loaded.

Imports `errors`, `prompts` and `spec` alone.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mgpu_magic.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mgpu_magic.prompts import Prepared
    from mgpu_magic.spec import ModelSpec, WorkerSpec

WEIGHT_FILES = (".safetensors", ".bin", ".pt", ".gguf")


def resolve(model: str, *, holds: str = "config.json", what: str = "model") -> str:
    """A model or adapter as a worker should get it: a local path absolute, a hub id as it is.

    Args:
        model: Directory, file or hub id.
        holds: A file of the directory that one looks for; used in the message.
        what: How the user would name it.

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
            f"{what} {model!r}: there is no such directory ({parent} exists); "
            f"pass the directory that holds {holds}, or a hub id"
        )
    return model


def weights_bytes(model: str, environ: Mapping[str, str]) -> int | None:
    """Size of a model's weight files in bytes; None where they are not on this machine yet.

    Of several formats the first one of `WEIGHT_FILES` counts: an engine loads one of them.
    """
    path = Path(model)
    if path.is_file():
        return path.stat().st_size
    if not path.is_dir():
        path = hub_cache(environ) / ("models--" + model.replace("/", "--")) / "snapshots"
    for suffix in WEIGHT_FILES:
        files = {file.resolve() for file in path.rglob(f"*{suffix}") if file.is_file()}
        if suffix == ".gguf":
            files = set(gguf_of(sorted(files), model))
        if size := sum(file.stat().st_size for file in files):
            return size
    return None


def gguf_of(files: Sequence[Path], model: str) -> Sequence[Path]:
    """The GGUF files of a model: each is one of its own, or a part of one; none where it is open.

    Args:
        files: What lies there.
        model: As it was asked for: `owner/name:Q4_K_M` and `owner/name/a.gguf` name one.
    """
    if model.endswith(".gguf"):
        files = [file for file in files if file.name == Path(model).name]
    elif tag := model.partition(":")[2]:
        files = [file for file in files if tag.lower() in file.name.lower()]
    models = {_PART.sub("", file.name) for file in files}
    return files if len(models) == 1 else []


_PART = re.compile(r"-\d{5}-of-\d{5}")


def remote(spec: WorkerSpec) -> bool:
    """Whether the worker may have to download something: a model that is named by its hub id."""
    names = [spec.model, spec.engine_args.get("lora"), spec.engine_args.get("tokenizer")]
    return spec.engine in ("vllm", "transformers") and any(
        isinstance(name, str) and not Path(name).exists() for name in names
    )


def scheme(model: str, engine_args: Mapping[str, Any]) -> str:
    """How the weights are stored, as far as it is known: `"quantization awq, dtype half"`."""
    said = {name: engine_args[name] for name in ("quantization", "dtype") if name in engine_args}
    with suppress(OSError, ValueError, TypeError, KeyError):
        config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
        said = {"quantization": config["quantization_config"]["quant_method"], **said}
    return ", ".join(f"{name} {value}" for name, value in said.items())


LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # the values of vLLM's max_lora_rank
LORA_RANK = 16  # its default
LORAS_AT_ONCE = 4  # adapters that vLLM keeps on a GPU for one batch; each costs memory


def with_adapters(model: ModelSpec, prepared: Prepared) -> tuple[ModelSpec, Prepared]:
    """The model with the engine arguments that its adapters need, and their paths absolute.

    Raises:
        SpecError: There is no such adapter, its rank does not fit, or the engine cannot have it.
    """
    asked = {request.lora for request in prepared.requests}
    paths = {name: _adapter(name) for name in asked if name is not None}
    if not paths:
        return model, prepared
    if model.engine == "transformers":
        if len(asked) > 1:
            raise SpecError(
                f"model {model.name!r}: transformers loads one adapter per model; give each "
                "adapter its own name in `models`"
            )
        (path,) = paths.values()
        return replace(model, engine_args={**model.engine_args, "lora": path}), prepared
    needed = {
        "enable_lora": True,
        "max_lora_rank": _fitting_rank(model, paths.values()),
        "max_loras": min(len(paths), LORAS_AT_ONCE),
    }
    requests = tuple(
        replace(request, lora=request.lora and paths[request.lora]) for request in prepared.requests
    )
    model = replace(model, engine_args={**needed, **model.engine_args})
    return model, replace(prepared, requests=requests)


def _adapter(name: str) -> str:
    if "/" not in name and not Path(name).exists():  # a hub id has an owner
        raise SpecError(
            f"lora {name!r}: there is no such directory; pass the one that holds "
            "adapter_config.json, or a hub id such as owner/name"
        )
    return resolve(name, holds="adapter_config.json", what="lora")


def _fitting_rank(model: ModelSpec, paths: Iterable[str]) -> int:
    largest = LORA_RANK
    limit = model.engine_args.get("max_lora_rank", LORA_RANKS[-1])
    for path in paths:
        rank = _rank(path)
        if rank > limit:
            raise SpecError(
                f"model {model.name!r}: the adapter {path} has rank {rank}, the limit is {limit} "
                '(engine_args["max_lora_rank"]'
                f"{'' if 'max_lora_rank' in model.engine_args else ', the largest that vLLM has'})"
            )
        largest = max(largest, rank)
    return next(rank for rank in LORA_RANKS if rank >= largest)


def _rank(adapter: str) -> int:
    """The largest rank in an adapter; 0 where it is not on this machine yet."""
    file = Path(adapter) / "adapter_config.json"
    if not file.is_file():
        return 0
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        return max([int(config["r"]), *map(int, (config.get("rank_pattern") or {}).values())])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SpecError(f"{file} cannot be read: {type(error).__name__}: {error}") from None


def hub_cache(environ: Mapping[str, str]) -> Path:
    """Where downloaded models are kept."""
    if cache := environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(cache)
    home = environ.get("HF_HOME") or os.path.join(
        environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "huggingface"
    )
    return Path(home) / "hub"
