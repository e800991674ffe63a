"""Model directories for the tests: real configs' figures, tensors of no content.

```python
folder = made(tmp_path / "qwen", QWEN_AWQ, {"a.weight": ("F16", (2, 3))})
large = made(tmp_path / "big", LLAMA_8B, pretended={"model.safetensors": 15 * GIB})
```
"""

from __future__ import annotations

import json
import struct
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

GIB = 2**30
BITS = {"F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "I32": 32, "U8": 8}

LLAMA_8B: dict[str, Any] = {  # Llama 3.1 8B
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
QWEN_7B: dict[str, Any] = {  # Qwen2.5 7B Instruct
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "torch_dtype": "bfloat16",
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "sliding_window": 131072,
    "use_sliding_window": False,
    "vocab_size": 152064,
}
QWEN_AWQ = {
    **QWEN_7B,
    "torch_dtype": "float16",
    "quantization_config": {
        "bits": 4, "group_size": 128, "quant_method": "awq", "version": "gemm", "zero_point": True,
    },
}  # fmt: skip
GPT_OSS: dict[str, Any] = {  # gpt-oss 20B
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "head_dim": 64,
    "num_attention_heads": 64,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "quantization_config": {"quant_method": "mxfp4"},
}


def safetensors(
    path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]], *, cut: int = 0
) -> Path:
    """A file of these tensors (type, shape), as large as it should be or `cut` bytes less.

    It is sparse: what it pretends to hold takes no disk.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (kind, shape) in tensors.items():
        begin, end = end, end + prod(shape) * BITS[kind] // 8
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end - cut)
    return path


def made(folder: Path, config: Mapping[str, Any], size: int = 0, kind: str = "BF16") -> str:
    """A model directory whose weights are one tensor of `size` bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if size:
        count = size * 8 // BITS[kind]
        safetensors(folder / "model.safetensors", {"model.layers.0.weight": (kind, (count,))})
    return str(folder)


def sharded(folder: Path, config: Mapping[str, Any], present: int, named: int) -> str:
    """One of `named` shards of 1,000 bytes each, of which `present` are there."""
    made(folder, config)
    names = [f"model-{n:05}-of-{named:05}.safetensors" for n in range(1, named + 1)]
    index = {
        "metadata": {"total_size": 1000 * named},
        "weight_map": {f"layers.{n}.weight": name for n, name in enumerate(names)},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    for n, name in enumerate(names[:present]):
        safetensors(folder / name, {f"layers.{n}.weight": ("BF16", (500,))})
    return str(folder)
