"""Code that comes with a model runs only where it was asked for by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from engines import tiny_models
from mgpu_magic import EngineError, Prediction, ResultSet, Session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CODE = """
from pathlib import Path
from transformers import BertConfig, BertForSequenceClassification
Path({mark!r}).touch()
class OwnConfig(BertConfig):
    model_type = "own_bert"
class OwnBert(BertForSequenceClassification):
    config_class = OwnConfig
"""


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """One CPU device; what models bring along is copied to a folder of the test."""
    modules = str(tmp_path / "modules")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", modules)
    monkeypatch.syspath_prepend(modules)
    with Session("cpu:1") as session:
        yield session


def own_model(folder: Path, mark: Path) -> str:
    """A BERT of a type that transformers does not know, with the code for it."""
    path = tiny_models.bert(folder)
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "own_bert"
    config["auto_map"] = {
        "AutoConfig": "own_code.OwnConfig",
        "AutoModelForSequenceClassification": "own_code.OwnBert",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own_code.py").write_text(CODE.format(mark=str(mark)))
    return path


def test_code_of_a_model_is_off_unless_asked_for(session: Session, tmp_path: Path) -> None:
    """Without the word nothing of it runs, and the error says which word; with it, it does."""
    mark = tmp_path / "ran"
    model = own_model(tmp_path / "model", mark)
    options: dict[str, Any] = {
        "engine": "transformers",
        "launcher": "thread",
        "task": "classify",
        "engine_args": {},
    }
    with pytest.raises(EngineError, match="trust_remote_code"):
        session.generate(model, ["very good"], **options)
    assert not mark.exists()
    results = session.generate(
        model, ["very good"], **{**options, "engine_args": {"trust_remote_code": True}}
    )
    assert isinstance(results, ResultSet)
    assert isinstance(results[0], Prediction)
    assert len(results[0].values) == len(tiny_models.LABELS)
    assert mark.exists()
