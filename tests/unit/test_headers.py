"""Weight files that are not what they should be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from model_files import LLAMA_8B, made, safetensors

from mgpu_magic.checkpoint import read_checkpoint

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("content", "what", "certain"),
    [
        (b"", "model.safetensors is no safetensors file that can be read (it has 0 bytes)", False),
        (bytes(100), "(its header would have 0 bytes)", False),
        (b"\xff" * 20, "(its header would have 18,446,744,073,709,551,615 bytes)", False),
        (b"\x02" + bytes(7) + b"[]", "(AttributeError)", False),
        (b"\x02" + bytes(7) + b"{}", "(it holds no tensors)", False),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n",
            "holds the address of the weights in place of them (Git LFS)",
            True,
        ),
    ],
)
def test_a_spoiled_file_is_a_finding(
    tmp_path: Path, content: bytes, what: str, certain: bool
) -> None:
    """It never ends the job by itself: an engine may know better what to do with it."""
    folder = made(tmp_path, LLAMA_8B)
    (tmp_path / "model.safetensors").write_bytes(content)
    found = read_checkpoint(folder, {})
    (trouble,) = found.troubles
    assert what in trouble.what
    assert trouble.certain is certain
    assert found.parameters is None


def test_a_cut_file_is_certain(tmp_path: Path) -> None:
    """Its header says how long it should be."""
    folder = made(tmp_path, LLAMA_8B)
    file = safetensors(tmp_path / "model.safetensors", {"w": ("BF16", (500,))}, cut=1)
    (trouble,) = read_checkpoint(folder, {}).troubles
    size = file.stat().st_size
    assert trouble.what == f"model.safetensors is cut: it has {size:,} of {size + 1:,} bytes"
    assert trouble.certain
