"""What a model's own files tell before it is loaded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from model_files import GPT_OSS, LLAMA_8B, QWEN_7B, QWEN_AWQ, made, safetensors, sharded

from mgpu_magic.checkpoint import Checkpoint, Quantization, read_checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def read(folder: Path, config: Mapping[str, Any], size: int = 0) -> Checkpoint:
    """What the files of such a model tell."""
    return read_checkpoint(made(folder / "model", config, size), {})


@pytest.mark.parametrize(
    ("config", "token_bytes"),
    [
        (LLAMA_8B, 131_072),  # 2 x 32 layers x 8 heads x 128 numbers of 2 bytes
        (QWEN_7B, 57_344),
        (QWEN_AWQ, 57_344),
        ({**LLAMA_8B, "num_key_value_heads": None}, 524_288),  # no grouped heads
        ({**QWEN_7B, "head_dim": 256}, 114_688),
        ({"text_config": QWEN_7B, "architectures": ["XForConditionalGeneration"]}, 57_344),
        (
            {"architectures": ["GPT2LMHeadModel"], "n_embd": 768, "n_head": 12, "n_layer": 12},
            36_864,
        ),
    ],
)
def test_keys_and_values_of_a_token(
    tmp_path: Path, config: dict[str, Any], token_bytes: int
) -> None:
    """Figures of real models; those of SmolLM2 were compared with what vLLM reports."""
    assert read(tmp_path, config).cache_bytes(1) == token_bytes


def test_keys_and_values_are_shared_out_and_packed(tmp_path: Path) -> None:
    """Devices of a group share the heads, each has one at least; numbers can be smaller."""
    found = read(tmp_path, QWEN_7B)
    assert found.cache_bytes(10, parts=2) == 10 * 57_344 // 2
    assert found.cache_bytes(10, parts=8) == 10 * 57_344 // 4
    assert found.cache_bytes(10, number_bytes=1) == 10 * 57_344 // 2


def test_a_layer_with_a_window_remembers_no_more(tmp_path: Path) -> None:
    """Half of gpt-oss' layers look back 128 tokens."""
    found = read(tmp_path, GPT_OSS)
    layer = 2 * 8 * 64 * 2
    assert found.cache_bytes(100) == 24 * 100 * layer
    assert found.cache_bytes(10_000) == 12 * (10_000 + 128) * layer


@pytest.mark.parametrize(
    "change",
    [
        {"kv_lora_rank": 512},
        {"layer_types": ["linear_attention", "full_attention"] * 14},
        {"use_sliding_window": True},  # and nobody says in which layers
        {"num_hidden_layers": None},
        {"num_attention_heads": "many", "num_key_value_heads": None},
        {"architectures": ["Qwen2ForSequenceClassification"]},
        {"architectures": None},
        {"is_encoder_decoder": True},
    ],
)
def test_an_unusual_cache_is_not_guessed(tmp_path: Path, change: dict[str, Any]) -> None:
    """None is said, where a formula would give a number that looks like a fact."""
    assert read(tmp_path, {**QWEN_7B, **change}).cache_bytes(1000) is None


def test_the_figures_of_a_model(tmp_path: Path) -> None:
    """They are those of its config, and the weights those of its headers."""
    found = read(tmp_path, LLAMA_8B, size=3000)
    assert found.tensors == {"BF16": 3000}
    assert (found.parameters, found.dtype, found.quantization) == (1500, "bfloat16", None)
    assert (found.layers, found.heads, found.kv_heads, found.head_dim) == (32, 32, 8, 128)
    assert (found.max_positions, found.vocabulary) == (131072, 128256)
    assert (found.architecture, found.model_type) == ("LlamaForCausalLM", "llama")
    assert (found.troubles, found.missing) == ((), ())
    assert (found.stored_bytes or 0) > 3000


@pytest.mark.parametrize(
    ("scaling", "positions"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 65536),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 4}}, 131072),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, 32768),
        (
            {"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 4096},
            4096,
        ),
        ({"rope_scaling": "odd"}, 32768),
    ],
)
def test_the_longest_sequence_is_vllms(
    tmp_path: Path, scaling: dict[str, Any], positions: int
) -> None:
    """Some ways of stretching positions are counted in the config's number, others not."""
    assert read(tmp_path, {**QWEN_7B, **scaling}).max_positions == positions


PACKED = {
    "model.layers.0.q_proj.qweight": ("I32", (1024, 128)),  # 8 weights of 4 bits in each
    "model.layers.0.q_proj.qzeros": ("I32", (8, 128)),
    "model.layers.0.q_proj.scales": ("F16", (8, 1024)),
    "model.norm.weight": ("F16", (1024,)),
}


def test_packed_weights_are_counted_one_by_one(tmp_path: Path) -> None:
    """A model of 4 bits has as many parameters as before, and a quarter of the bytes."""
    folder = made(tmp_path, QWEN_AWQ)
    safetensors(tmp_path / "model.safetensors", PACKED)
    found = read_checkpoint(folder, {})
    assert found.quantization == Quantization(method="awq", bits=4)
    assert str(found.quantization) == "awq (4 bit)"
    assert found.parameters == 1024 * 1024 + 1024
    assert found.tensors == {"I32": 4 * (1024 + 8) * 128, "F16": 2 * (8 * 1024 + 1024)}
    assert found.dtype == "float16"


def group(bits: int, kind: str = "int", read_bits: int | None = None) -> dict[str, Any]:
    """A group of layers of compressed-tensors."""
    inputs = None if read_bits is None else {"num_bits": read_bits, "type": kind}
    return {"weights": {"num_bits": bits, "type": kind}, "input_activations": inputs}


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ({"quant_method": "gptq", "bits": 8}, "gptq (8 bit)"),
        ({"quant_method": "awq", "w_bit": 4}, "awq (4 bit)"),
        ({"quant_method": "fp8"}, "fp8 (8 bit)"),
        ({"quant_method": "mxfp4"}, "mxfp4 (4 bit)"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes (4 bit)"),
        ({"quant_method": "quark"}, "quark"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"group_0": group(4)}},
            "compressed-tensors (W4A16-int)",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": group(8, "float", 8)},
            },
            "compressed-tensors (W8A8-fp)",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": group(4), "b": group(8, "int", 8)},
            },
            "compressed-tensors",
        ),
    ],
)
def test_how_weights_are_packed(tmp_path: Path, said: dict[str, Any], name: str) -> None:
    """It is named as its config names it, with its bits or scheme where all layers agree."""
    assert str(read(tmp_path, {**QWEN_7B, "quantization_config": said}).quantization) == name


def test_a_file_of_an_older_tool_tells_too(tmp_path: Path) -> None:
    """AutoGPTQ wrote how it packed beside the config."""
    folder = made(tmp_path, QWEN_7B)
    (tmp_path / "quantize_config.json").write_text('{"bits": 4}')
    assert read_checkpoint(folder, {}).quantization == Quantization(method="gptq", bits=4)


def test_a_head_that_is_the_embedding_is_not_counted_twice(tmp_path: Path) -> None:
    """Engines do not load it where the two are tied."""
    folder = made(tmp_path, {**QWEN_7B, "tie_word_embeddings": True})
    tensors = {"model.embed_tokens.weight": ("BF16", (100,)), "lm_head.weight": ("BF16", (100,))}
    safetensors(tmp_path / "model.safetensors", tensors)
    assert read_checkpoint(folder, {}).parameters == 100


def test_the_index_says_which_files_count(tmp_path: Path) -> None:
    """Weights that lie there in another form too are not counted twice."""
    folder = sharded(tmp_path, LLAMA_8B, present=3, named=3)
    safetensors(tmp_path / "consolidated.safetensors", {"w": ("BF16", (9999,))})
    found = read_checkpoint(folder, {}, engine="transformers")
    assert (found.parameters, found.total_bytes, found.missing) == (1500, 3000, ())
    assert read_checkpoint(folder, {}).parameters == 9999  # what vLLM prefers
    assert read_checkpoint(folder, {}, load_format="hf").parameters == 1500


def test_missing_shards_are_named(tmp_path: Path) -> None:
    """Half a model has no figures that look like those of a whole one."""
    found = read_checkpoint(sharded(tmp_path, LLAMA_8B, present=1, named=3), {})
    assert found.missing == (
        "model-00002-of-00003.safetensors",
        "model-00003-of-00003.safetensors",
    )
    assert (found.parameters, found.total_bytes) == (None, 3000)


def test_other_formats_have_a_size_alone(tmp_path: Path) -> None:
    """Pickles are not opened."""
    folder = made(tmp_path, LLAMA_8B)
    (tmp_path / "pytorch_model.bin").write_bytes(bytes(40))
    (tmp_path / "training_args.bin").write_bytes(bytes(7))
    found = read_checkpoint(folder, {})
    assert (found.stored_bytes, found.parameters, found.dtype) == (40, None, "bfloat16")
    (tmp_path / "m.gguf").write_bytes(bytes(9))
    assert read_checkpoint(str(tmp_path / "m.gguf"), {}).stored_bytes == 9


def test_a_model_of_the_hubs_cache(tmp_path: Path) -> None:
    """The revision that the cache calls main counts, or the one that is asked for."""
    repository = tmp_path / "hub/models--org--tiny"
    for commit, size in (("aaa", 100), ("bbb", 200)):
        made(repository / "snapshots" / commit, LLAMA_8B, size)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text("aaa")
    environ = {"HF_HOME": str(tmp_path)}
    assert read_checkpoint("org/tiny", environ).parameters == 50
    assert read_checkpoint("org/tiny", environ, "bbb").parameters == 100
    assert read_checkpoint("org/tiny", {}, None, str(tmp_path / "hub")).parameters == 50
    for model in ("org/tiny:Q4_K_M", "org/tiny/tiny-q4.gguf"):
        assert read_checkpoint(model, environ).place
    for model, revision in (("org/tiny", "ccc"), ("org/other", None)):
        nowhere = read_checkpoint(model, environ, revision)
        assert nowhere.place is None
        assert nowhere.looked_in == tmp_path / "hub" / f"models--{model.replace('/', '--')}"


ODD: list[object] = [
    None,
    1,
    -1,
    0.5,
    True,
    "x",
    [],
    ["a"],
    {},
    {"a": 1},
    [{}],
    {"quant_method": 3},
]


@pytest.mark.parametrize("odd", ODD, ids=json.dumps)
def test_no_config_is_too_odd(tmp_path: Path, odd: object) -> None:
    """Whatever stands in these files, reading them ends in a value."""
    keys = {*LLAMA_8B, *QWEN_AWQ, *GPT_OSS, "text_config", "rope_parameters", "dtype"}
    for key in sorted(keys):
        read(tmp_path, {**LLAMA_8B, key: odd})
    for name in ("config.json", "model.safetensors.index.json", "quantize_config.json"):
        folder = tmp_path / name.partition(".")[0]
        made(folder, LLAMA_8B)
        (folder / name).write_text(json.dumps(odd), encoding="utf-8")
        read_checkpoint(str(folder), {})
    for part in ("weight_map", "metadata"):
        index = {"weight_map": {"a": "model.safetensors"}, "metadata": {}, part: odd}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
        read_checkpoint(str(folder), {})


def test_a_config_that_is_no_json_is_a_finding(tmp_path: Path) -> None:
    """The file is named."""
    made(tmp_path, {})
    (tmp_path / "config.json").write_bytes(b"{\xff")
    (trouble,) = read_checkpoint(str(tmp_path), {}).troubles
    assert trouble.what.startswith("config.json cannot be read (UnicodeDecodeError: ")
