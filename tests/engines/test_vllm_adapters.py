"""LoRA adapters and constrained answers on vLLM."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from process.living import workers

from engines.capitals import question
from engines.weighing import load, weighed
from mgpu_magic import Completion, EngineError, Failure, Prediction, ResultSet, Session, SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from engines.asking import Ask

# Said in full, so that jobs with and without adapters share one worker.
ENGINE_ARGS = {
    "dtype": "float32",
    "max_model_len": 128,
    "kv_cache_memory_bytes": 2**29,
    "enable_lora": True,
    "max_lora_rank": 16,
    "max_loras": 2,
}
PARIS = question("France")
CITIES = ["Paris", "London", "Berlin", "Madrid"]


def write_adapter(folder: Path, base: Any, *, rank: int, seed: int) -> Path:
    """An adapter of the query and value projections, with random weights, as peft saves it."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, module in base.named_modules():
        if name.endswith(("q_proj", "v_proj")):
            rows, columns = module.weight.shape
            key = f"base_model.model.{name}"
            tensors[f"{key}.lora_A.weight"] = torch.randn(rank, columns, generator=generator) * 0.1
            tensors[f"{key}.lora_B.weight"] = torch.randn(rows, rank, generator=generator) * 0.1
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": ["q_proj", "v_proj"],
        "bias": "none",
    }
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def merge(base: Any, adapter: Path) -> None:
    """Add the adapter to the weights themselves."""
    import torch
    from safetensors.torch import load_file

    tensors = load_file(adapter / "adapter_model.safetensors")
    with torch.no_grad():
        for name, module in base.named_modules():
            if (down := tensors.get(f"base_model.model.{name}.lora_A.weight")) is not None:
                up = tensors[f"base_model.model.{name}.lora_B.weight"]
                module.weight += 2 * up @ down


@pytest.fixture(scope="module")
def base(model: str) -> tuple[Any, Any]:
    """The model and its tokenizer, without any engine."""
    return load(model)


@pytest.fixture(scope="module")
def adapters(base: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two adapters that change what the model says."""
    folder = tmp_path_factory.mktemp("adapters")
    one = write_adapter(folder / "one", base[0], rank=8, seed=1)
    return one, write_adapter(folder / "two", base[0], rank=16, seed=2)


@pytest.fixture(scope="module")
def adapted() -> Iterator[Session]:
    """A session with one worker."""
    with Session("cpu:1") as session:
        yield session


@pytest.fixture(scope="module")
def ask(adapted: Session, model: str) -> Ask:
    """Asks the worker that all tests of this file share."""

    def ask(prompts: object, **options: Any) -> ResultSet:
        results = adapted.generate(model, prompts, engine_args=ENGINE_ARGS, **options)
        assert isinstance(results, ResultSet)
        return results

    return ask


def values(results: ResultSet) -> list[list[float]]:
    """What the choices weigh, per prompt."""
    return [list(result.values) for result in results if isinstance(result, Prediction)]


def test_an_adapter_for_all_prompts(ask: Ask, adapters: tuple[Path, Path]) -> None:
    """With it the model says something else, and without it, in the same worker, what it did."""
    options = {"temperature": 0, "max_tokens": 16}
    (plain,) = ask([PARIS], **options).texts
    assert plain == "The capital of France is Paris."
    before = workers()
    (changed,) = ask([PARIS], lora=adapters[0], **options).texts
    assert changed
    assert changed != plain
    assert ask([PARIS], **options).texts == [plain]
    assert workers() == before


def test_an_adapter_for_each_prompt(ask: Ask, adapters: tuple[Path, Path]) -> None:
    """One of a list answers each row, or the model alone; the rows keep their order."""
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 16}
    one, two = adapters
    alone = [ask([PARIS], lora=lora, **options).texts[0] for lora in (None, one, two)]
    assert len(set(alone)) == 3
    mixed = ask([PARIS] * 5, lora=[two, None, one, None, two], **options)
    assert mixed.texts == [alone[2], alone[0], alone[1], alone[0], alone[2]]


def test_choices_with_an_adapter(
    ask: Ask, adapters: tuple[Path, Path], base: tuple[Any, Any], model: str
) -> None:
    """They weigh what a model weighs that has the adapter in its weights; the cache is its own."""
    merged, tokenizer = load(model)
    merge(merged, adapters[0])
    found = ask([PARIS] * 2, choices=CITIES, lora=[None, adapters[0]])
    plain, changed = values(found)
    assert plain == pytest.approx(weighed(*base, PARIS, CITIES), abs=1e-3)
    assert changed == pytest.approx(weighed(merged, tokenizer, PARIS, CITIES), abs=1e-3)
    assert max(abs(a - b) for a, b in zip(plain, changed, strict=True)) > 0.1


def test_an_adapter_that_cannot_be_loaded_fails_its_row(
    ask: Ask, adapters: tuple[Path, Path], tmp_path: Path
) -> None:
    """Its prompt says why; the others are answered, and the worker lives on."""
    before = workers()
    (tmp_path / "adapter_config.json").write_text('{"r": 8, "peft_type": "LORA"}', encoding="utf-8")
    rows = ask([PARIS] * 3, lora=[adapters[0], tmp_path, None], temperature=0, max_tokens=4)
    assert [type(row) for row in rows] == [Completion, Failure, Completion]
    assert workers() == before


def test_an_adapter_that_does_not_fit_is_refused_before_loading(
    base: tuple[Any, Any], model: str, tmp_path: Path
) -> None:
    """Its rank is compared with what vLLM is told to allow, and no worker starts for it."""
    adapter = write_adapter(tmp_path / "wide", base[0], rank=64, seed=3)
    with Session("cpu:1") as session:
        with pytest.raises(SpecError, match=r"has rank 64, the limit is 16"):
            session.generate(model, [PARIS], lora=adapter, engine_args=ENGINE_ARGS)
        assert session.logs() == {}


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def test_answers_of_a_json_schema(ask: Ask) -> None:
    """The answer is JSON of that form, whatever was asked; the schema is a dict or its text."""
    prompts = ["Describe a person: ", PARIS]
    for schema in PERSON, json.dumps(PERSON):
        results = ask(prompts, json_schema=schema, temperature=0, max_tokens=60)
        for text in results.texts:
            assert text is not None
            found = json.loads(text)
            assert found.keys() == {"name", "age"}
            assert isinstance(found["name"], str)
            assert isinstance(found["age"], int)


def test_answers_of_a_regular_expression(ask: Ask) -> None:
    """The answer matches it as a whole."""
    pattern = r"[A-Z]{3}-[0-9]{4}"
    for text in ask(["A number plate: ", PARIS], regex=pattern, temperature=0).texts:
        assert text is not None
        assert re.fullmatch(pattern, text)


def test_answers_of_a_list(ask: Ask, adapters: tuple[Path, Path]) -> None:
    """The answer is one of them, with an adapter too."""
    allowed = ["positive", "negative"]
    prompts = ["This film is great:", "This film is awful:"]
    assert set(ask(prompts, choice=allowed, temperature=0).texts) <= set(allowed)
    with_adapter = ask(prompts, choice=allowed, temperature=0, lora=adapters[1])
    assert set(with_adapter.texts) <= set(allowed)


def test_a_constraint_that_cannot_be_kept_is_one_error(ask: Ask) -> None:
    """A regular expression that is none fails all rows alike, so it is said once."""
    with pytest.raises(EngineError, match="regex"):
        ask(["a", "b", "c"], regex="[a-", temperature=0)
