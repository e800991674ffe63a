"""Models of transformers in threads: placed, stopped between batches, used by others meanwhile."""

from __future__ import annotations

import threading
import time
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from process.living import eventually
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    XLNetConfig,
    XLNetModel,
)

from engines import tiny_models
from engines.test_transformers_logits import TEXTS, asked, close, values
from mgpu_magic import JobInterrupted, Prediction, Session
from mgpu_magic.engines.cuda import device_name
from mgpu_magic.engines.transformers_load import LoadedModel
from mgpu_magic.engines.transformers_prompts import Row
from mgpu_magic.engines.transformers_score import forward
from mgpu_magic.options import Options
from mgpu_magic.spec import Device, WorkerSpec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mgpu_magic.spec import LauncherName


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A session on two CPU devices."""
    with Session("cpu:2") as session:
        yield session


def gpu(index: int, uuid: str | None = None) -> Device:
    """A GPU as NVML counts it."""
    return Device(kind="cuda", index=index, name="Tesla T4", mask=str(index), uuid=uuid)


def spec(device: Device, launcher: LauncherName = "thread") -> WorkerSpec:
    """A worker on that device."""
    return WorkerSpec(
        engine="transformers", model="m", engine_args={}, devices=(device,), launcher=launcher
    )


def test_each_thread_has_the_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """By UUID, since CUDA may count in another order than NVML; a process sees one GPU alone."""
    found = [SimpleNamespace(uuid="bbbb"), SimpleNamespace(uuid="aaaa"), SimpleNamespace()]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(found))
    monkeypatch.setattr(torch.cuda, "get_device_properties", found.__getitem__)
    assert device_name(spec(gpu(0, "GPU-aaaa"))) == "cuda:1"
    assert device_name(spec(gpu(1, "GPU-bbbb"))) == "cuda:0"
    assert device_name(spec(gpu(2, "GPU-cccc"))) == "cuda:2"
    assert device_name(spec(gpu(2))) == "cuda:2"
    assert device_name(spec(gpu(1, "GPU-bbbb"), "process")) == "cuda:0"
    core = Device(kind="cpu", index=1, name="CPU", cores=(1,))
    assert device_name(spec(core)) == "cpu"


def test_inputs_are_where_the_threads_model_is() -> None:
    """Each of two threads hands its model tensors of its own device, whatever the default is."""
    seen: dict[str, set[str]] = {"cpu": set(), "meta": set()}

    def run(name: str) -> None:
        def model(**inputs: Any) -> None:
            seen[name].update(tensor.device.type for tensor in inputs.values())

        model.config = SimpleNamespace()  # type: ignore[attr-defined]  # a stand-in for a model
        loaded = LoadedModel(
            model=model,
            tokenizer=SimpleNamespace(pad_token_type_id=0),
            device=torch.device(name),
            label=name,
            limit=None,
            vocabulary=9,
            pad_id=0,
            accepts=frozenset({"token_type_ids"}),
            notes=(),
        )
        for _ in range(20):
            forward(loaded, [Row(index=0, ids=(1, 2), types=(0, 1)), Row(index=1, ids=(1,))])

    threads = [threading.Thread(target=run, args=(name,)) for name in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {"cpu": {"cpu"}, "meta": {"meta"}}


def test_a_stopped_job_ends_within_a_batch(session: Session, tmp_path: Path) -> None:
    """What is answered is right and kept; the next job waits for the batch, and is right too."""
    model = tiny_models.bert(tmp_path)
    prompts = TEXTS * 200
    expected = tiny_models.logits(model, TEXTS, limit=64)
    asked(session, model, TEXTS[:2], batch_size=2)
    options: dict[str, Any] = {
        "engine": "transformers",
        "launcher": "thread",
        "task": "classify",
        "batch_size": 2,
    }
    run = session.submit(Options(model=model, prompts=prompts, **options).job())
    assert eventually(lambda: run.snapshot.job.done > 20, 20)
    began = time.monotonic()
    run.stop()
    with pytest.raises(JobInterrupted) as stopped:
        run.result(5)
    assert time.monotonic() - began < 1
    answered = [row for row in stopped.value.results if isinstance(row, Prediction)]
    assert 20 < len(answered) < len(prompts)
    for row in answered:
        assert list(row.values) == pytest.approx(expected[row.index % len(TEXTS)], abs=1e-5)
    assert values(asked(session, model, TEXTS, batch_size=2)) == close(expected)


def test_a_model_that_its_owner_trains_meanwhile(tmp_path: Path) -> None:
    """Training mode, with its dropout, or another place: it is put right before it is used."""
    path = tiny_models.bert(tmp_path)
    expected = tiny_models.logits(path, TEXTS, limit=64)
    model = AutoModelForSequenceClassification.from_pretrained(path)
    args = {"tokenizer": AutoTokenizer.from_pretrained(path)}
    with Session("cpu:1") as session:
        for _ in range(3):
            assert values(asked(session, model, TEXTS, engine_args=args)) == close(expected)
            model.train()


def test_vectors_of_a_model_that_pads_at_the_left(session: Session, tmp_path: Path) -> None:
    """XLNet's classifier reads the last place of a row; its vectors are of the tokens alone."""
    torch.manual_seed(0)
    config = XLNetConfig(vocab_size=tiny_models.SIZE, d_model=16, n_layer=1, n_head=2, d_inner=16)
    path = tiny_models.saved(tmp_path, XLNetModel(config).eval(), tiny_models.tokenizer())
    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path).eval()
    with torch.inference_mode():
        expected = [
            model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0).tolist()
            for text in TEXTS
        ]
    found = asked(session, path, TEXTS, task="embed", engine_args={"pooling": "mean"})
    assert values(found) == close(expected)


def test_choices_read_a_prompt_once(tmp_path: Path) -> None:
    """Choices of one token take one pass of the prompts, longer ones one more for all of them."""
    path = tiny_models.llama(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(path).eval()
    passes: Counter[int] = Counter()
    model.register_forward_pre_hook(
        lambda _, args, inputs: passes.update([inputs["input_ids"].shape[1]]), with_kwargs=True
    )
    args = {"tokenizer": AutoTokenizer.from_pretrained(path)}
    options: dict[str, Any] = {"task": "generate", "engine_args": args}
    prompts = ["the film was good"] * 4
    with Session("cpu:1") as session:
        asked(session, model, prompts, choices=["good", "bad"], **options)
        passes.clear()
        asked(session, model, prompts, choices=["good", "bad", "long"], **options)
        width = len(args["tokenizer"](prompts[0])["input_ids"])
        assert passes == {width: 1}
        passes.clear()
        asked(session, model, prompts, choices=["good", "bad and long", "very very bad"], **options)
        assert passes == {width: 1, 2: 1}
