"""Which files of a model on the hub an engine reads, so that no others are downloaded.

```
all files ── without copies for other libraries ──> settings, tokenizer, code: all of them
                                               └──> weights: one format per folder
```

Pure: imports nothing but the standard library.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Files = Iterable[str]

Reader = Literal["vllm", "transformers"]

_FORMATS = (".safetensors", ".bin", ".pt", ".pth")  # what an engine reads, the best first
_OTHERS = {
    ".ckpt", ".ggml", ".gguf", ".gz", ".h5", ".llamafile", ".mlmodel", ".msgpack", ".nemo", ".npz",
    ".onnx", ".onnx_data", ".ot", ".pickle", ".pkl", ".tar", ".tflite", ".zip",
    ".gif", ".jpeg", ".jpg", ".mp4", ".pdf", ".png", ".svg", ".wav", ".webp",
}  # fmt: skip
_COPIES = {"coreml", "flax", "gguf", "metal", "onnx", "openvino", "original", "runs"}  # folders
_TRAINING = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state.*)\.(bin|pt|pth)$")
_SHARD = re.compile(r"(model|pytorch_model)-\d+-of-\d+\.")
_MODULE = re.compile(r"\d+_\w+$")  # of sentence-transformers, such as 2_Dense


def needed(
    files: Files, reader: Reader, *, subfolder: str = "", load_format: str = "auto"
) -> list[str]:
    """The files that the engine reads.

    Args:
        files: All files, as paths within the model's directory.
        reader: The engine.
        subfolder: Where in the directory the model is.
        load_format: vLLM's argument: `"auto"` and `"mistral"` prefer Mistral's own files.
    """
    paths = [PurePosixPath(file) for file in files]
    folders: dict[str, list[str]] = {}
    for path in paths:
        folders.setdefault("/".join(path.parts[:-1]), []).append(path.name)
    found = settings(map(str, paths))
    for folder, names in folders.items():
        if folder == subfolder or (reader == "vllm" and _MODULE.match(folder)):
            weights = [
                name
                for name in names
                if PurePosixPath(name).suffix in _FORMATS and not _TRAINING.match(name)
            ]
            chosen = _weights(weights, names, reader, load_format)
            found += [f"{folder}/{name}" if folder else name for name in chosen]
    return sorted(found)


def settings(files: Files) -> list[str]:
    """What is no weights: settings, vocabularies, templates, code."""
    return sorted(
        file
        for file in files
        if (path := PurePosixPath(file)).suffix not in (*_FORMATS, *_OTHERS)
        and not path.name.startswith(".")
        and not any(part in _COPIES or part.startswith("checkpoint-") for part in path.parts)
    )


def _weights(weights: list[str], names: list[str], reader: Reader, load_format: str) -> list[str]:
    """Of the weights of one folder, those that are read."""
    mistral = [name for name in weights if name.startswith("consolidated")]
    if reader == "vllm" and load_format in ("auto", "mistral"):
        own = [name for name in mistral if name.endswith(".safetensors")]
        if own:
            return own
    adapters = [name for name in weights if name.startswith("adapter_model.")]
    rest = [name for name in weights if name not in mistral and name not in adapters]
    return _best(adapters, lambda of: of) + _best(rest, lambda of: _whole(of, names, reader))


def _best(weights: list[str], chosen: Callable[[list[str]], list[str]]) -> list[str]:
    """Those of the best format that there is."""
    for suffix in _FORMATS:
        if of_format := [name for name in weights if name.endswith(suffix)]:
            return chosen(of_format)
    return []


def _whole(weights: list[str], names: list[str], reader: Reader) -> list[str]:
    """One copy of the model out of weights of one format, which may hold variants of it."""
    single = [name for name in weights if PurePosixPath(name).stem in ("model", "pytorch_model")]
    shards = [name for name in weights if _SHARD.match(name)]
    indexed = bool(shards) and any(name.endswith(".index.json") for name in names)
    if reader == "transformers":
        return single or shards or weights
    return shards if indexed else weights  # without an index vLLM reads all that is there
