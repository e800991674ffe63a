"""GPUs and drivers that fail: the job goes on, and what is not known is not shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from process.living import run_script

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Machine = Callable[[int], dict[str, str]]


@pytest.mark.parametrize("first", range(0, 32, 8))
def test_a_job_does_not_depend_on_what_its_gpus_say(
    tmp_path: Path, gpus: Machine, first: int
) -> None:
    """Every prompt is answered, and soon; a figure that is shown is the true one, or unknown.

    GPUs are lost, drivers do not start, hang and lack sensors, at the start and in the middle.
    """
    seeds = [*range(first, first + 8)]
    script = f"from process.failing import trials\nprint(trials({seeds}))"
    assert run_script(tmp_path, script, **gpus(2)) == {}


AGAIN = """
import json, time, mgpu_magic
from process import jobs
from process.failing import HANG, PROMPTS, devices, healthy
from process.living import workers
devices.DRIVER_SECONDS = 0.4
def job():
    run = session.submit(jobs.job(PROMPTS))
    return run.result(20).texts == PROMPTS, list(run.snapshot.job.notes), workers()
healthy().begin()
with mgpu_magic.Session() as session:
    before = job()
    trouble.begin()
    after = job()
    labels = [card.label for card in session.status().devices]
print(json.dumps([before[:2], after[:2], before[2] == after[2], len(after[2]), labels]))
"""


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ("healthy(init_error=18)", "RM has detected an NVML/RM version mismatch"),
        ("healthy(init_delay=HANG)", "NVML has not answered for 0.4 s"),
        ("healthy(delays={'memory': HANG})", "NVML has not answered for 0.4 s"),
    ],
)
def test_the_next_cell_finds_its_models_where_nvml_fails_meanwhile(
    tmp_path: Path, gpus: Machine, trouble: str, reason: str
) -> None:
    """A driver that is updated, or hangs, under a running kernel costs readings and no model."""
    script = AGAIN.replace("trouble.begin()", f"{trouble}.begin()")
    before, after, same, count, labels = run_script(tmp_path, script, **gpus(2))
    assert before == [True, []]
    assert after == [True, [f"GPU readings unavailable: {reason}."]]
    assert (same, count, labels) == (True, 2, ["cuda:0", "cuda:1"])


def test_a_reading_that_does_not_come_stalls_nothing(tmp_path: Path, gpus: Machine) -> None:
    """The job goes on, the panel says n/a, `status` and the end of the session wait two seconds."""
    script = """
import json, time, mgpu_magic
from mgpu_magic import instruments
from mgpu_magic.snapshot import Reading, render_text
from process import jobs
from process.failing import HANG, PROMPTS, healthy
from process.living import eventually
instruments.SILENT_SECONDS = 0.6
healthy().begin()
session = mgpu_magic.Session()
args = {"delay": 0.05, "capacity": 1}
run = session.submit(jobs.job(PROMPTS * 4, engine_args=args))
def readings(): return [card.reading for card in run.snapshot.devices]
known = eventually(lambda: all(reading.used_bytes for reading in readings()))
healthy(delays={"utilisation": HANG}).begin()
unknown = eventually(lambda: all(reading == Reading() for reading in readings()))
text = render_text(run.snapshot)
done = run.result(30).texts == PROMPTS * 4
began = time.monotonic()
labels = [card.label for card in session.status().devices]
waited = time.monotonic() - began
began = time.monotonic()
session.close()
print(json.dumps([known, unknown, text, done, labels, waited, time.monotonic() - began]))
"""
    known, unknown, text, done, labels, waited, closed = run_script(tmp_path, script, **gpus(2))
    assert known
    assert unknown
    assert done
    for line in text.splitlines()[:2]:
        assert "n/a" in line
        assert " 0 %" not in line
        assert "0.0 /" not in line
    assert labels == ["cuda:0", "cuda:1"]
    assert 1.9 < waited < 10
    assert closed < 10


def test_devices_are_listed_without_waiting_for_a_driver(tmp_path: Path, gpus: Machine) -> None:
    """The first `status` of a session waits two seconds for a driver that hangs, and says so."""
    script = """
import json, time, mgpu_magic
from process.failing import HANG, healthy
healthy(init_delay=HANG).begin()
with mgpu_magic.Session() as session:
    began = time.monotonic()
    first = [card.label[:3] for card in session.status().devices]
    waited = time.monotonic() - began
    healthy().begin()
    second = [card.label for card in session.status().devices]
print(json.dumps([first[0], second, waited]))
"""
    first, second, waited = run_script(tmp_path, script, **gpus(2))
    assert (first, second) == ("cpu", ["cuda:0", "cuda:1"])
    assert 1.9 < waited < 10
