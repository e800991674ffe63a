"""What tells a model's files from others."""

from __future__ import annotations

import json
import os
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest

from mgpu_magic import fingerprints
from mgpu_magic.errors import SpecError
from mgpu_magic.fingerprints import fingerprint


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model's directory."""
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "config.json").write_text("{}", encoding="utf-8")
    (folder / "sub" / "weights.bin").write_bytes(b"0123")
    return folder


def test_a_copy_is_the_same(model: Path, tmp_path: Path) -> None:
    """Wherever it lies, whenever it was copied, through links to each of its files too."""
    before = fingerprint(str(model))
    assert before is not None
    copy = copytree(model, tmp_path / "elsewhere" / "name")
    os.utime(copy / "config.json", (1, 1))
    assert fingerprint(str(copy)) == before
    linked = tmp_path / "linked"
    (linked / "sub").mkdir(parents=True)
    for file in ("config.json", "sub/weights.bin"):
        (linked / file).symlink_to(model / file)
    assert fingerprint(str(linked)) == before


@pytest.mark.parametrize(
    ("file", "text"),
    [("config.json", "[]"), ("sub/weights.bin", "0124"), ("tokenizer.json", "{}")],
)
def test_a_change_counts(model: Path, file: str, text: str) -> None:
    """Of a file that is there, and another file."""
    before = fingerprint(str(model))
    (model / file).write_text(text, encoding="utf-8")
    assert fingerprint(str(model)) != before


def test_a_name_counts(model: Path) -> None:
    """The same bytes under another name may be another part of the model."""
    before = fingerprint(str(model))
    (model / "sub").rename(model / "other")
    assert fingerprint(str(model)) != before


@pytest.mark.parametrize("file", ["README.md", "answers.jsonl", ".cache/download", ".hidden"])
def test_what_lies_beside_a_model_does_not_count(model: Path, file: str) -> None:
    """Words about it, a journal, and what a download remembers of itself."""
    before = fingerprint(str(model))
    (model / file).parent.mkdir(exist_ok=True)
    (model / file).write_text("x", encoding="utf-8")
    assert fingerprint(str(model)) == before


def test_one_file_is_its_content(tmp_path: Path) -> None:
    """As a GGUF file is: what it is called does not count."""
    one, other = tmp_path / "a.gguf", tmp_path / "b.gguf"
    one.write_bytes(b"abc")
    other.write_bytes(b"abc")
    assert fingerprint(str(one)) == fingerprint(str(other))
    other.write_bytes(b"abd")
    assert fingerprint(str(one)) != fingerprint(str(other))


def test_a_hub_id_has_no_files(tmp_path: Path) -> None:
    """None says that the name has to do."""
    assert fingerprint("org/model-of-nobody") is None


def safetensors(file: Path, tensors: dict[str, bytes]) -> None:
    """Write such a file."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, data in tensors.items():
        header[name] = {"data_offsets": [end, end + len(data)]}  # type: ignore[dict-item]
        end += len(data)
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(tensors.values()))


def test_each_tensor_of_a_big_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head of a few numbers that was trained alone is seen, in a file that is read in samples."""
    monkeypatch.setattr(fingerprints, "_WHOLE_BYTES", 1000)
    monkeypatch.setattr(fingerprints, "_END_BYTES", 1000)
    monkeypatch.setattr(fingerprints, "_BLOCKS", 4)
    random = np.random.default_rng(0)
    tensors = {name: random.bytes(100_000) for name in "abcdef"} | {"head": random.bytes(40)}
    tensors["last"] = random.bytes(100_000)
    file = tmp_path / "model.safetensors"
    safetensors(file, tensors)
    before = fingerprint(str(file))
    assert fingerprint(str(file)) == before
    for name in tensors:
        safetensors(file, {**tensors, name: random.bytes(len(tensors[name]))})
        assert fingerprint(str(file)) != before


@pytest.mark.parametrize("begin", [b"\xff" * 8, (4).to_bytes(8, "little") + b"[1] "])
def test_a_big_file_of_another_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: bytes
) -> None:
    """It is sampled at its ends and between, whatever its name says it is."""
    monkeypatch.setattr(fingerprints, "_WHOLE_BYTES", 1000)
    monkeypatch.setattr(fingerprints, "_END_BYTES", 1000)
    file = tmp_path / "model.safetensors"
    file.write_bytes(begin + bytes(50_000))
    before = fingerprint(str(file))
    for changed in (begin + bytes(49_999) + b"1", b"0" + begin[1:] + bytes(50_000)):
        file.write_bytes(changed)
        assert fingerprint(str(file)) != before


def test_a_file_that_cannot_be_read(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names it."""

    def refused(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(SpecError, match=r"model/config\.json of the model cannot be read \(Permis"):
        fingerprint(str(model))
