"""What workers and sessions leave on the disk and in shared memory: nothing."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest

from mgpu_magic import Session
from mgpu_magic.options import Options
from process.jobs import echo, result
from process.living import eventually, start_script, wait_for, workers

SHARED_MEMORY = Path("/dev/shm")  # what is left there is the subject


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files of the test's own."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def holds_shared_memory(device: str) -> Any:
    """For a worker: takes a block and a semaphore that have names, as vLLM does."""
    import multiprocessing
    from multiprocessing.shared_memory import SharedMemory

    return SharedMemory(create=True, size=2**20), multiprocessing.get_context("spawn").Lock()


def gets_stuck(state: object, batch: list[str]) -> list[str]:
    """For a worker: waits to be killed."""
    import time

    time.sleep(60)
    return batch


@pytest.mark.parametrize("end", ["killed", "restart"])
def test_shared_memory_of_a_killed_worker_is_released(session: Session, end: str) -> None:
    """Python's resource tracker is given the time to unlink what the dead have left."""
    before = set(os.listdir(SHARED_MEMORY))
    options = Options(load=holds_shared_memory, predict=gets_stuck, prompts=["a"], devices="cpu:1")
    run = session.submit(options.job())
    assert eventually(
        lambda: [c.worker.phase for c in run.snapshot.devices if c.worker] == ["running"]
    )
    taken = set(os.listdir(SHARED_MEMORY)) - before
    assert {name.partition("_")[0].partition(".")[0] for name in taken} == {"psm", "sem"}
    if end == "killed":
        (pid,) = workers()
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: not taken & set(os.listdir(SHARED_MEMORY)), seconds=10)
    session.restart()
    assert not taken & set(os.listdir(SHARED_MEMORY))


def test_a_long_log_gives_its_beginning_up(temporary: Path) -> None:
    """A flood of 100 MB does not fill the disk; its end, which may explain a crash, is there."""
    with Session("cpu:1") as session:
        args = {"print_bytes": 100_000_000}
        echo(session, ["a"] * 40, engine_args={**args, "delay": 0.05})
        (log,) = temporary.rglob("*.log")
        assert log.stat().st_size >= 99_000_000
        assert log.stat().st_blocks * 512 <= 2 * 2**20
        ((_, tail),) = session.logs().items()
        assert set(tail.splitlines()) == {"echo " * 15}
        assert len(tail) > 16000


def test_a_session_takes_its_folder_along(temporary: Path) -> None:
    """While it lives there is one, which only you can enter; then there is none."""
    with Session("cpu:1") as session:
        echo(session, ["a"])
        (folder,) = temporary.iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
        assert sorted(path.name for path in folder.iterdir()) == [
            "lock",
            "worker-0",
            "worker-0.log",
        ]
        session.free()
        assert sorted(path.name for path in folder.iterdir()) == ["lock", "worker-0.log"]
    assert list(temporary.iterdir()) == []


def test_the_folder_of_a_killed_kernel_without_workers_is_swept(
    temporary: Path, tmp_path: Path
) -> None:
    """The next session does it; the folders of living kernels stay."""
    body = (
        "import mgpu_magic, time\nsession = mgpu_magic.Session('cpu:1')\n"
        "print('now', flush=True)\ntime.sleep(60)\n"
    )
    dead = start_script(tmp_path, body, TMPDIR=str(temporary))
    wait_for(dead, "now")
    (of_dead,) = temporary.iterdir()
    dead.kill()
    dead.communicate()
    assert of_dead.exists()
    living = start_script(tmp_path, body, TMPDIR=str(temporary))
    wait_for(living, "now")
    assert eventually(lambda: not of_dead.exists())
    (of_living,) = temporary.iterdir()
    with Session("cpu:1") as session:
        session.devices()  # by then it has swept
        assert of_living.exists()
    living.kill()
    living.communicate()


def test_results_do_not_need_the_folder(temporary: Path) -> None:
    """What was answered is in memory."""
    with Session("cpu:1") as session:
        options = Options(model="m", prompts=["a", "b"], engine="echo")
        results = result(session.submit(options.job()))
    assert list(temporary.iterdir()) == []
    assert results.texts == ["a", "b"]
