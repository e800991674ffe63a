"""Several classifiers on fewer devices, one of them broken: one job, as a submission needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import small_classifiers
import small_model

from mgpu_magic import Ensemble, Failure, Session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mgpu_magic.spec import LauncherName

TEXTS, TRUTH = small_classifiers.comments(60, seed=9)


@pytest.fixture(scope="module")
def models() -> dict[str, str]:
    """Three classifiers, and one whose head was never trained."""
    paths = {name: str(path) for name, path in small_classifiers.paths().items()}
    return {"minilm": paths["minilm"], "broken": str(small_model.embedder()), **paths}


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A session on two CPU devices."""
    with Session("cpu:2") as session:
        yield session


def reference(path: str, texts: list[str]) -> Any:
    """Logits of a single thread, one text at a time."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForSequenceClassification.from_pretrained(path).eval()
    with torch.inference_mode():
        rows = [model(**tokenizer(text, return_tensors="pt")).logits[0] for text in texts]
    return torch.stack(rows).numpy()


def scored(
    session: Session, models: dict[str, Any], launcher: LauncherName, **options: Any
) -> Ensemble:
    """The results of all models."""
    results = session.generate(
        models=models, engine="transformers", launcher=launcher, task="classify", **options
    )
    assert isinstance(results, Ensemble)
    return results


@pytest.mark.parametrize("launcher", ["thread", "process"])
def test_a_broken_model_leaves_the_others_results(
    session: Session, models: dict[str, str], launcher: LauncherName
) -> None:
    """The logits of each other model are those of a single thread; the cell names the broken."""
    results = scored(session, models, launcher, prompts=TEXTS)
    for name in ("minilm", "bert", "llama"):
        logits = results[name].logits
        assert logits.shape == (60, 2)
        assert logits.dtype == np.float32
        assert np.allclose(logits, reference(models[name], TEXTS), atol=1e-5)
    broken = results["broken"]
    assert [type(item) for item in broken] == [Failure] * 60
    assert "classifier.weight" in broken.failures[0].error.message
    notes = [note for note in session.status().job.notes if note.startswith("broken could not")]
    assert len(notes) == 1
    assert "classifier.weight" in notes[0]
    mean = results.mean()
    others = [results[name].logits for name in ("minilm", "bert", "llama")]
    assert np.allclose(mean, np.mean(others, axis=0), atol=1e-5)
    assert small_classifiers.accuracy(results.vote(), TRUTH) > 0.9
    frame = results.to_pandas()
    assert frame["llama_label"].tolist() == results["llama"].labels
    assert frame["broken_error"].notna().all()
    session.free()


def test_each_model_may_have_its_own_prompts(session: Session, models: dict[str, str]) -> None:
    """Rows belong to the prompts of their model."""
    asked = {
        "minilm": {"model": models["minilm"], "prompts": TEXTS[:7]},
        "bert": {"model": models["bert"], "prompts": TEXTS[20:40]},
        "llama": models["llama"],
    }
    results = scored(session, asked, "thread", prompts=TEXTS[:3])
    wanted = {"minilm": TEXTS[:7], "bert": TEXTS[20:40], "llama": TEXTS[:3]}
    for name, texts in wanted.items():
        assert np.allclose(results[name].logits, reference(models[name], texts), atol=1e-5)
    with pytest.raises(ValueError, match="'minilm' and 'bert' had different prompts"):
        results.mean()
    session.free()


def test_the_last_model_runs_wherever_a_device_becomes_free(
    session: Session, models: dict[str, str]
) -> None:
    """Of three models on two devices none waits for the largest to be done on the other device."""
    third = {name: models[name] for name in ("minilm", "bert", "llama")}
    results = scored(session, third, "thread", prompts=TEXTS * 4, batch_size=1)
    used = {name: {item.device for item in own} for name, own in results.items()}  # type: ignore[union-attr]  # all are predictions
    assert used["minilm"] == {"cpu:0"}
    assert "cpu:1" in used["bert"] | used["llama"]
    assert np.allclose(results["bert"].logits[:60], reference(models["bert"], TEXTS), atol=1e-5)
    session.free()
