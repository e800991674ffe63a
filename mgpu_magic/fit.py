"""What one copy of a model asks of each of its devices, and what a device has room for.

Pure; imports `budgets`, `checkpoint`, `formats` and `spec` alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mgpu_magic.budgets import BFLOAT16_CAPABILITY, DTYPES, GIB, GPU_MEMORY_UTILIZATION
from mgpu_magic.checkpoint import MOST, TYPES
from mgpu_magic.formats import PLAIN_FORMATS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mgpu_magic.checkpoint import Checkpoint
    from mgpu_magic.spec import Device, WorkerSpec

RESERVE_BYTES = GIB
"""An estimate of what vLLM takes besides weights and cache: CUDA, its graphs, activations."""
STEP_TOKENS = 256

_NUMBER_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
# With these the weights on a device are those of the files; of others nobody knows here.
_SAME_WEIGHTS = (
    "allow_new_weights", "attention_backend", "attn_implementation", "batch_size", "block_size",
    "chat_template", "disable_log_stats", "download_dir", "dtype", "enable_chunked_prefill",
    "enable_lora", "enable_prefix_caching", "enforce_eager", "engine_process", "generation_config",
    "gpu_memory_utilization", "hf_token", "kv_cache_dtype", "kv_cache_memory_bytes", "load_format",
    "lora", "max_logprobs", "max_lora_rank", "max_loras", "max_model_len",
    "max_num_batched_tokens", "max_num_seqs", "normalize", "pooling", "revision", "seed",
    "subfolder", "tokenizer", "tokenizer_mode", "tokenizer_revision", "trust_remote_code",
)  # fmt: skip
# vLLM: "numerical instability" of these with float16.
NO_FLOAT16 = ("gemma2", "gemma3", "gemma3_text", "glm4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one copy asks of each of its devices; None: not known.

    Attributes:
        dtype: What its numbers will be.
        weights_bytes: Its part of the weights.
        least_bytes: Its part of what every engine loads; None: it may be anything.
        max_model_len: Tokens of a sequence of full length.
        cache_bytes: Keys and values of such a sequence.
        token_bytes: Keys and values of a token more.
    """

    dtype: str | None
    weights_bytes: int | None
    least_bytes: int | None
    max_model_len: int | None
    cache_bytes: int | None
    token_bytes: int | None


def need(spec: WorkerSpec, checkpoint: Checkpoint) -> Need:
    """What a worker will ask of each of its devices."""
    args, parts = spec.engine_args, len(spec.devices)
    dtype = loaded_dtype(spec, checkpoint)
    weights, least = _weights(spec, checkpoint, dtype)
    number = _cache_number_bytes(args, dtype)
    length = _length(args, checkpoint)
    return Need(
        dtype=dtype,
        weights_bytes=None if weights is None else -(-weights // parts),
        least_bytes=None if least is None else least // parts,
        max_model_len=length,
        cache_bytes=checkpoint.cache_bytes(length, number_bytes=number, parts=parts)
        if number and length
        else None,
        token_bytes=checkpoint.cache_bytes(1, number_bytes=number, parts=parts) if number else None,
    )


def budget_bytes(args: Mapping[str, Any], total_bytes: int) -> int | None:
    """What vLLM allows itself on a GPU; None where something else than a part of it says."""
    if args.get("kv_cache_memory_bytes") is not None:
        return None
    part = utilization(args)
    return None if part is None else int(total_bytes * part)


def utilization(args: Mapping[str, Any]) -> float | None:
    """The part of a GPU's memory that vLLM allows itself; None for what is no such part."""
    part = args.get("gpu_memory_utilization", GPU_MEMORY_UTILIZATION)
    known = isinstance(part, int | float) and not isinstance(part, bool) and 0 < part <= 1
    return float(part) if known else None


def longest(needed: Need, room_bytes: int) -> int:
    """Tokens of the longest sequence whose cache fits, a round number; 0: none does."""
    if not needed.token_bytes:
        return 0
    fitting = max(0, room_bytes // needed.token_bytes)
    return min(fitting // STEP_TOKENS * STEP_TOKENS, needed.max_model_len or fitting)


def parallel_sizes(checkpoint: Checkpoint, count: int) -> list[int]:
    """Sizes of a tensor-parallel group, 2 or more, of at most so many devices."""
    if not checkpoint.heads:
        return []
    return [size for size in (2, 4, 8, 16) if size <= count and checkpoint.heads % size == 0]


# --- number types ----------------------------------------------------------------------------


def asked_dtype(args: Mapping[str, Any]) -> str | None:
    """What the user asked for by its usual name; None: whatever is best."""
    asked = args.get("dtype")
    if asked is None or str(asked) == "auto":
        return None
    name = str(asked).removeprefix("torch.").lower()
    return DTYPES.get(name, name)


def lacks_bfloat16(device: Device) -> bool:
    """Whether it is known to be a GPU without bfloat16."""
    capability = device.capability if device.kind == "cuda" else None
    return capability is not None and capability < BFLOAT16_CAPABILITY


def replaced_dtype(spec: WorkerSpec, checkpoint: Checkpoint) -> str | None:
    """What to load instead of bfloat16 where a device lacks it and the user did not choose."""
    if asked_dtype(spec.engine_args) is not None or checkpoint.dtype != "bfloat16":
        return None
    if not any(map(lacks_bfloat16, spec.devices)):
        return None
    return "float32" if checkpoint.model_type in NO_FLOAT16 else "float16"


def loaded_dtype(spec: WorkerSpec, checkpoint: Checkpoint) -> str | None:
    """What the engine will make of its numbers."""
    if asked := asked_dtype(spec.engine_args):
        return asked
    on_cpu = spec.devices[0].kind == "cpu"
    if spec.engine == "transformers" and on_cpu and spec.engine_args.get("dtype") is None:
        return checkpoint.dtype if checkpoint.quantization else "float32"
    if replaced := replaced_dtype(spec, checkpoint):
        return replaced
    if spec.engine == "vllm" and checkpoint.dtype == "float32":
        return "bfloat16" if on_cpu else "float16"
    return checkpoint.dtype


# --- sizes -----------------------------------------------------------------------------------


def _weights(
    spec: WorkerSpec, checkpoint: Checkpoint, dtype: str | None
) -> tuple[int | None, int | None]:
    """Bytes of the whole model as it is loaded; and of what is certain of them."""
    number = _NUMBER_BYTES.get(dtype or "")
    packed = checkpoint.quantization is not None
    if checkpoint.tensors:
        sizes = checkpoint.tensors
        sure = {kind: size - checkpoint.doubtful.get(kind, 0) for kind, size in sizes.items()}
        if packed:  # what is not packed in them may become smaller
            sure = {kind: min(size, _cast(kind, size, 2)) for kind, size in sure.items()}
        elif number is not None:
            sizes, sure = (
                {kind: _cast(kind, size, number) for kind, size in each.items()}
                for each in (sizes, sure)
            )
        known = packed or number is not None
        certain = known and not changes_weights(spec.engine_args, checkpoint)
        return sum(sizes.values()), sum(sure.values()) if certain else None
    size = checkpoint.stored_bytes
    if checkpoint.missing:
        size = checkpoint.total_bytes
    stored = _NUMBER_BYTES.get(checkpoint.dtype or "")
    if size and checkpoint.quantization is None and number and stored:
        size = size * number // stored
    return size or None, None


def changes_weights(args: Mapping[str, Any], checkpoint: Checkpoint) -> bool:
    """Whether the weights on a device may be others than those of the files."""
    if args.get("load_format", "auto") not in PLAIN_FORMATS:
        return True
    packed = checkpoint.quantization
    if packed is not None and args.get("quantization") == packed.method:
        args = {name: value for name, value in args.items() if name != "quantization"}
    return any(_given(value) for name, value in args.items() if name not in _SAME_WEIGHTS)


def _given(value: object) -> bool:
    plain = isinstance(value, bool | int | float | str | list | tuple | dict)
    return bool(value) if plain else value is not None


def _cast(kind: str, size: int, number_bytes: int) -> int:
    return size * number_bytes // _NUMBER_BYTES[TYPES[kind]] if kind in TYPES else size


def _cache_number_bytes(args: Mapping[str, Any], dtype: str | None) -> int | None:
    asked = str(args.get("kv_cache_dtype", "auto"))
    if asked == "auto":
        return _NUMBER_BYTES.get(dtype or "")
    return 1 if asked.startswith(("fp8", "int8")) else _NUMBER_BYTES.get(asked)


def _length(args: Mapping[str, Any], checkpoint: Checkpoint) -> int | None:
    asked = args.get("max_model_len")
    if asked is None:
        return checkpoint.max_positions
    known = isinstance(asked, int) and not isinstance(asked, bool) and 0 < asked < MOST
    return asked if known else None
