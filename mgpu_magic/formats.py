"""Which files of a model an engine loads, and which of their tensors every engine must.

Imports `headers` and `weights` alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mgpu_magic.headers import Trouble
from mgpu_magic.weights import WEIGHT_FILES, gguf_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

PLAIN_FORMATS = ("auto", "hf", "safetensors")
"""Load formats of vLLM that read the files in the usual way; of others nothing is known here."""
_SUFFIXES = {"safetensors": (".safetensors",), "pt": (".pt", ".bin")}

INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"


def weight_files(
    folder: Path,
    named: Collection[str],
    troubles: list[Trouble],
    *,
    model: str,
    engine: str,
    load_format: str,
) -> Sequence[Path]:
    """The files that an engine loads, also those that are not there; of several formats one.

    Args:
        folder: The model's directory.
        named: What its index names.
        troubles: What is wrong with the index is added to them.
        model: As it was asked for: it may name one of several GGUF files.
        engine: `"vllm"` or `"transformers"`.
        load_format: vLLM's.
    """
    if load_format not in (*PLAIN_FORMATS, "pt"):
        return []
    mistral = sorted(folder.glob("consolidated*.safetensors"))
    if mistral and engine == "vllm" and load_format == "auto":
        return mistral
    if named and load_format != "pt":
        whole, indexed = folder / WHOLE, [folder / name for name in sorted(named)]
        missing = [file.name for file in indexed if not file.is_file()]
        if whole.is_file() and (missing or engine == "transformers"):
            if missing and engine == "vllm":
                what = f"{INDEX} names {missing[0]}, which is not there, and vLLM may insist on it"
                fix = f"remove the index: {WHOLE} has no need of it"
                troubles.append(Trouble(what=what, fix=fix))
            return [whole]
        return indexed
    for suffix in _SUFFIXES.get(load_format, WEIGHT_FILES):
        found = [
            file
            for file in sorted(folder.glob(f"*{suffix}"))
            if not file.name.startswith(("adapter_", "training_args", "optimizer", "scheduler"))
        ]
        if suffix == ".gguf":
            return gguf_of(found, model)
        usual = [file for file in found if file.name.startswith(("model", "pytorch_model"))]
        if found:
            return usual or found
    return []


_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks|block)\.(\d+)\.")
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|wte|word_embeddings)\.weight$")
# Towers, and heads that guess ahead: who generates text, or embeds it, may leave them out.
_ASIDE = re.compile(
    "vision|visual|audio|image|video|speech|tower|project|connector|align|encoder|sam_model|clip|"
    "siglip|qformer|resampl|perceiv|mtp|nextn|eagle|medusa|draft|talker|2wav|codec|vae|adapter|lora"
)


def must_be_loaded(name: str, layers: int | None) -> bool:
    """Whether every engine loads that tensor for every task; with doubt: no.

    The head is in doubt: one that embeds has none, and one that is tied is the embedding.
    """
    bare = name.removeprefix("language_model.")
    bare = bare.removeprefix("model.").removeprefix("transformer.").removeprefix("language_model.")
    if _ASIDE.search(bare):
        return False
    if (layer := _LAYER.search(bare)) is not None:
        return layers is not None and int(layer[1]) < layers  # others guess ahead
    return _EMBEDDING.search(bare) is not None
