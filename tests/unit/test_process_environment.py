"""What surrounds a worker process: its environment and its log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from mgpu_magic.launchers.process import environment, log_tail
from mgpu_magic.spec import Device, WorkerSpec


def gpu(index: int, mask: str) -> Device:
    """A GPU that is called by that entry of a mask."""
    return Device(kind="cuda", index=index, name="Tesla T4", mask=mask)


def cpu(*cores: int) -> Device:
    """A CPU device of these cores."""
    return Device(kind="cpu", index=0, name="CPU", cores=cores)


def variables(*devices: Device, path: tuple[Any, ...] = (), **base: str) -> dict[str, str]:
    """The environment of a worker on these devices."""
    spec = WorkerSpec(engine="echo", model="m", engine_args={}, devices=devices)
    return environment(spec, base, path)


@pytest.mark.parametrize("mask", ["3", "GPU-5a2f", "MIG-77"])
def test_a_worker_sees_its_gpu_alone(mask: str) -> None:
    """By the very entry of the kernel's mask, and not by its position there."""
    seen = variables(gpu(1, mask), CUDA_VISIBLE_DEVICES="0,3", HOME="/root")
    assert seen["CUDA_VISIBLE_DEVICES"] == mask
    assert seen["HOME"] == "/root"


def test_a_group_of_gpus_is_seen_in_its_order() -> None:
    """Rank 0 of a tensor-parallel group is its first device."""
    assert variables(gpu(2, "3"), gpu(3, "1"))["CUDA_VISIBLE_DEVICES"] == "3,1"


def test_gpus_are_counted_as_nvml_does() -> None:
    """Unless you chose another order yourself."""
    assert variables(gpu(0, "0"))["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    chosen = variables(gpu(0, "0"), CUDA_DEVICE_ORDER="FASTEST_FIRST")
    assert chosen["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


def test_gpu_workers_use_as_many_threads_as_you_let_them() -> None:
    """Only a CPU device decides about threads."""
    assert "OMP_NUM_THREADS" not in variables(gpu(0, "0"))
    assert variables(gpu(0, "0"), OMP_NUM_THREADS="3")["OMP_NUM_THREADS"] == "3"


def test_a_cpu_worker_sees_no_gpu_and_its_own_cores() -> None:
    """Whatever the kernel's own number of threads: the cores are shared out."""
    seen = variables(cpu(4, 5, 6), CUDA_VISIBLE_DEVICES="0,1", OMP_NUM_THREADS="64")
    assert seen["CUDA_VISIBLE_DEVICES"] == ""
    assert seen["OMP_NUM_THREADS"] == "3"


def test_a_worker_imports_what_the_kernel_would() -> None:
    """The kernel's `sys.path` in its order; the empty entry stands for the current directory.

    A `Path` in it, which Python ignores, does no harm.
    """
    seen = variables(cpu(0), path=("", "/mine", Path("/x"), "/usr/lib"), PYTHONPATH="/elsewhere")
    assert seen["PYTHONPATH"].split(os.pathsep) == [os.getcwd(), "/mine", "/usr/lib"]


def of_vllm(private: Path, **base: str) -> dict[str, str]:
    """The environment of a vLLM worker with a private folder."""
    spec = WorkerSpec(engine="vllm", model="m", engine_args={}, devices=(gpu(0, "0"),))
    return environment(spec, base, (), private)


def test_vllms_temporary_files_go_with_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """But not what was compiled; the user of a container may have no name."""

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 1000")

    monkeypatch.setattr("tempfile.tempdir", "/tmp")
    monkeypatch.setattr("getpass.getuser", nameless)
    seen = of_vllm(Path("/tmp/private"))
    assert seen["TMPDIR"] == "/tmp/private"
    assert seen["TORCHINDUCTOR_CACHE_DIR"] == f"/tmp/torchinductor_{os.getuid()}"
    assert of_vllm(Path("/p"), TORCHINDUCTOR_CACHE_DIR="/c")["TORCHINDUCTOR_CACHE_DIR"] == "/c"
    assert "TMPDIR" not in of_vllm(Path("/" + "long" * 20))  # no socket could be there


def test_output_is_not_held_back() -> None:
    """The last words of a killed worker are in its log."""
    assert variables(cpu(0))["PYTHONUNBUFFERED"] == "1"


def test_the_kernels_environment_is_not_changed() -> None:
    """The mapping that is passed in stays as it is."""
    base = {"CUDA_VISIBLE_DEVICES": "0,1"}
    spec = WorkerSpec(engine="echo", model="m", engine_args={}, devices=(gpu(0, "0"),))
    environment(spec, base)
    assert base == {"CUDA_VISIBLE_DEVICES": "0,1"}


# --- the log ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "tail"),
    [
        (b"", ""),
        (b"one\ntwo\n", "one\ntwo\n"),
        (b"first line\nsecond\nthird\n", "third\n"),
        (b"0123456789abcdef", "6789abcdef"),
        (b"\xff\xfe ok\n", "\ufffd\ufffd ok\n"),
    ],
)
def test_the_end_of_a_log(tmp_path: Path, log: bytes, tail: str) -> None:
    """Whole lines, ten bytes at most here, whatever the bytes are."""
    file = tmp_path / "worker.log"
    file.write_bytes(log)
    assert log_tail(file, 10) == tail


def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    """It never raises: it is asked for when something else went wrong."""
    missing = tmp_path / "worker.log"
    assert log_tail(missing) == (
        f"(the log cannot be read: [Errno 2] No such file or directory: '{missing}')"
    )
