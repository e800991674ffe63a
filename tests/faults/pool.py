"""Carries many cells out at the same time, each in a process and folders of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import fake_nvml
import psutil
from fake_nvml import FakeGpu
from process.living import MARK

from faults.cell import Finding
from faults.footprint import paths
from faults.strikes import ORDERS
from faults.table import ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from faults.struck import Phase

    Cell = tuple[str, Phase]

TESTS = Path(__file__).parents[1]
TOGETHER = 4  # they mostly wait
TRIES = 4
SECONDS = 150.0
HEAVY_SECONDS = 900.0
GONE_SECONDS = 5.0


def carry_out(
    cells: Iterable[Cell], shown: Callable[[Cell, Finding], object] = lambda *_: None
) -> dict[Cell, Finding]:
    """Carry cells out, the heavy ones at the end, alone; `shown` is called with each."""
    cells = list(cells)
    findings = {}
    for heavy, workers in (False, TOGETHER), (True, 1):
        these = [cell for cell in cells if ROWS[cell[0]].heavy == heavy]
        with ThreadPoolExecutor(workers) as pool:
            for cell, finding in zip(these, pool.map(_caught, these), strict=True):
                findings[cell] = finding
                shown(cell, finding)
    return findings


def _caught(cell: Cell) -> Finding:
    """A cell that a busy machine was too slow for is tried again."""
    for _ in range(TRIES):
        finding = _once(cell)
        if not finding.missed:
            break
    return finding


def _once(cell: Cell) -> Finding:
    mark = uuid.uuid4().hex
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mgpu-fault-", ignore_cleanup_errors=True) as scratch:
        for folder in ("tmp", "orders"):
            (Path(scratch) / folder).mkdir()
        own = {
            MARK: mark,
            "TMPDIR": f"{scratch}/tmp",
            ORDERS: f"{scratch}/orders",
            "TORCHINDUCTOR_CACHE_DIR": f"{scratch}/compiled",
        }
        if ROWS[cell[0]].gpus:
            own |= _gpus(Path(scratch))
        process = subprocess.Popen(
            [sys.executable, "-m", "faults.cell", *cell],
            cwd=TESTS,
            env={**os.environ, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            output, errors = process.communicate(
                timeout=HEAVY_SECONDS if ROWS[cell[0]].heavy else SECONDS
            )
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGABRT)
            output, errors = process.communicate()
        left = _left(mark, Path(scratch) / "tmp")
        _end(mark)
    seconds = round(time.monotonic() - began, 1)
    if process.returncode != 0:
        why = f"exit code {process.returncode} after {seconds} s: {errors[-4000:]}"
        return Finding(outcome="NO END", seconds=seconds, left=left, error=why)
    told = json.loads(output.splitlines()[-1])
    return Finding(**{**told, "left": tuple(dict.fromkeys((*told["left"], *left)))})


def _gpus(folder: Path) -> dict[str, str]:
    """Variables under which a process finds two Tesla T4."""
    library = fake_nvml.build(folder)
    fake_nvml.write_config(folder / "machine", [FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b")])
    return fake_nvml.environment(library.parent, folder / "machine")


def _left(mark: str, folder: Path) -> tuple[str, ...]:
    """What is there although the cell's own process is gone."""
    deadline = time.monotonic() + GONE_SECONDS
    while (left := _living(mark, folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def _living(mark: str, folder: Path) -> tuple[str, ...]:
    found = (f"process {process.status()}" for process in _marked(mark))
    return (*found, *(f"file {path}" for path in paths(folder)))


def _end(mark: str) -> None:
    """What should have ended by itself must not disturb those that come after."""
    for process in _marked(mark):
        process.kill()


def _marked(mark: str) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["environ"])
        if (process.info["environ"] or {}).get(MARK) == mark
    ]
