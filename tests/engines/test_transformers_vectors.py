"""Embeddings of the transformers engine."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from engines import tiny_models
from mgpu_magic import EngineError, Failure, Prediction, ResultSet, Session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEXTS = ["the film was very good", "bad", "I saw it"]


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A session on two CPU devices."""
    with Session("cpu:2") as session:
        yield session


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A BERT that says nothing of pooling."""
    return tiny_models.bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def states(bert: str) -> list[Any]:
    """The last layer's states of each text, tokens by numbers."""
    words, model = AutoTokenizer.from_pretrained(bert), AutoModel.from_pretrained(bert).eval()
    with torch.inference_mode():
        return [model(**words(text, return_tensors="pt")).last_hidden_state[0] for text in TEXTS]


def embedded(session: Session, model: str, prompts: object = TEXTS, **options: Any) -> ResultSet:
    """The outcomes; in a thread, unless the options say otherwise."""
    chosen = {"engine": "transformers", "launcher": "thread", "task": "embed", **options}
    results = session.generate(model, prompts, **chosen)
    assert isinstance(results, ResultSet)
    return results


def vectors(results: ResultSet) -> list[list[float]]:
    """The vector of each prompt; none has failed."""
    assert results.failures == ()
    return [list(row.values) for row in results if isinstance(row, Prediction)]


def cosine(one: list[float], two: list[float]) -> float:
    """Of two vectors of length 1."""
    return sum(a * b for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("launcher", ["thread", "process"])
def test_a_sentence_transformer(session: Session, minilm: str, launcher: str) -> None:
    """MiniLM's own files say mean, length 1 and 256 tokens; a cat is nearer to a dog."""
    texts = ["cat", "dog", "car engine", "cat " * 400, "cat " * 254]
    results = embedded(session, minilm, texts, launcher=launcher)
    cat, dog, engine, long, whole = vectors(results)
    assert len(cat) == 384
    assert math.hypot(*cat) == pytest.approx(1, abs=1e-6)
    assert cosine(cat, dog) == pytest.approx(0.66, abs=0.01)
    assert cosine(cat, engine) == pytest.approx(0.32, abs=0.01)
    last = results[3]
    assert isinstance(last, Prediction)
    assert (last.prompt_tokens, last.cut_tokens) == (256, 146)
    assert long == pytest.approx(whole, abs=1e-6)


def test_vectors_are_those_of_transformers(session: Session, minilm: str) -> None:
    """Mean over the tokens of the last layer, one text at a time, to 1e-5."""
    texts = ["a cat", "the film that I saw yesterday was very long and not good at all", "!"]
    words, model = AutoTokenizer.from_pretrained(minilm), AutoModel.from_pretrained(minilm).eval()
    with torch.inference_mode():
        means = [
            model(**words(text, return_tensors="pt")).last_hidden_state[0].mean(0) for text in texts
        ]
    expected = [(mean / mean.norm()).tolist() for mean in means]
    found = vectors(embedded(session, minilm, texts))
    assert found == [pytest.approx(vector, abs=1e-5) for vector in expected]


@pytest.mark.parametrize(
    ("pooling", "pick"),
    [("mean", lambda s: s.mean(0)), ("cls", lambda s: s[0]), ("last", lambda s: s[-1])],
)
def test_the_user_chooses(
    session: Session, bert: str, states: Any, pooling: str, pick: Any
) -> None:
    """Pooling and normalisation by name, padding never counted in."""
    plain = [pick(state).tolist() for state in states]
    found = vectors(embedded(session, bert, engine_args={"pooling": pooling}))
    assert found == [pytest.approx(vector, abs=1e-5) for vector in plain]
    options = {"pooling": pooling, "normalize": True}
    unit = vectors(embedded(session, bert, engine_args=options))
    assert unit == [
        pytest.approx([number / math.hypot(*vector) for number in vector], abs=1e-5)
        for vector in plain
    ]


def test_a_model_that_says_nothing(
    session: Session, bert: str, states: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The mean as it is, which is said once, with the names of the choices."""
    found = vectors(embedded(session, bert))
    assert found == [pytest.approx(state.mean(0).tolist(), abs=1e-5) for state in states]
    assert caplog.text.count("not normalised: the model says nothing of it; choose with") == 1


def test_modules_that_are_not_known(session: Session, tmp_path: Path) -> None:
    """A vector that would be another than the authors' is refused, unless the user chooses."""
    path = tiny_models.bert(tmp_path)
    modules = [
        {"type": f"sentence_transformers.models.{kind}", "path": kind}
        for kind in ("Transformer", "Pooling", "Dense")
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(EngineError, match="files ask for the module Dense, which is not known"):
        embedded(session, path)
    modules.pop()
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "Pooling").mkdir()
    pooling = tmp_path / "Pooling" / "config.json"
    pooling.write_text('{"pooling_mode_max_tokens": true, "pooling_mode_mean_tokens": true}')
    with pytest.raises(EngineError, match="pooling by pooling_mode_max_tokens and pooling_mode_me"):
        embedded(session, path)
    pooling.write_text('{"pooling_mode": "cls"}')
    cls = vectors(embedded(session, path))
    assert cls == vectors(embedded(session, path, engine_args={"pooling": "cls"}))
    assert cls != vectors(embedded(session, path, engine_args={"pooling": "mean"}))


def test_a_pair_has_no_embedding(session: Session, minilm: str) -> None:
    """Its row says which tasks read pairs; token ids beside it are read as they are."""
    text, pair, ids = embedded(session, minilm, ["cat", ("a", "b"), [101, 4937, 102]])
    assert isinstance(text, Prediction)
    assert isinstance(ids, Prediction)
    assert list(ids.values) == pytest.approx(list(text.values), abs=1e-6)
    assert isinstance(pair, Failure)
    assert "a pair of texts, which the tasks classify and score read" in pair.error.message
