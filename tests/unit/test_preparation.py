"""What is decided about a job before a worker exists."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from mgpu_magic.errors import SpecError
from mgpu_magic.options import Options
from mgpu_magic.preparation import Preparation, prepare

if TYPE_CHECKING:
    from pathlib import Path


def prepared(**options: Any) -> Preparation:
    """The preparation of these options on two CPU devices."""
    return prepare(Options.of(**{"engine": "echo", "prompts": ["a"], **options}).job(), "cpu:2")


def weights(folder: Path, name: str, size: int) -> str:
    """A model directory with that many bytes of weights."""
    model = folder / name
    model.mkdir()
    (model / "model.safetensors").write_bytes(bytes(size))
    return str(model)


def test_a_generator_serves_every_model() -> None:
    """It is read once; each model that has no prompts of its own gets all of them."""
    models = {"a": "m", "b": {"model": "n", "prompts": ["x"]}, "c": "o"}
    ready = prepared(models=models, prompts=(text for text in "pq"))
    asked = {name: [r.prompt for r in p.requests] for name, p in ready.prompts.items()}
    assert asked == {"a": ["p", "q"], "b": ["x"], "c": ["p", "q"]}


def test_threads_load_one_by_one(tmp_path: Path) -> None:
    """Loading in two threads at once gives garbage; processes load as host memory allows."""
    model = weights(tmp_path, "m", 1000)
    alone = prepared(model=model, engine="transformers", launcher="thread")
    assert alone.parallel_loads == 1
    assert prepared(model=model, engine="transformers").parallel_loads > 1
    assert prepared(model="m").parallel_loads == 2


def test_the_largest_model_begins(tmp_path: Path) -> None:
    """Of three models on two devices the two larger ones start at once."""
    sizes = {"small": 10, "large": 3000, "middle": 200}
    models = {name: weights(tmp_path, name, size) for name, size in sizes.items()}
    ready = prepared(models=models, engine="transformers", launcher="thread", task="classify")
    where = [(placed.model, placed.spec.label, placed.wave) for placed in ready.placed]
    assert where == [
        ("small", "cpu:0", 1),
        ("small", "cpu:1", 1),
        ("large", "cpu:0", 0),
        ("middle", "cpu:1", 0),
    ]


def adapter(folder: Path, name: str, rank: int) -> str:
    """An adapter directory of that rank."""
    path = folder / name
    path.mkdir()
    (path / "adapter_config.json").write_text(json.dumps({"r": rank}), encoding="utf-8")
    return str(path)


def test_a_transformers_adapter_is_loaded_with_the_model(tmp_path: Path) -> None:
    """Its directory becomes an argument of the engine."""
    model, lora = weights(tmp_path, "m", 10), adapter(tmp_path, "lora", 64)
    ready = prepared(model=model, engine="transformers", lora=lora)
    assert [p.spec.engine_args for p in ready.placed] == [{"lora": lora}] * 2
    with pytest.raises(SpecError, match="transformers loads one adapter per model; give each"):
        prepared(model=model, engine="transformers", lora=[lora, None], prompts=["a", "b"])


def test_nothing_is_placed_without_prompts() -> None:
    """No worker starts, whatever the model is."""
    ready = prepared(prompts=[], model="/no/such/directory", engine="vllm")
    assert (ready.placed, ready.prompts["directory"].requests) == ((), ())
