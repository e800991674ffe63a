"""Where a model lies and how big it is, known before anything is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mgpu_magic.errors import SpecError
from mgpu_magic.weights import resolve, weights_bytes

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, size: int) -> Path:
    """A file of so many bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model in `models/tiny` of the current directory, which is also the home."""
    write(tmp_path / "models/tiny/model.safetensors", 10)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("model", ["models/tiny", "./models/tiny", "~/models/tiny", "models/tiny/"])
def test_a_directory_is_sent_as_an_absolute_path(folder: Path, model: str) -> None:
    """A worker finds the same directory, wherever it runs."""
    assert resolve(model) == str(folder / "models/tiny")


@pytest.mark.parametrize("model", ["Qwen/Qwen2.5-7B-Instruct-AWQ", "gpt2", "models/big"])
def test_a_hub_id_stays_as_it_is(folder: Path, model: str) -> None:
    """What is no directory here is left to the engine."""
    assert folder.exists()
    assert resolve(model) == model


@pytest.mark.parametrize(
    ("model", "known"),
    [
        ("/nowhere/models/tiny", "/"),
        ("./models/big", "models"),
        ("../nowhere/big", ".."),
        ("~/models/big/1", "{folder}/models"),
    ],
)
def test_a_path_to_nothing_is_refused(folder: Path, model: str, known: str) -> None:
    """It names the part of the path that exists; an engine would take it for a bad hub id."""
    with pytest.raises(SpecError) as refused:
        resolve(model)
    assert str(refused.value) == (
        f"model {model!r}: there is no such directory ({known.format(folder=folder)} exists); "
        "pass the directory that holds config.json, or a hub id"
    )


def test_the_size_of_a_directory(tmp_path: Path) -> None:
    """All shards count, in folders below too; what is no weight does not."""
    write(tmp_path / "model-1.safetensors", 10)
    write(tmp_path / "unet/model-2.safetensors", 20)
    write(tmp_path / "tokenizer.json", 1000)
    assert weights_bytes(str(tmp_path), {}) == 30


def test_one_format_counts(tmp_path: Path) -> None:
    """A directory with the same weights in two formats is not twice as big."""
    write(tmp_path / "pytorch_model.bin", 40)
    assert weights_bytes(str(tmp_path), {}) == 40
    write(tmp_path / "model.safetensors", 30)
    assert weights_bytes(str(tmp_path), {}) == 30


def test_the_size_of_a_file(tmp_path: Path) -> None:
    """A model may be one file."""
    assert weights_bytes(str(write(tmp_path / "model.gguf", 7)), {}) == 7


@pytest.mark.parametrize(
    ("variables", "cache"),
    [
        ({"HF_HUB_CACHE": "{0}/hub", "HF_HOME": "/elsewhere"}, "hub"),
        ({"HF_HOME": "{0}/hf"}, "hf/hub"),
        ({"XDG_CACHE_HOME": "{0}/xdg"}, "xdg/huggingface/hub"),
        ({}, ".cache/huggingface/hub"),
    ],
)
def test_the_size_of_a_downloaded_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], cache: str
) -> None:
    """It is read from the hub's cache, where a file that two revisions share counts once."""
    monkeypatch.setenv("HOME", str(tmp_path))
    model = tmp_path / cache / "models--org--tiny"
    blob = write(model / "blobs/abc", 12)
    for revision in ("one", "two"):
        link = model / "snapshots" / revision / "model.safetensors"
        link.parent.mkdir(parents=True)
        link.symlink_to(blob)
    environ = {name: value.format(tmp_path) for name, value in variables.items()}
    assert weights_bytes("org/tiny", environ) == 12
    assert weights_bytes("org/other", environ) is None


def test_a_model_without_weights_has_no_size(tmp_path: Path) -> None:
    """Unknown is None, not 0: it counts as a model of mean size."""
    write(tmp_path / "config.json", 5)
    assert weights_bytes(str(tmp_path), {}) is None
    write(tmp_path / "model.safetensors", 0)
    assert weights_bytes(str(tmp_path), {}) is None
