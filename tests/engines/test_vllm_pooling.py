"""Embeddings, logits and scores of vLLM's pooling models."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from mgpu_magic import EngineError, Failure, Prediction, ResultSet, Session

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from mgpu_magic.outcomes import Outcome

ENGINE_ARGS = {"dtype": "float32"}
LABELS = ("bad", "fair", "good")
TEXTS = ["cat", "a much longer text about a dog that barks at a car", "ok"]
PAIRS = [("cat", "dog"), ("What is a cat?", "A cat is an animal that purrs."), ("a", "b")]


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A session with one worker at a time."""
    with Session("cpu:1") as session:
        yield session


def classifier(folder: Path, tokenizer: str, labels: Sequence[str]) -> str:
    """A BERT with a classification head and random weights, large enough to tell texts apart."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    words = AutoTokenizer.from_pretrained(tokenizer)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=64,
        initializer_range=0.3,
        num_labels=len(labels),
        id2label=dict(enumerate(labels)),
        label2id={label: number for number, label in enumerate(labels)},
    )
    BertForSequenceClassification(config).eval().save_pretrained(folder)
    words.save_pretrained(folder)
    return str(folder)


def logits(model: str, prompts: Sequence[Any]) -> list[list[float]]:
    """What transformers computes, one prompt after the other."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    loaded = AutoModelForSequenceClassification.from_pretrained(model, dtype=torch.float32).eval()
    found = []
    for prompt in prompts:
        texts = (prompt,) if isinstance(prompt, str) else prompt
        with torch.inference_mode():
            found.append(loaded(**tokenizer(*texts, return_tensors="pt")).logits[0].tolist())
    return found


def asked(session: Session, model: str, prompts: object, task: str, **options: Any) -> ResultSet:
    """What a task makes of the prompts."""
    results = session.generate(model, prompts, task=task, engine_args=ENGINE_ARGS, **options)
    assert isinstance(results, ResultSet)
    return results


def predictions(rows: Sequence[Outcome]) -> list[Prediction]:
    """All of them; none has failed."""
    found = [row for row in rows if isinstance(row, Prediction)]
    assert found == list(rows)
    return found


def cosine(one: Prediction, two: Prediction) -> float:
    """Of two vectors of length 1."""
    return sum(a * b for a, b in zip(one.values, two.values, strict=True))


# --- an embedding model ----------------------------------------------------------------------


def test_embeddings(session: Session, minilm: str) -> None:
    """A cat is nearer to a dog than to an engine; the vectors are normalised as the model says."""
    rows = asked(session, minilm, ["cat", "dog", "car engine", "", "x " * 400, "\ud800"], "embed")
    cat, dog, engine = predictions(rows[:3])
    assert {(row.task, len(row.values), row.labels) for row in (cat, dog, engine)} == {
        ("embed", 384, ())
    }
    assert math.hypot(*cat.values) == pytest.approx(1, abs=1e-4)
    assert cosine(cat, dog) == pytest.approx(0.66, abs=0.01)
    assert cosine(cat, engine) == pytest.approx(0.32, abs=0.01)
    assert (cat.prompt_tokens, engine.prompt_tokens, cat.probabilities) == (3, 4, ())
    long, surrogate = rows.failures[-2:]
    assert (long.index, long.error.kind) == (4, "VLLMValidationError")
    assert "a lone surrogate at position 0" in surrogate.error.message


def test_a_pair_has_no_embedding(session: Session, minilm: str) -> None:
    """Its row says which tasks read pairs; texts and token ids beside it are answered."""
    text, pair, ids = asked(
        session, minilm, ["cat", {"text": "a", "text_pair": "b"}, [101, 4937, 102]], "embed"
    )
    assert isinstance(text, Prediction)
    assert isinstance(ids, Prediction)
    assert cosine(text, ids) == pytest.approx(1, abs=1e-4)
    assert isinstance(pair, Failure)
    assert (
        "a pair of texts, which vLLM reads for the tasks classify and score" in pair.error.message
    )


def test_a_sampling_of_another_task_is_one_error(session: Session, minilm: str) -> None:
    """A pooling model has no `max_tokens`; it is said once and in vLLM's words."""
    with pytest.raises(EngineError, match="Unexpected keyword argument 'max_tokens'"):
        asked(session, minilm, ["cat", "dog"], "embed", max_tokens=4)


def test_scores_of_an_embedding_model(session: Session, minilm: str) -> None:
    """The score of a pair is the cosine of its two vectors."""
    rows = asked(session, minilm, [("cat", "dog"), ("cat", "car engine"), ("cat", "")], "score")
    near, far = predictions(rows[:2])
    assert (near.task, near.activation, near.labels) == ("score", "none", ())
    assert list(near.values) == pytest.approx([0.66], abs=0.01)
    assert list(far.values) == pytest.approx([0.32], abs=0.01)
    assert near.prompt_tokens == 6


def test_a_model_without_a_head_cannot_classify(session: Session, minilm: str) -> None:
    """It is said while loading, with what the model can do, instead of row by row."""
    with pytest.raises(EngineError, match="could not be loaded") as caught:
        asked(session, minilm, ["cat"], "classify")
    assert "the task is 'classify'; vLLM knows this model for" in caught.value.args[0]
    assert "embed" in caught.value.args[0]


# --- models with a classification head -------------------------------------------------------


def test_logits_are_those_of_transformers(session: Session, minilm: str, tmp_path: Path) -> None:
    """Texts and pairs, before any activation; labels and activation are the config's."""
    model = classifier(tmp_path / "model", minilm, LABELS)
    prompts: list[Any] = [*TEXTS, *PAIRS]
    rows = predictions(asked(session, model, prompts, "classify"))
    expected = logits(model, prompts)
    for row, wanted in zip(rows, expected, strict=True):
        assert list(row.values) == pytest.approx(wanted, abs=1e-3)
        assert (row.task, row.labels, row.activation) == ("classify", LABELS, "softmax")
        assert row.label == LABELS[wanted.index(max(wanted))]
    assert min(abs(a - b) for a, b in zip(expected[0], expected[1], strict=True)) > 0.01

    long, good, surrogate = asked(session, model, ["x " * 100, "cat", ("a", "b\ud800")], "classify")
    assert isinstance(long, Failure)
    assert "maximum context length is 64 tokens" in long.error.message
    assert isinstance(good, Prediction)
    assert isinstance(surrogate, Failure)
    assert "a lone surrogate at position 1" in surrogate.error.message


def test_scores_of_a_cross_encoder(session: Session, minilm: str, tmp_path: Path) -> None:
    """Both texts are read at once, each with its own type; the model's activation is applied."""
    model = classifier(tmp_path / "model", minilm, ["relevant"])
    rows = predictions(asked(session, model, PAIRS, "score"))
    for row, (wanted,) in zip(rows, logits(model, PAIRS), strict=True):
        assert list(row.values) == pytest.approx([1 / (1 + math.exp(-wanted))], abs=1e-3)
        assert (row.task, row.labels) == ("score", ())
    assert len({round(row.values[0], 3) for row in rows}) == len(PAIRS)
    (long, good) = asked(session, model, [("a", "x " * 100), PAIRS[0]], "score")
    assert isinstance(long, Failure)
    assert isinstance(good, Prediction)
    assert list(good.values) == pytest.approx(list(rows[0].values), abs=1e-4)
