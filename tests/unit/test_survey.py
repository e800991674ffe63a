"""What is seen of the machine before a model is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from mgpu_magic import survey
from mgpu_magic.nvml import Nvml
from mgpu_magic.spec import Device, WorkerSpec
from mgpu_magic.survey import Living, built_for, look_around, offline, process_name, torch_build

if TYPE_CHECKING:
    from pathlib import Path

T4 = Device(kind="cuda", index=0, name="Tesla T4", mask="0")
CORES = Device(kind="cpu", index=0, name="CPU (1 core)", cores=(0,))


@pytest.mark.parametrize(
    ("version", "requires", "cuda"),
    [
        ("2.11.0+cu128", (), (12, 8)),
        ("2.6.0+cu118", (), (11, 8)),
        ("2.13.0+cu130", (), (13, 0)),
        ("2.13.0+cpu", ("nvidia-cuda-runtime-cu12==12.8.90",), None),
        ("2.9.0", ("filelock", "nvidia-cuda-runtime-cu12==12.8.90; sys_platform"), (12, 8)),
        ("2.12.0", ("nvidia-cuda-runtime (==13.0.48)",), (13, 0)),
        ("2.9.0", ("filelock",), None),
    ],
)
def test_the_cuda_of_a_build(
    version: str, requires: tuple[str, ...], cuda: tuple[int, int] | None
) -> None:
    """Its version tells, or what it requires; torch is not imported for that."""
    assert built_for(version, requires) == cuda


def test_the_installed_torch() -> None:
    """Named with its version."""
    build = torch_build()
    assert build is None or build.name.startswith("torch 2.")


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, ""),
        ({"HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "1"}, ""),
        ({"HF_HUB_OFFLINE": "no", "TRANSFORMERS_OFFLINE": "1"}, ""),
        ({"HF_HUB_OFFLINE": "0"}, ""),
        ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE=1"),
        ({"HF_HUB_OFFLINE": "", "TRANSFORMERS_OFFLINE": "yes"}, "TRANSFORMERS_OFFLINE=yes"),
        ({"HF_HUB_OFFLINE": "1", "VLLM_USE_MODELSCOPE": "True"}, ""),
    ],
)
def test_whether_the_hub_may_be_asked(environ: dict[str, str], said: str) -> None:
    """As the hub's own library reads these variables."""
    assert offline(environ) == said
    if "VLLM_USE_MODELSCOPE" not in environ:
        script = "from huggingface_hub import constants; print(constants.HF_HUB_OFFLINE)"
        kept = {name: value for name, value in os.environ.items() if "OFFLINE" not in name}
        asked = subprocess.check_output([sys.executable, "-c", script], env={**kept, **environ})
        assert asked.decode().strip() == str(bool(said))


def test_a_driver_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job goes on without its figures."""
    over = threading.Event()

    class Hanging(Nvml):
        def __init__(self) -> None:
            over.wait(30)
            super().__init__()

    monkeypatch.setattr(survey, "Nvml", Hanging)
    world = look_around([T4], (), {}, seconds=0.05)
    over.set()
    assert (world.seen, world.driver_cuda) == ({}, None)
    assert world.free_bytes


def test_the_host_is_seen_without_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On CPU devices nobody asks for NVML; our workers' memory there will be free again."""
    monkeypatch.setattr(survey, "free_host_bytes", lambda: 2**33)
    environ = {"HF_HOME": str(tmp_path / "a/b"), "VLLM_CPU_KVCACHE_SPACE": "3"}
    alone = look_around([CORES], (), environ)
    assert alone.disk_bytes
    assert alone.cpu_cache_bytes == 3 * 2**30
    assert (alone.seen, alone.build) == ({}, None)
    spec = WorkerSpec(engine="echo", model="m", engine_args={}, devices=(CORES,))
    ours = look_around([CORES], [Living(spec, os.getpid())], environ)
    assert alone.free_bytes == 2**33
    assert (ours.free_bytes or 0) > 2**33 + 2**24  # this process has more than 16 MiB


def proc(folder: Path, *, first: str = "kthreadd") -> Path:
    """A `/proc` with the process 4711."""
    for pid, name, command in (("2", first, b""), ("4711", "ollama", b"ollama\0serve\0")):
        (folder / pid).mkdir()
        (folder / pid / "comm").write_text(name + "\n")
        (folder / pid / "cmdline").write_bytes(command)
    return folder


def test_a_process_is_named_where_its_number_is_right(tmp_path: Path) -> None:
    """The driver counts as the machine does; in a container that number is another's."""
    (tmp_path / "machine").mkdir()
    (tmp_path / "container").mkdir()
    machine = proc(tmp_path / "machine")
    assert process_name(4711, machine) == "ollama"
    assert process_name(4712, machine) == ""
    assert process_name(os.getpid(), machine) == "this kernel"
    (machine / "4711/cmdline").write_bytes(b"python\0-P\0-m\0mgpu_magic.worker\x007\0")
    assert process_name(4711, machine) == "a worker of another session"
    assert process_name(4711, proc(tmp_path / "container", first="bash")) == ""
    assert process_name(4711, tmp_path / "nothing") == ""
