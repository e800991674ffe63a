"""Which files an engine loads, and which of their tensors it must; no value is too odd for it."""

from __future__ import annotations

import json
import math
import random
from typing import TYPE_CHECKING, Any

import pytest
from model_files import GPT_OSS, LLAMA_8B, QWEN_AWQ, made, safetensors, sharded
from plans import CORES, GIB, L4, T4, plan, said

from mgpu_magic.checkpoint import read_checkpoint
from mgpu_magic.fit import need
from mgpu_magic.formats import must_be_loaded
from mgpu_magic.weights import weights_bytes

if TYPE_CHECKING:
    from pathlib import Path


def test_an_index_that_is_left_over(tmp_path: Path) -> None:
    """Beside a whole file transformers has no use for it, and vLLM's word on it is a warning."""
    folder = sharded(tmp_path, LLAMA_8B, present=0, named=2)
    safetensors(tmp_path / "model.safetensors", {"model.layers.0.w": ("BF16", (50,))})
    found = read_checkpoint(folder, {}, engine="transformers")
    assert (found.missing, found.troubles, found.parameters) == ((), (), 50)
    found = read_checkpoint(folder, {})
    assert (found.missing, found.parameters) == ((), 50)
    (line,) = said(plan(found, L4, max_model_len=100))
    assert line.startswith("warn llama: model.safetensors.index.json names model-00001-of-00002")


@pytest.mark.parametrize("load_format", ["dummy", "gguf", "runai_streamer", "tensorizer", "pt"])
def test_other_ways_of_loading_need_no_safetensors(tmp_path: Path, load_format: str) -> None:
    """Neither missing files nor an address in place of one is a reason to refuse."""
    folder = sharded(tmp_path, LLAMA_8B, present=1, named=2)
    first = tmp_path / "model-00001-of-00002.safetensors"
    first.write_text("version https://git-lfs.github.com/spec/v1")
    (tmp_path / "pytorch_model.bin").write_bytes(bytes(40))
    assert len(said(plan(read_checkpoint(folder, {}), L4))) == 2
    found = read_checkpoint(folder, {}, load_format=load_format)
    assert (found.missing, found.troubles) == ((), ())
    assert found.stored_bytes == (40 if load_format == "pt" else None)
    assert said(plan(found, L4, load_format=load_format, max_model_len=100)) == []


def test_a_model_in_a_subfolder(tmp_path: Path) -> None:
    """It is read there; where there is none nothing is said."""
    folder = made(tmp_path, {})
    made(tmp_path / "a", LLAMA_8B, 100)
    found = read_checkpoint(folder, {}, engine="transformers", subfolder="a")
    assert (found.parameters, found.layers) == (50, 32)
    nothing = read_checkpoint(folder, {}, engine="transformers", subfolder="b")
    assert said(plan(nothing, T4, engine="transformers"), offline="HF_HUB_OFFLINE=1") == []


def test_each_gguf_file_is_a_model(tmp_path: Path) -> None:
    """Their sizes are not summed; parts of one are."""
    repository = tmp_path / "models--o--m/snapshots/main"
    repository.mkdir(parents=True)
    for name, length in (("m-Q4_K_M.gguf", 40), ("m-Q8_0.gguf", 80)):
        (repository / name).write_bytes(bytes(length))

    def size(name: str) -> int | None:
        return read_checkpoint(name, {}, "main", str(tmp_path)).stored_bytes

    assert [size(name) for name in ("o/m", "o/m:Q4_K_M", "o/m/m-Q8_0.gguf")] == [None, 40, 80]
    assert weights_bytes(str(repository), {}) is None
    (repository / "m-Q8_0.gguf").rename(repository / "m-00001-of-00002.gguf")
    (repository / "m-Q4_K_M.gguf").rename(repository / "m-00002-of-00002.gguf")
    assert (size("o/m"), weights_bytes(str(repository), {})) == (120, 120)


@pytest.mark.parametrize(
    ("name", "sure"),
    [
        ("model.layers.0.self_attn.q_proj.weight", True),
        ("model.language_model.layers.31.mlp.up_proj.weight", True),
        ("transformer.h.3.attn.c_attn.weight", True),
        ("model.embed_tokens.weight", True),
        ("lm_head.weight", False),
        ("model.layers.32.mtp_block.w", False),
        ("model.layers.61.eh_proj.weight", False),
        ("visual.blocks.0.attn.qkv.weight", False),
        ("model.vision_tower.encoder.layers.0.w", False),
        ("audio_tower.layers.0.w", False),
        ("score.weight", False),
    ],
)
def test_tensors_that_every_engine_loads(name: str, sure: bool) -> None:
    """Towers, heads and layers that guess ahead may be left out."""
    assert must_be_loaded(name, 32) is sure


def test_the_doubtful_part_is_measured(tmp_path: Path) -> None:
    """A tower and a head are in the sum, and not in what is certain."""
    folder = made(tmp_path, LLAMA_8B)
    tensors = {"model.layers.0.w": ("BF16", (500,)), "visual.w": ("BF16", (50,))}
    safetensors(tmp_path / "model.safetensors", {**tensors, "lm_head.weight": ("BF16", (5,))})
    found = read_checkpoint(folder, {})
    asked = need(plan(found).spec, found)
    assert (asked.weights_bytes, asked.least_bytes) == (1110, 1000)


ODD: list[Any] = [
    None, True, 0, -1, 1, 7, 0.5, 1e308, math.inf, -math.inf, math.nan, 2**70, 10**300, "", "x",
    "\ud800", "4G", [], [None], ["a"], [[]], {}, {"a": 1}, {"factor": math.inf, "type": "linear"},
    {"factor": 10**300, "rope_type": "dynamic"}, {"quant_method": "awq", "bits": 2**70},
    {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": "x"}}}},
]  # fmt: skip
KEYS = sorted({*LLAMA_8B, *QWEN_AWQ, *GPT_OSS, "text_config", "rope_parameters", "dtype"})
ARGS = (
    "dtype", "max_model_len", "kv_cache_memory_bytes", "kv_cache_dtype", "quantization",
    "gpu_memory_utilization", "load_format", "cpu_offload_gb",
)  # fmt: skip


def oddly(chance: random.Random, model: dict[str, Any]) -> dict[str, Any]:
    """The config with some values that nobody expects."""
    odd = {key: chance.choice(ODD) for key in chance.sample(KEYS, chance.randint(1, 6))}
    if chance.random() < 0.3:
        odd["text_config"] = {key: chance.choice(ODD) for key in chance.sample(KEYS, 3)}
    return {**model, **odd}


@pytest.mark.parametrize("seed", range(4))
def test_no_mixture_of_values_is_too_odd(tmp_path: Path, seed: int) -> None:
    """Whatever stands in the files and in the cell: findings, and never another error."""
    chance = random.Random(seed)  # no secret
    folder = made(tmp_path, LLAMA_8B, 5 * GIB)
    for _ in range(100):
        config = oddly(chance, chance.choice([LLAMA_8B, QWEN_AWQ, GPT_OSS]))
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        args = {key: chance.choice(ODD) for key in chance.sample(ARGS, chance.randint(0, 3))}
        engine = chance.choice(["vllm", "transformers"])
        found = read_checkpoint(
            folder, {}, engine=engine, load_format=str(args.get("load_format") or "auto")
        )
        for device in (CORES, T4, L4):
            for line in said(plan(found, device, engine=engine, **args), free_bytes=GIB):
                assert line.split()[0] in ("refuse", "warn", "note")


@pytest.mark.parametrize("seed", range(4))
def test_no_header_is_too_odd(tmp_path: Path, seed: int) -> None:
    """Nor are the headers of the files, and their index."""
    chance = random.Random(seed)
    folder = made(tmp_path, LLAMA_8B)
    for _ in range(50):
        entry = {
            key: chance.choice([*ODD, [0, 10], [1, 2**70], [-5, 3], [1e308, 1e308]])
            for key in ("dtype", "shape", "data_offsets")
        }
        text = json.dumps({"model.layers.0.w": entry, "b": chance.choice(ODD)}).encode()
        header = len(text).to_bytes(8, "little") + text + bytes(10)
        (tmp_path / "model.safetensors").write_bytes(header)
        index = {"weight_map": chance.choice([*ODD, {"a": "\x00"}, {"a": "/"}, {"a": "../b"}])}
        index["metadata"] = {"total_size": chance.choice(ODD)}
        named = tmp_path / "model.safetensors.index.json"
        named.write_text(json.dumps(index), encoding="utf-8")
        found = read_checkpoint(folder, {})
        assert said(plan(found, T4), disk_bytes=1) == said(plan(found, T4), disk_bytes=1)
