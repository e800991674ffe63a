"""What a model's own files say about it, read in milliseconds and without torch.

```
config.json ────────────────────────┐
model.safetensors.index.json ───────┼──> Checkpoint
headers of the safetensors files ───┘
```

Whatever the files do not say is None; what is wrong with them is a trouble, never an exception.
Imports `formats`, `headers` and `weights` alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mgpu_magic.formats import INDEX, must_be_loaded, weight_files
from mgpu_magic.headers import Trouble, tensors_of
from mgpu_magic.weights import hub_cache

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mgpu_magic.headers import Tensor

MOST = 2**53
MOST_TIMES = 2**20

TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """How the weights are packed.

    Attributes:
        method: As the config calls it: `"awq"`, `"gptq"`, `"fp8"`, `"compressed-tensors"`, ...
        bits: Bits of a weight, where known.
        scheme: What it is within its method: `"W4A16"`, `"W8A8-int"`; empty where that is unknown.
    """

    method: str
    bits: int | None = None
    scheme: str = ""

    def __str__(self) -> str:
        details = [self.scheme] if self.scheme else [f"{self.bits} bit"] * bool(self.bits)
        return " ".join([self.method, *(f"({detail})" for detail in details)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model's figures; None: its files do not say.

    Attributes:
        place: The directory or file; None: the model is not on this machine.
        looked_in: Where a model of that name would be.
        stored_bytes: Size of the weight files that are here.
        tensors: Bytes of the weights by the type of their numbers, from safetensors headers.
        doubtful: The part of them that some engine or task may leave out.
        parameters: How many weights there are, packed ones counted one by one.
        dtype: Of its unpacked weights, such as `"bfloat16"`.
        quantization: How weights are packed; None: not at all.
        layers: Hidden layers.
        heads: Attention heads.
        kv_heads: Heads with keys and values of their own.
        head_dim: Numbers per head.
        window: Tokens that a windowed layer looks back.
        windowed_layers: Layers that remember a window alone; None: nobody knows which.
        cached: Whether each layer keeps keys and values of every token, as far as known here.
        max_positions: Tokens that it is made for.
        vocabulary: Tokens that it knows.
        architecture: Class of the model.
        model_type: Its family, such as `"llama"`.
        missing: Weight files that its index names and that are not here.
        total_bytes: Size of all weights by the index.
        troubles: What is wrong with the files.
    """

    place: Path | None = None
    looked_in: Path | None = None
    stored_bytes: int | None = None
    tensors: Mapping[str, int] = field(default_factory=dict)
    doubtful: Mapping[str, int] = field(default_factory=dict)
    parameters: int | None = None
    dtype: str | None = None
    quantization: Quantization | None = None
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    window: int | None = None
    windowed_layers: int | None = 0
    cached: bool = False
    max_positions: int | None = None
    vocabulary: int | None = None
    architecture: str | None = None
    model_type: str | None = None
    missing: tuple[str, ...] = ()
    total_bytes: int | None = None
    troubles: tuple[Trouble, ...] = ()

    def cache_bytes(self, tokens: int, *, number_bytes: int = 2, parts: int = 1) -> int | None:
        """Keys and values of one sequence, on one of `parts` devices that share the heads."""
        if not (self.cached and self.layers and self.kv_heads and self.head_dim):
            return None
        if self.windowed_layers is None:
            return None
        long = (self.layers - self.windowed_layers) * tokens
        short = self.windowed_layers * min(tokens, self.window or tokens)
        heads = -(-self.kv_heads // parts)
        return 2 * (long + short) * heads * self.head_dim * number_bytes


def read_checkpoint(
    model: str,
    environ: Mapping[str, str],
    revision: str | None = None,
    cache: str | None = None,
    *,
    engine: str = "vllm",
    load_format: str = "auto",
    subfolder: str = "",
) -> Checkpoint:
    """Read what is known of a model without loading it.

    Args:
        model: Directory, file or hub id.
        environ: Says where the hub's cache is.
        revision: Of a model of the hub.
        cache: The hub's cache, where the user gave another.
        engine: Who is to load it.
        load_format: vLLM's.
        subfolder: Where in the model's directory it lies.
    """
    path = Path(model)
    try:
        if path.is_file():
            return Checkpoint(place=path, looked_in=path, stored_bytes=_size(path))
        folder: Path | None = path
        looked_in = path
        if not path.is_dir():
            looked_in = Path(cache) if cache else hub_cache(environ)
            looked_in /= "models--" + _repository(model).replace("/", "--")
            folder = _snapshot(looked_in, revision or "main")
        if folder is None:
            return Checkpoint(looked_in=looked_in)
        if subfolder and not (folder / subfolder).is_dir():
            return Checkpoint(place=folder, looked_in=looked_in)
        place = folder / subfolder
        looked_in = place if looked_in == folder else looked_in
        return _read(place, looked_in, model, engine, load_format)
    except (OSError, ValueError):  # a folder that we may not look into, a name that is none
        return Checkpoint(place=path, looked_in=path)


def _read(folder: Path, looked_in: Path, model: str, engine: str, load_format: str) -> Checkpoint:
    troubles: list[Trouble] = []
    config = _json(folder / "config.json", troubles)
    quantization = _quantization(folder, config, troubles)
    index = _json(folder / INDEX, troubles)
    weight_map = _mapping(index.get("weight_map"))
    named = {name for name in weight_map.values() if isinstance(name, str) and name}
    files = weight_files(
        folder, named, troubles, model=model, engine=engine, load_format=load_format
    )
    missing = tuple(file.name for file in files if not file.is_file())
    present = [file for file in files if file.is_file()]
    shape = _shape(config)
    tied = any(c.get("tie_word_embeddings") for c in (config, _mapping(config.get("text_config"))))
    read_before = len(troubles)
    tensors = [
        tensor
        for file in present
        if file.suffix == ".safetensors"
        for tensor in tensors_of(file, troubles)
        if not (tied and tensor.name == "lm_head.weight")
    ]
    headed = bool(tensors) and not missing and len(troubles) == read_before
    by_type: dict[str, int] = {}
    doubtful: dict[str, int] = {}
    for tensor in tensors if headed else ():
        by_type[tensor.type] = by_type.get(tensor.type, 0) + tensor.size
        if not must_be_loaded(tensor.name, shape["layers"]):
            doubtful[tensor.type] = doubtful.get(tensor.type, 0) + tensor.size
    return Checkpoint(
        place=folder,
        looked_in=looked_in,
        stored_bytes=sum(map(_size, present)) if present else None,
        tensors=by_type,
        doubtful=doubtful,
        parameters=_parameters(tensors, quantization) if headed else None,
        dtype=_dtype(config, by_type),
        quantization=quantization,
        missing=missing,
        total_bytes=_whole(_mapping(index.get("metadata")).get("total_size")),
        troubles=tuple(troubles),
        **shape,
    )


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _repository(model: str) -> str:
    """The hub's name in vLLM's names of GGUF files: `owner/name:Q4_K_M`, `owner/name/a.gguf`."""
    name = model.partition(":")[0]
    return "/".join(name.split("/")[:2]) if name.endswith(".gguf") else name


# --- files -----------------------------------------------------------------------------------


def _snapshot(repository: Path, revision: str) -> Path | None:
    """The folder of a revision in the hub's cache."""
    snapshots = repository / "snapshots"
    try:
        commit = (repository / "refs" / revision).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        commit = revision
    if (snapshots / commit).is_dir():
        return snapshots / commit
    if revision != "main" or not snapshots.is_dir():
        return None
    kept = [folder for folder in snapshots.iterdir() if folder.is_dir()]
    return max(kept, key=lambda folder: folder.stat().st_mtime, default=None)


def _json(file: Path, troubles: list[Trouble]) -> dict[str, Any]:
    """The object in a file; empty where there is no file, or none that can be read."""
    try:
        read = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        what = f"{file.name} cannot be read ({type(error).__name__}: {error})"
        troubles.append(Trouble(what=what, fix="download the model again"))
        return {}
    return dict(_mapping(read))


# --- what they mean --------------------------------------------------------------------------

_ASIDE = (
    "scales", "qzeros", "g_idx", "_scale", "_scale_inv", "_scale_2", "_zero_point", "_shape",
    "absmax", "quant_map", "_global_scale", "perm", "_g_idx",
)  # fmt: skip


def _parameters(tensors: Iterable[Tensor], packed: Quantization | None) -> int | None:
    """Weights, those that are packed into larger numbers one by one."""
    count = 0
    for tensor in tensors:
        if packed is not None:
            if tensor.name.endswith(_ASIDE) or "quant_state" in tensor.name:
                continue
            if tensor.type in ("I32", "U32", "U8") and tensor.size:
                if packed.bits is None:
                    return None
                count += tensor.size * 8 // packed.bits
                continue
        count += tensor.count
    return count


def _dtype(config: Mapping[str, Any], by_type: Mapping[str, int]) -> str | None:
    """What the config says, else of what most unpacked weights are."""
    said = _of(config, "dtype") or _of(config, "torch_dtype")
    if isinstance(said, str) and said != "auto" and said.replace(".", "").isidentifier():
        return said.removeprefix("torch.")
    floats = {kind: size for kind, size in by_type.items() if kind in TYPES}
    return TYPES[max(floats, key=lambda kind: floats[kind])] if floats else None


def _quantization(
    folder: Path, config: Mapping[str, Any], troubles: list[Trouble]
) -> Quantization | None:
    said = _mapping(_of(config, "quantization_config") or config.get("compression_config"))
    for name, tool in (("quantize_config.json", "gptq"), ("quant_config.json", "awq")):
        if not said and (said := _json(folder / name, troubles)):  # of older tools
            said = {"quant_method": tool, **said}
    if not said and (made := _json(folder / "hf_quant_config.json", troubles)):
        said = {"quant_method": "modelopt", **_mapping(made.get("quantization"))}
    method = said.get("quant_method")
    if not isinstance(method, str):
        return None
    bits = next((n for key in ("bits", "w_bit") if (n := _whole(said.get(key)))), None)
    match method:
        case "bitsandbytes":
            return Quantization(method=method, bits=4 if said.get("load_in_4bit") else 8)
        case "fp8" | "fbgemm_fp8":
            return Quantization(method=method, bits=8)
        case "mxfp4":
            return Quantization(method=method, bits=4)
        case "compressed-tensors":
            return _compressed(said)
        case _:
            return Quantization(method=method, bits=bits)


def _compressed(said: Mapping[str, Any]) -> Quantization:
    """Bits and scheme where all groups of layers have the same."""
    schemes, all_bits = set(), set()
    for group in _mapping(said.get("config_groups")).values():
        weights, inputs = (
            _mapping(_mapping(group).get(key)) for key in ("weights", "input_activations")
        )
        bits, read = _whole(weights.get("num_bits")), _whole(inputs.get("num_bits"))
        kind = "fp" if weights.get("type") == "float" else "int"
        schemes.add(f"W{bits}A{read or 16}-{kind}")
        all_bits.add(bits)
    return Quantization(
        method="compressed-tensors",
        bits=all_bits.pop() if len(all_bits) == 1 else None,
        scheme=schemes.pop() if len(schemes) == 1 else "",
    )


# A cache that is not simply keys and values of every token in every layer.
_IRREGULAR = (
    "kv_lora_rank", "block_configs", "hybrid_override_pattern", "layers_block_type",
    "attn_layer_period", "attn_layer_indices", "num_kv_shared_layers", "global_head_dim",
    "compress_ratios", "state_size", "mamba_d_state", "full_attention_interval", "attn_config",
    "multi_query", "is_encoder_decoder", "attention_chunk_size", "linear_num_key_heads",
)  # fmt: skip
_GENERATING = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


def _shape(config: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of the architecture, by the names of `Checkpoint`."""

    def number(*names: str) -> int | None:
        return next((n for name in names if (n := _whole(_of(config, name)))), None)

    heads = number("num_attention_heads", "n_head")
    hidden = number("hidden_size", "n_embd")
    kinds = _of(config, "layer_types")
    window = number("sliding_window") if _of(config, "use_sliding_window") is not False else None
    windowed: int | None = None if window else 0
    regular = not any(_of(config, name) for name in _IRREGULAR)
    if isinstance(kinds, list):
        windowed = kinds.count("sliding_attention")
        full = kinds.count("full_attention")
        regular = regular and windowed + full == len(kinds) == number("num_hidden_layers")
    names = config.get("architectures")
    first = names[0] if isinstance(names, list) and names else None
    architecture = first if isinstance(first, str) and first.isidentifier() else None
    model_type = config.get("model_type")
    return {
        "layers": number("num_hidden_layers", "n_layer"),
        "heads": heads,
        "kv_heads": number("num_key_value_heads", "num_kv_heads", "multi_query_group_num") or heads,
        "head_dim": number("head_dim") or (hidden // heads if hidden and heads else None),
        "window": window,
        "windowed_layers": windowed,
        "cached": regular and (architecture or "").endswith(_GENERATING),
        "max_positions": _positions(config, number("max_position_embeddings", "n_positions")),
        "vocabulary": number("vocab_size"),
        "architecture": architecture,
        "model_type": model_type if isinstance(model_type, str) else None,
    }


def _positions(config: Mapping[str, Any], positions: int | None) -> int | None:
    """As vLLM reads it: two ways of stretching the positions are not counted in them yet."""
    scaling = _mapping(_of(config, "rope_scaling") or _of(config, "rope_parameters"))
    kind, factor = scaling.get("rope_type") or scaling.get("type"), scaling.get("factor")
    if positions and kind in ("linear", "dynamic") and isinstance(factor, int | float):
        return int(positions * factor) if 1 <= factor < MOST_TIMES else None
    if kind == "longrope":
        return _whole(_of(config, "original_max_position_embeddings")) or positions
    return positions


def _of(config: Mapping[str, Any], name: str) -> Any:
    """A value of the config; that of its language model goes before."""
    inner = _mapping(config.get("text_config"))
    return config.get(name) if inner.get(name) is None else inner[name]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: Any) -> int | None:
    """A number that can be one of a model: of tokens, layers or bytes."""
    whole = isinstance(value, int) and not isinstance(value, bool) and 0 < value < MOST
    return value if whole else None
