"""Which files of a model on the hub are downloaded: what the engine reads, and nothing twice."""

from __future__ import annotations

import pytest

from mgpu_magic.engines.weight_files import needed, settings

SHARDS = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
BINS = [f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)]
SMALL = ["config.json", "tokenizer.json", "tokenizer.model", "chat_template.jinja", "modeling_x.py"]


@pytest.mark.parametrize("reader", ["vllm", "transformers"])
def test_safetensors_go_before_copies_in_other_formats(reader: str) -> None:
    """Settings, tokenizer and code come along; pickled weights and other libraries' do not."""
    index = "model.safetensors.index.json"
    copies = [
        *BINS, "tf_model.h5", "flax_model.msgpack", "rust_model.ot", "model.onnx", "m-Q4_K_M.gguf",
        "onnx/model.onnx", "onnx/config.json", "openvino/model.bin", "original/tok.model",
        "checkpoint-500/model.safetensors", "training_args.bin", "optimizer.pt", "loss.png",
        ".gitattributes",
    ]  # fmt: skip
    found = needed([*SMALL, *SHARDS, index, *copies], reader)  # type: ignore[arg-type]
    assert found == sorted([*SMALL, *SHARDS, index])


@pytest.mark.parametrize("reader", ["vllm", "transformers"])
def test_pickled_weights_where_there_are_no_others(reader: str) -> None:
    """An old model has only those; what its training left is not read."""
    left = ["training_args.bin", "scheduler.pt", "rng_state_0.pth"]
    found = needed([*SMALL, *BINS, *left], reader)  # type: ignore[arg-type]
    assert found == sorted([*SMALL, *BINS])


def test_variants_of_the_weights() -> None:
    """One file, or its shards, for transformers; for vLLM all that the index does not exclude."""
    files = ["model.safetensors", "model.fp16.safetensors", "fp16/model.safetensors"]
    assert needed(files, "transformers") == ["model.safetensors"]
    assert needed(files, "vllm") == sorted(files[:2])
    both = [*SHARDS, "model.safetensors.index.json", "odd.safetensors"]
    assert needed(both, "vllm") == sorted([*SHARDS, "model.safetensors.index.json"])


def test_files_in_the_format_of_mistral() -> None:
    """They are for vLLM, unless it is told otherwise; transformers cannot read them."""
    files = ["params.json", "consolidated.safetensors", *SHARDS, "model.safetensors.index.json"]
    small = ["model.safetensors.index.json", "params.json"]
    assert needed(files, "vllm") == sorted(["consolidated.safetensors", *small])
    assert needed(files, "vllm", load_format="safetensors") == sorted([*SHARDS, *small])
    assert needed(files, "transformers") == sorted([*SHARDS, *small])


def test_folders_of_a_model() -> None:
    """A subfolder's weights in place of those beside it; vLLM reads layers that follow a model."""
    files = ["config.json", "model.safetensors", "v2/config.json", "v2/model.safetensors"]
    settings_alone = ["config.json", "v2/config.json"]
    assert needed(files, "transformers", subfolder="v2") == [
        *settings_alone,
        "v2/model.safetensors",
    ]
    layers = ["1_Pooling/config.json", "2_Dense/model.safetensors", "2_Dense/pytorch_model.bin"]
    assert needed([*files, *layers], "vllm") == [
        "1_Pooling/config.json",
        "2_Dense/model.safetensors",
        "config.json",
        "model.safetensors",
        "v2/config.json",
    ]


def test_an_adapter_and_a_tokenizer() -> None:
    """An adapter's own weights are read, also beside a whole model; a tokenizer has none."""
    adapter = ["adapter_config.json", "adapter_model.bin", "adapter_model.safetensors"]
    assert needed(adapter, "vllm") == ["adapter_config.json", "adapter_model.safetensors"]
    found = needed([*adapter, "model.safetensors"], "transformers")
    assert found == ["adapter_config.json", "adapter_model.safetensors", "model.safetensors"]
    assert settings([*SMALL, *SHARDS, "model.gguf"]) == sorted(SMALL)
