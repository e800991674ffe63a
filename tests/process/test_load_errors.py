"""What a failed load tells: first what and where, then the engine's own words, at some length."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from mgpu_magic import EngineError
from process.jobs import echo, ensemble
from process.living import run_script

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mgpu_magic import Session

    Machine = Callable[[int], dict[str, str]]

FAILED = """
import json, mgpu_magic
from process.jobs import job
with mgpu_magic.Session() as session:
    try:
        session.submit(job(["a"], model, engine_args={"fail_to_load": text})).result(10)
    except mgpu_magic.EngineError as error:
        print(json.dumps(str(error).splitlines()))
"""


def test_the_first_line_names_the_gpu_and_the_scheme(tmp_path: Path, gpus: Machine) -> None:
    """Of forty lines about kernels it is the one that says what does not fit to what."""
    folder = tmp_path / "model"
    folder.mkdir()
    config = {"quantization_config": {"quant_method": "compressed-tensors"}}
    (folder / "config.json").write_text(json.dumps(config))
    text = "Failed to find a kernel that can implement the WNA16 layer. Reasons:\n"
    text += "\n".join(f"kernel {i} needs compute capability 8.0" for i in range(39))
    script = f"model, text = {str(folder)!r}, {text!r}\n" + FAILED
    first, *lines = run_script(tmp_path, script, **gpus(1))
    assert first == (
        "model could not be loaded on cuda:0 (Tesla T4, compute capability 7.5; quantization "
        "compressed-tensors): RuntimeError: Failed to find a kernel that can implement the WNA16 "
        "layer. Reasons:"
    )
    assert lines[:39] == text.splitlines()[1:]


def test_an_error_of_ten_thousand_characters_is_cut_in_the_middle(session: Session) -> None:
    """In the cell, in the notes and where a row is shown; the error itself has all of it."""
    text = "begin " + "x" * 10_000 + " end"
    models = {"good": "m1", "bad": {"model": "m2", "fail_to_load": text}}
    with pytest.raises(EngineError) as failed:
        echo(session, ["a", "b"], engine_args={"fail_to_load": text})
    assert len(str(failed.value)) < 5_000
    assert str(failed.value).count("begin") == 2  # the message, and the end of the traceback
    assert text in failed.value.message
    assert text in failed.value.traceback
    assert len(repr(failed.value.results[0])) < 1_000
    results = ensemble(session, models, ["a"])
    assert text in results["bad"].failures[0].error.message
    (note,) = session.status().job.notes
    assert note.startswith("bad could not be loaded: cpu:1: RuntimeError: begin xxx")
    assert note.endswith("xxx end")
    assert len(note) == 400


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        ("ImportError('libcudart.so.13: cannot open shared object file')", "libcudart.so.13"),
        ("ValueError('numpy.dtype size changed, may indicate binary incompatibility')", "numpy"),
    ],
)
def test_a_vllm_that_cannot_be_imported_is_the_workers_trouble(
    tmp_path: Path, raised: str, words: str
) -> None:
    """Its own error is shown, and the kernel, which never imports it, goes on with others."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text(f"raise {raised}\n")
    script = """
import json, sys, mgpu_magic
from mgpu_magic.options import Options
with mgpu_magic.Session("cpu:1") as session:
    try:
        session.submit(Options(model="owner/name", prompts=["a"]).job()).result(20)
    except mgpu_magic.EngineError as error:
        said = [str(error).splitlines()[0], error.kind]
    texts = session.generate("m", ["a"], engine="echo", launcher="thread").texts
print(json.dumps([*said, texts, "vllm" in sys.modules]))
"""
    line, kind, texts, imported = run_script(tmp_path, script)
    assert line.startswith(f"owner/name could not be loaded on cpu:0: {kind}: ")
    assert words in line
    assert kind == raised.partition("(")[0]
    assert (texts, imported) == (["a"], False)
