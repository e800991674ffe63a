"""What a cell says before anything is loaded, and `%multigpu check`."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import fake_nvml
import pytest
import small_model
from fake_nvml import GIB, FakeGpu
from model_files import LLAMA_8B, QWEN_7B, QWEN_AWQ, made

from notebook.live import Notebook

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

T4S = (FakeGpu(uuid="GPU-0"), FakeGpu(uuid="GPU-1"))
P100 = FakeGpu(uuid="GPU-0", name="Tesla P100-PCIE-16GB", capability=(6, 0), total_bytes=16 * GIB)


@contextmanager
def machine(folder: Path, *gpus: FakeGpu, cuda: int = 0, **variables: str) -> Iterator[Notebook]:
    """A notebook on a machine with these GPUs, where vLLM is the engine."""
    library = fake_nvml.build(folder)
    fake_nvml.write_config(folder / "machine", gpus, cuda=cuda)
    environ = fake_nvml.environment(library.parent, folder / "machine")
    notebook = Notebook(folder, {**environ, **variables})
    try:
        notebook.load()
        notebook.run("%config MultiGPU.devices = 'all'\n%config MultiGPU.engine = 'vllm'")
        yield notebook
    finally:
        notebook.close()


def refused(notebook: Notebook, source: str) -> str:
    """What the cell says: that alone, and no worker was started for it."""
    cell = notebook.run(f"{source}\nprompts = ['a', 'b']")
    assert (cell.errors, cell.stdout, cell.displays, notebook.workers()) == ([], "", [], [])
    return cell.stderr.removeprefix("UsageError: ").rstrip("\n")


def test_two_t4_and_bfloat16(tmp_path: Path) -> None:
    """Asked for, it is refused in one sentence for both cards, with vLLM's own hint."""
    model = made(tmp_path / "qwen", {**QWEN_7B, "max_position_embeddings": 512}, 1000)
    with machine(tmp_path, *T4S) as notebook:
        source = f"%%multigpu {model}\nengine_args = {{'dtype': 'bfloat16'}}"
        assert refused(notebook, source) == (
            'qwen: cuda:0, cuda:1: dtype is "bfloat16"; Tesla T4 (7.5) does not have it (8.0 does).'
            ' Use dtype="half", or leave dtype out.'
        )


def test_a_model_that_is_too_large_and_asked_for_wrongly(tmp_path: Path) -> None:
    """What is wrong is said at once, in one table."""
    model = made(tmp_path / "llama", LLAMA_8B, 16 * GIB)
    with machine(tmp_path, *T4S) as notebook:
        source = f"%%multigpu {model}\nengine_args = {{'dtype': 'bfloat16'}}"
        headline, header, dtype, memory = refused(notebook, source).splitlines()
        assert headline == "llama cannot be loaded:"
        assert header.split() == ["device", "finding", "fix"]
        assert dtype.startswith('cuda:0, cuda:1  dtype is "bfloat16"; Tesla T4 (7.5)')
        assert re.split("  +", memory) == [
            "cuda:0, cuda:1",
            "the weights take 16.0 GiB; Tesla T4 has 15.0 GiB",
            "Use --tensor-parallel-size 2, or a quantised model (AWQ, GPTQ).",
        ]
        assert memory.index("Use ") == dtype.index("Use ") == header.index("fix")


def test_a_device_that_somebody_else_fills(tmp_path: Path) -> None:
    """The device, its free memory and who uses it: not, minutes later, a full KV cache."""
    model = made(tmp_path / "qwen", {**QWEN_AWQ, "max_position_embeddings": 4096}, 5 * GIB)
    full = FakeGpu(uuid="GPU-1", used_bytes=12 * GIB, processes={999999: 12 * GIB})
    with machine(tmp_path, T4S[0], full) as notebook:
        assert refused(notebook, f"%%multigpu {model} --devices 0,1\n") == (
            "qwen: cuda:1: the weights take 5.0 GiB; 3.0 of 15.0 GiB are free, used by pid 999999 "
            "with 12.0 GiB. Free the device, or choose others with --devices."
        )


def test_a_p100(tmp_path: Path) -> None:
    """Not supported by vLLM, whatever the model."""
    model = made(tmp_path / "llama", LLAMA_8B, 15 * GIB)
    with machine(tmp_path, P100, cuda=12040) as notebook:
        assert refused(notebook, f"%%multigpu {model}\n") == (
            "llama: cuda:0: the device is a Tesla P100-PCIE-16GB (6.0); vLLM needs compute "
            "capability 7.0. Choose T4 x2 or L4 x4 on Kaggle, or --engine transformers."
        )


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_without_the_model(notebook: Notebook, tmp_path: Path, name: str) -> None:
    """Said at once, for a variable that the notebook has set, with the folder looked in."""
    notebook.run(
        f"import os\nos.environ['{name}'] = '1'\nos.environ['HF_HOME'] = {str(tmp_path)!r}"
    )
    assert refused(notebook, "%%multigpu org/model --engine vllm\n") == (
        "org/model: this is no directory here, and is not in "
        f"{tmp_path}/hub/models--org--model; {name}=1 forbids the hub. Pass the directory that "
        "holds config.json, or unset the variable."
    )


def test_check_says_where_a_model_fits(tmp_path: Path) -> None:
    """Its figures, each device's room, and how many copies; options are those of the cell."""
    model = made(tmp_path / "qwen", QWEN_AWQ, 5 * GIB, kind="I32")
    with machine(tmp_path, *T4S, cuda=12040) as notebook:
        lines = (notebook.run(f"%multigpu check {model}").result or "").splitlines()
        assert lines == [
            "qwen: 10.7 billion parameters, 5.0 GiB of weights, float16, awq (4 bit), 152,064 "
            "tokens in its vocabulary, Qwen2ForCausalLM",
            "KV cache: 54.7 MiB per 1,000 tokens; made for 32,768 tokens",
            "device           memory    free      weights  left for KV cache  full sequences"
            "      fits",
            "cuda:0 Tesla T4  15.0 GiB  15.0 GiB  5.0 GiB  about 7.8 GiB      4 of 32,768 tokens"
            "  yes",
            "cuda:1 Tesla T4  15.0 GiB  15.0 GiB  5.0 GiB  about 7.8 GiB      4 of 32,768 tokens"
            "  yes",
            "",
            "2 replicas fit: cuda:0, cuda:1.",
        ]
        options = "--max-model-len 4096 --tensor-parallel-size 2"
        text = notebook.run(f"%multigpu check {model} {options}").result or ""
        assert "54.7" not in text
        assert "27.3 MiB per 1,000 tokens on each of 2 devices" in text
        assert "1 replica fits, each on 2 devices: cuda:0+1." in text


def test_check_agrees_with_the_cell(tmp_path: Path) -> None:
    """A full device is left out, unless it is named."""
    model = made(tmp_path / "qwen", QWEN_AWQ, 5 * GIB, kind="I32")
    full = FakeGpu(uuid="GPU-1", used_bytes=12 * GIB, processes={999999: 12 * GIB})
    with machine(tmp_path, T4S[0], full) as notebook:
        text = notebook.run(f"%multigpu check {model}").result or ""
        assert "1 replica fits: cuda:0.\n" in text
        assert "3.0 of 15.0 GiB are free, used by pid 999999" in text
        text = notebook.run(f"%multigpu check {model} --devices 0,1").result or ""
        assert "1 replica fits: cuda:0. A cell that names the others too is refused." in text


def test_check_says_what_to_change(tmp_path: Path) -> None:
    """A model of 16 GiB on two T4 needs both."""
    model = made(tmp_path / "llama", LLAMA_8B, 15 * GIB)
    with machine(tmp_path, *T4S) as notebook:
        cell = notebook.run(f"%multigpu check {model}")
        text = cell.result or ""
        assert "It fits with --tensor-parallel-size 2: 2 devices hold one copy." in text
        assert (
            "llama: cuda:0, cuda:1: float16 instead of the model's bfloat16, which Tesla T4 (7.5) "
            "does not have." in text
        )
        assert "<table" in cell.contents("execute_result")[0]["data"]["text/html"]


def test_check_of_a_real_model_on_cpu_devices(shared: Notebook) -> None:
    """SmolLM2: what it is and where it fits, without NVML, in a moment."""
    cell = shared.run(f"%multigpu check {small_model.path()} --engine vllm --devices cpu:2")
    assert not cell.stderr
    size, cache, _, first, second, _, verdict = (cell.result or "").splitlines()
    assert size == (
        "smollm2-135m-instruct: 134.5 million parameters, 257 MiB of weights, bfloat16, 49,152 "
        "tokens in its vocabulary, LlamaForCausalLM"
    )
    assert cache == "KV cache: 22.0 MiB per 1,000 tokens; made for 8,192 tokens"
    assert first.startswith("cpu:0 CPU (")
    assert second.startswith("cpu:1 CPU (")
    assert " 257 MiB " in first
    assert first.endswith(" tokens  yes")
    assert verdict == "2 replicas fit: cpu:0, cpu:1."


def test_check_needs_a_model(shared: Notebook) -> None:
    """And knows the cell's options."""
    assert "name a model" in shared.run("%multigpu check").stderr
    assert "unrecognized arguments: --nope" in shared.run("%multigpu check m --nope").stderr
    assert "there is no such directory" in shared.run("%multigpu check /nope --engine vllm").stderr
    assert (shared.run("%multigpu check m").result or "").startswith("m: the engine echo loads no")
