"""vLLM with a model and an adapter of the hub."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from stub_hub import StubHub
from transformers import AutoModelForCausalLM, AutoTokenizer

from engines import tiny_models
from mgpu_magic import ResultSet
from mgpu_magic.options import Options

if TYPE_CHECKING:
    from pathlib import Path

    from mgpu_magic import Session

TEXTS = ["the film was", "I saw"]
LONG = 8


def continued(model: Any, words: Any, text: str) -> str:
    """What a model of transformers goes on with."""
    inputs = words(text, return_tensors="pt", return_token_type_ids=False)
    with torch.inference_mode():
        ids = model.generate(**inputs, max_new_tokens=LONG, do_sample=False)
    left: str = words.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return left


@pytest.mark.timeout(240)  # a load of vLLM, on a busy machine
def test_a_model_and_its_adapter_are_downloaded_once(
    tmp_path: Path, apart: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files that vLLM reads come in sight, each once; it asks the hub for none itself."""
    base = tiny_models.llama(tmp_path / "base", tied=False, head_dim=32)  # vLLM's least
    words = AutoTokenizer.from_pretrained(base)
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    expected = [continued(plain, words, text) for text in TEXTS]
    adapted = get_peft_model(
        plain, LoraConfig(task_type="CAUSAL_LM", r=8, init_lora_weights=False)
    ).eval()
    adapted.save_pretrained(tmp_path / "adapter")
    expected_adapted = [continued(adapted, words, text) for text in TEXTS]
    assert expected_adapted != expected
    (tmp_path / "base" / "pytorch_model.bin").write_bytes(b"a pickle")
    options: dict[str, Any] = {
        "prompts": [*TEXTS, *TEXTS],
        "lora": [None, None, "own/adapter", "own/adapter"],
        "devices": "cpu:1",
        "temperature": 0,
        "max_tokens": LONG,
        "engine_args": {"dtype": "float32", "max_model_len": 64, "max_lora_rank": 16},
    }
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    models: dict[str, str | Path] = {"own/base": base, "own/adapter": tmp_path / "adapter"}
    with StubHub(models, seconds=1) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        run = apart.submit(Options(model="own/base", **options).job())
        phases = set()
        while not run.done:
            phases |= {card.worker.phase for card in run.snapshot.devices if card.worker}
            time.sleep(0.02)
        results = run.result(1)
        assert isinstance(results, ResultSet)
        assert [text.strip() for text in results.texts if text] == [*expected, *expected_adapted]
        assert {"downloading", "running"} <= phases
        assert set(hub.fetched.values()) == {1}
        weights = {file for file in hub.fetched if not file.endswith((".json", ".md"))}
        assert weights == {"own/base/model.safetensors", "own/adapter/adapter_model.safetensors"}
