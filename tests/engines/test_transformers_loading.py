"""Models are loaded whole, one at a time, or not at all; threads share nothing that matters."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertModel
from transformers.utils import logging as transformers_logging

from engines import tiny_models
from mgpu_magic import EngineError, Ensemble, Prediction, ResultSet, Session
from mgpu_magic.engines.transformers_load import load
from mgpu_magic.engines.transformers_settings import Settings
from mgpu_magic.spec import Device, WorkerSpec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEXTS = ["the film was good", "very bad", "I saw it and liked it very not", "why"]
IN_THREADS: dict[str, Any] = {"engine": "transformers", "launcher": "thread", "task": "classify"}


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A session on two CPU devices."""
    with Session("cpu:2") as session:
        yield session


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A BERT classifier."""
    return tiny_models.bert(tmp_path_factory.mktemp("bert"))


def asked(session: Session, model: Any, prompts: object = TEXTS, **options: Any) -> ResultSet:
    """The outcomes of one model."""
    results = session.generate(model, prompts, **{**IN_THREADS, **options})
    assert isinstance(results, ResultSet)
    return results


def values(results: ResultSet) -> list[Any]:
    """The numbers of each prompt, to be compared to 1e-5; none has failed."""
    assert results.failures == ()
    rows = [row for row in results if isinstance(row, Prediction)]
    return [pytest.approx(list(row.values), abs=1e-5) for row in rows]


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two models whose parts share a matrix, by name; such are the first to load wrong."""
    folder = tmp_path_factory.mktemp("tied")
    return {str(seed): tiny_models.bart(folder / str(seed), seed=seed) for seed in (0, 1)}


def test_threads_load_at_the_same_moment(tied: dict[str, str]) -> None:
    """Twenty times: each has its own weights, and so has who loads after them."""
    expected = [tiny_models.logits(path, TEXTS) for path in tied.values()]
    assert expected[0] != [pytest.approx(row, abs=0.1) for row in expected[1]]
    together = threading.Barrier(2)

    def loaded(path: str) -> list[Any]:
        device = Device(kind="cpu", index=0, name="CPU", cores=(0,))
        spec = WorkerSpec(
            engine="transformers",
            model=path,
            task="classify",
            launcher="thread",
            engine_args={},
            devices=(device,),
        )
        together.wait()
        made = load(spec, Settings())
        with torch.inference_mode():
            rows = [made.tokenizer(text, return_tensors="pt") for text in TEXTS]
            return [made.model(**row).logits[0].tolist() for row in rows]

    with ThreadPoolExecutor(2) as threads:
        for _ in range(20):
            found = list(threads.map(loaded, tied.values()))
            assert found == [[pytest.approx(row, abs=1e-5) for row in each] for each in expected]
    assert tiny_models.logits(tied["0"], TEXTS) == expected[0]


def test_an_ensemble_loads_in_threads(tied: dict[str, str]) -> None:
    """The same through a session, with no pause between the loads."""
    expected = {name: tiny_models.logits(path, TEXTS) for name, path in tied.items()}
    for _ in range(4):
        with Session("cpu:2") as session:
            results = session.generate(models=tied, prompts=TEXTS, stagger=0, **IN_THREADS)
        assert isinstance(results, Ensemble)
        assert {name: values(results[name]) for name in tied} == expected


def test_threads_share_no_tokenizer(session: Session, bert: str) -> None:
    """One object for two models of unlike limits, a hundred times: each cuts at its own."""
    shared = AutoTokenizer.from_pretrained(bert)
    limits = {"short": 8, "long": 64}
    models = {
        name: {"model": bert, "tokenizer": shared, "max_model_len": limit}
        for name, limit in limits.items()
    }
    texts = ["very " * 60 + "good", "the film was " * 20] * 10
    expected = {name: tiny_models.logits(bert, texts, limit=cut) for name, cut in limits.items()}
    for _ in range(100):
        results = session.generate(models=models, prompts=texts, **IN_THREADS)
        assert isinstance(results, Ensemble)
        for name in limits:
            assert values(results[name]) == expected[name]
    assert len(shared("very " * 60)["input_ids"]) == 62  # the user's own cuts nothing


def test_a_head_that_would_be_drawn_by_chance(session: Session, tmp_path: Path) -> None:
    """It is refused by the names of its weights; who wants chance says so."""
    path = tiny_models.bert(tmp_path)
    body = BertModel.from_pretrained(path)
    body.save_pretrained(path)
    with pytest.raises(EngineError, match=r"have no classifier\.bias, classifier\.weight: for "):
        asked(session, path)
    results = asked(session, path, engine_args={"allow_new_weights": True})
    assert all(len(row.values) == 3 for row in results if isinstance(row, Prediction))
    assert results.failures == ()


def test_weights_of_another_size(session: Session, tmp_path: Path) -> None:
    """A config that does not fit its weights is an error, in transformers' own words."""
    path = tiny_models.bert(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"vocab_size": ', '"vocab_size": 1'))
    with pytest.raises(EngineError, match="ignore_mismatched_sizes"):
        asked(session, path)


def test_a_model_without_weights(session: Session, bert: str) -> None:
    """Weights on the meta device would be garbage: said with a name and what to do."""
    model = AutoModelForSequenceClassification.from_pretrained(bert).to("meta")
    with pytest.raises(EngineError, match=r"word_embeddings\.weight was not loaded .* restart the"):
        asked(session, model)


def test_a_model_that_is_built_already(bert: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is used as it is, what is changed is said, and afterwards it is as it was."""
    model = AutoModelForSequenceClassification.from_pretrained(bert).train()
    with Session("cpu:1") as session:
        results = asked(session, model)
        assert not model.training
    assert "your BertForSequenceClassification was set to evaluation mode" in caplog.text
    assert values(results) == tiny_models.logits(bert, TEXTS)
    assert model.training
    assert sum(parameter.numel() for parameter in model.parameters()) > 1000
    assert model(torch.tensor([[2, 5, 3]])).logits.shape == (1, 3)


def test_a_built_model_needs_a_tokenizer(bert: str) -> None:
    """Where the model does not know its directory, the user is asked for one."""
    model = AutoModelForSequenceClassification.from_pretrained(bert)
    model.config.name_or_path = ""
    with Session("cpu:1") as session:
        with pytest.raises(EngineError, match="the tokenizer of your BertForSequenceClassifica"):
            asked(session, model)
        shared = AutoTokenizer.from_pretrained(bert)
        results = asked(session, model, engine_args={"tokenizer": shared})
        with pytest.raises(EngineError, match=r"engine_args\['dtype'\] is about loading"):
            asked(session, model, engine_args={"tokenizer": shared, "dtype": "float16"})
    assert values(results) == tiny_models.logits(bert, TEXTS)


def test_an_unknown_engine_argument(session: Session, bert: str) -> None:
    """It is named beside those that are known, before anything is loaded."""
    with pytest.raises(EngineError, match="no engine argument 'max_length'; known are dtype, "):
        asked(session, bert, engine_args={"max_length": 3})


@pytest.mark.parametrize("launcher", ["thread", "process"])
def test_an_adapter_with_its_head(session: Session, tmp_path: Path, launcher: str) -> None:
    """A base model without a head, an adapter that has it: the logits are peft's own."""
    import peft

    base = tiny_models.llama(tmp_path / "base")
    words = AutoTokenizer.from_pretrained(base)
    torch.manual_seed(1)
    fresh = AutoModelForSequenceClassification.from_pretrained(base, num_labels=3)
    settings = peft.LoraConfig(task_type="SEQ_CLS", r=2, init_lora_weights=False)
    adapted = peft.get_peft_model(fresh, settings).eval()
    adapted.save_pretrained(tmp_path / "adapter")
    with torch.inference_mode():
        expected = [
            adapted(**words(text, return_tensors="pt")).logits[0].tolist() for text in TEXTS
        ]
    results = asked(session, base, lora=str(tmp_path / "adapter"), launcher=launcher)
    assert values(results) == expected
    with pytest.raises(EngineError, match="adapter is an adapter, not a model; pass its base"):
        asked(session, str(tmp_path / "adapter"), launcher=launcher)


def test_a_dtype(session: Session, bert: str) -> None:
    """float32 on a CPU, unless another one is asked for; an unknown one is named."""
    exact = tiny_models.logits(bert, TEXTS)
    results = asked(session, bert, engine_args={"dtype": "bfloat16"})
    rows = [list(row.values) for row in results if isinstance(row, Prediction)]
    assert rows != [pytest.approx(row, abs=1e-5) for row in exact]
    assert rows == [pytest.approx(row, abs=0.2) for row in exact]
    with pytest.raises(EngineError, match="dtype is 'int3'; pass \"float16\", "):
        asked(session, bert, engine_args={"dtype": "int3"})


def test_loading_in_half_disturbs_no_other_thread(session: Session, tmp_path: Path) -> None:
    """Loading changes torch's default dtype for a moment; who computes does not notice."""
    paths = [tiny_models.bert(tmp_path / str(seed), seed=seed) for seed in (0, 1)]
    expected = tiny_models.logits(paths[0], TEXTS)
    done = threading.Event()

    def load() -> None:
        with Session("cpu:1") as other:
            while not done.is_set():
                asked(other, paths[1], ["good"], engine_args={"dtype": "bfloat16"})
                other.free()

    loader = threading.Thread(target=load)
    loader.start()
    try:
        for _ in range(40):
            assert values(asked(session, paths[0], TEXTS * 8, batch_size=2)) == expected * 8
    finally:
        done.set()
        loader.join()


def test_the_kernel_is_left_as_it_was(bert: str) -> None:
    """Progress bars, torch's threads, its default dtype: the notebook's own work goes on."""

    def state() -> list[object]:
        return [
            transformers_logging.is_progress_bar_enabled(),
            torch.get_num_threads(),
            torch.get_default_dtype(),
            torch.get_default_device(),
        ]

    before, found = state(), []
    with Session("cpu:2") as session:
        asked(session, bert)  # the second device may still load then; it has ended after the block
    thread = threading.Thread(target=lambda: found.append(state()))
    thread.start()
    thread.join()
    assert [state(), *found] == [before, before]
