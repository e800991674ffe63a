"""What is asked, as a short key: equal content has equal keys, wherever it stands in a job.

```
engine, task, model's files or id, engine arguments ──┐
sampling, choices, adapter ───────────────────────────┼──> key
prompt ───────────────────────────────────────────────┘
```

Nothing that an answer does not depend on counts: devices, the number of copies, batch sizes, how
much memory is used, names, the place of a prompt. What is not known to be such counts.
Pure: files are looked at by the function that it is given. Imports `content`, `errors`,
`messages`, `own_modules` and `sendable` alone.
"""

from __future__ import annotations

import binascii
import hashlib
import json
from array import array
from typing import TYPE_CHECKING, Any, assert_never

from mgpu_magic.content import content
from mgpu_magic.errors import SpecError
from mgpu_magic.messages import Chat, Pair, Pickled, Tokens
from mgpu_magic.own_modules import OwnModules
from mgpu_magic.sendable import Function

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mgpu_magic.messages import Prompt, Request
    from mgpu_magic.spec import ModelSpec

    Fingerprint = Callable[[str], bytes | None]

KEY_CHARS = 16
_KEY_BYTES = 12  # 16 characters of base64; a billion keys share none but once in 10^10 times

WITHOUT_EFFECT: Mapping[str, frozenset[str]] = {
    "vllm": frozenset({
        "api_process_count", "async_scheduling", "block_size", "collect_detailed_traces",
        "cpu_offload_gb", "cuda_graph_sizes", "disable_custom_all_reduce", "disable_log_requests",
        "disable_log_stats", "disable_mm_preprocessor_cache", "distributed_executor_backend",
        "download_dir", "enable_chunked_prefill", "enable_log_requests", "enable_lora",
        "enable_prefix_caching", "enable_sleep_mode", "enforce_eager", "engine_process",
        "gpu_memory_utilization", "hf_token", "kv_cache_memory_bytes", "kv_cache_metrics",
        "long_prefill_token_threshold", "max_cpu_loras", "max_long_partial_prefills",
        "max_lora_rank", "max_loras", "max_num_batched_tokens", "max_num_partial_prefills",
        "max_num_seqs", "max_parallel_loading_workers", "max_seq_len_to_capture",
        "mm_processor_cache_gb", "num_gpu_blocks_override", "otlp_traces_endpoint",
        "preemption_mode", "safetensors_load_strategy",
        "scheduling_policy", "served_model_name", "show_hidden_metrics_for_version", "swap_space",
        "tensor_parallel_size", "token", "use_tqdm_on_load",
    }),
    "transformers": frozenset({"batch_size", "hf_token", "token"}),
    "python": frozenset({"batch_size"}),
    "echo": frozenset({
        "capacity", "delay", "delay_per_character", "fail_to_load", "fork_child",
        "import_delay", "load_delay", "print_bytes",
    }),
}  # fmt: skip
"""Arguments by engine that decide how fast and in how much memory, not what is answered."""

UNSET: Mapping[str, tuple[object, ...]] = {
    "allow_new_weights": (False,),
    "load_format": (  # others quantise (bitsandbytes), or draw weights by chance (dummy)
        "auto", "fastsafetensors", "hf", "pt", "runai_streamer", "safetensors",
    ),
    "tokenizer_mode": ("auto",),
    "trust_remote_code": (False,),
}  # fmt: skip
"""Values of arguments that are the same as none."""


def request_keys(
    model: ModelSpec,
    requests: Sequence[Request],
    originals: Sequence[object],
    fingerprint: Fingerprint,
    modules: OwnModules | None = None,
) -> bytes:
    """The keys of requests, `KEY_CHARS` bytes of ASCII each, one after the other.

    Args:
        model: What they are sent to, with the engine arguments as the user gave them.
        requests: One per prompt.
        originals: What the user passed for each.
        fingerprint: The digest of a local file or directory; None where there is none.
        modules: Gets to know the modules of the user's that objects among the prompts need.

    Raises:
        SpecError: The model, a function or a prompt has nothing that another kernel would know.
    """
    asked = _model_content(model, fingerprint)
    modules = modules or OwnModules("a prompt")
    shared: dict[tuple[int, int, str | None], Any] = {}
    keys = bytearray()
    for request in requests:
        setting = id(request.sampling), id(request.choices), request.lora
        begun = shared.get(setting)
        if begun is None:
            settings = _settings(request, fingerprint)
            begun = hashlib.blake2b(asked + settings, digest_size=_KEY_BYTES)
            shared[setting] = begun
        digest = begun.copy()
        digest.update(_prompt(request.prompt, originals, request.index, modules))
        keys += digest.digest()
    return binascii.b2a_base64(keys, newline=False)


def _model_content(model: ModelSpec, fingerprint: Fingerprint) -> bytes:
    if model.built:
        raise SpecError(
            f"journal: model {model.name!r} is an object of this kernel, and another kernel could "
            "not tell whether its own is the same; pass its directory, or leave the journal out"
        )
    where = f"model {model.name!r}"
    named: object = ""  # a function's name does not count
    if model.engine in ("vllm", "transformers"):
        named = fingerprint(model.model) or model.model
    elif model.engine == "echo":
        named = model.model
    arguments = [
        (name, _argument(name, value, fingerprint))
        for name, value in sorted(model.engine_args.items())
        if name not in WITHOUT_EFFECT[model.engine] and not _is_unset(name, value)
    ]
    return content((model.engine, model.task, named, arguments), where)


def _is_unset(name: str, value: object) -> bool:
    return isinstance(value, bool | str) and value in UNSET.get(name, ())


def _argument(name: str, value: object, fingerprint: Fingerprint) -> object:
    match value:
        case Function(content=b""):
            raise SpecError(
                f"journal: {name} was not made for one; pass it as an option of the job"
            )
        case Function():
            return value.content
        case str() if value:  # a tokenizer, say, that lies in a directory of its own
            return fingerprint(value) or value
        case str() | None:
            return value
    if callable(written := getattr(value, "to_dict", None)):  # a configuration of transformers
        return written()
    return _number(value)


def _settings(request: Request, fingerprint: Fingerprint) -> bytes:
    sampling = request.sampling
    fields = [(name, _number(value)) for name, value in sorted(sampling.fields.items())]
    lora = request.lora and (fingerprint(request.lora) or request.lora)
    return content((fields, sampling.seed, request.choices, lora), "sampling")


def _number(value: object) -> object:
    """0.0 as a setting is 0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _prompt(prompt: Prompt, originals: Sequence[object], index: int, modules: OwnModules) -> bytes:
    match prompt:
        case str():
            return b"t" + prompt.encode("utf-8", "surrogatepass")
        case Tokens(ids):
            return b"i" + _integers(ids)
        case Chat(messages):
            try:
                return b"c" + json.dumps(messages).encode()
            except (TypeError, ValueError):  # bytes of an image
                return b"o" + content(messages, f"prompt {index}")
        case Pair(first, second):
            return b"p" + json.dumps((first, second)).encode()
        case Pickled():
            return b"o" + content(originals[index], f"prompt {index}", modules)
        case _:
            assert_never(prompt)


def _integers(ids: Iterable[int]) -> bytes:
    try:
        return array("q", ids).tobytes()
    except OverflowError:
        return repr(ids).encode()
