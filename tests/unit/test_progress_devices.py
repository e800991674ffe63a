"""Devices, and one job after another."""

from __future__ import annotations

from dataclasses import replace

from followed import DEVICES, GIB, Clock, Job, answer, failure, stats

from mgpu_magic.messages import (
    Exited,
    Ready,
    Started,
)
from mgpu_magic.progress import Progress, Reading, WorkerFigures, render_text

# --- devices ---------------------------------------------------------------------------------


def test_a_reading_that_is_not_known_is_not_zero() -> None:
    """Free memory is unknown unless both used and total are known, and never negative."""
    assert Reading().free_bytes is None
    assert Reading(used_bytes=1).free_bytes is None
    assert Reading(used_bytes=4, total_bytes=10).free_bytes == 6
    assert Reading(used_bytes=11, total_bytes=10).free_bytes == 0


def test_the_peak_is_the_most_that_was_seen_during_the_job() -> None:
    """A new job starts from what is in use now; a reading without memory keeps the peak."""
    job = Job()
    for used in (3, 9, 5):
        job.progress.read({"cuda:0": Reading(used_bytes=used), "cuda:7": Reading(used_bytes=99)})
    job.progress.read({"cuda:0": Reading()})
    assert [device.peak_bytes for device in job.progress.snapshot().devices] == [9, None]
    assert job.progress.figures()[0].peak_bytes == 9
    job.progress.read({"cuda:0": Reading(used_bytes=5)})
    job.progress.begin({"m": 1})
    job.progress.assign(0, "m", ["cuda:0"])
    assert job.progress.snapshot().devices[0].peak_bytes == 5
    assert job.progress.figures()[0].peak_bytes == 5


def test_a_tensor_parallel_worker_is_on_each_of_its_devices() -> None:
    """Both cards show the one worker, and the figures name the group."""
    job = Job(devices=("cuda:0", "cuda:1"))
    job.run()
    first, second = job.progress.snapshot().devices
    assert first.worker is second.worker
    assert first.worker is not None
    assert [figure.device for figure in job.progress.figures()] == ["cuda:0+1"]


def test_the_next_wave_takes_over_the_device_and_both_are_in_the_figures() -> None:
    """Of two models that run one after the other, the card shows the one that runs now."""
    progress = Progress(DEVICES, Clock())
    progress.begin({"a": 1, "b": 1})
    progress.assign(1, "a", ["cuda:0"])
    progress.submitted(1, 1)
    progress.recorded("a", 1, [answer()])
    progress.assign(2, "b", ["cuda:0"])
    worker = progress.snapshot().devices[0].worker
    assert worker is not None
    assert (worker.model, worker.phase) == ("b", "starting")
    assert [(f.model, f.prompts) for f in progress.figures()] == [("a", 1), ("b", 0)]


# --- one job after another -------------------------------------------------------------------


def test_before_the_first_job_only_devices_are_shown() -> None:
    """`status` of a fresh session shows the devices and no job."""
    progress = Progress(DEVICES, Clock())
    progress.read({"cuda:0": Reading(used_bytes=GIB, total_bytes=15 * GIB)})
    assert progress.snapshot().job.state == "new"
    assert progress.figures() == []
    assert render_text(progress.snapshot()).splitlines() == [
        "cuda:0   1.0 of 15.0 GiB  n/a busy",
        "cuda:1   memory n/a  n/a busy",
    ]


def test_a_warm_worker_keeps_its_load_and_starts_the_next_job_from_zero() -> None:
    """The second cell shows a loaded worker; tokens of the first cell are not counted again."""
    job = Job()
    job.run(1)
    job.clock.now += 1
    job.say(stats(500))
    job.answer(1, tokens=500)
    job.progress.note("said once")
    job.progress.finish("done")
    job.progress.begin({"renamed": 7})
    job.progress.assign(0, "renamed", ["cuda:0"])
    assert (job.worker.phase, job.worker.load_seconds) == ("idle", 2.5)
    assert (job.worker.model, job.worker.done, job.worker.total) == ("renamed", 0, 7)
    assert (job.view.state, job.view.done, job.view.notes) == ("running", 0, ())
    job.progress.submitted(0, 1)
    job.clock.now += 1
    job.say(stats(530))
    assert job.worker.output_tokens == 30


def test_tokens_that_were_generated_before_we_looked_are_not_counted() -> None:
    """A worker that is adopted warm does not start with the tokens of its whole life."""
    job = Job()
    job.say(Ready(8, 2.5))
    job.progress.submitted(0, 1)
    job.say(stats(90_000), seconds=1)
    job.say(stats(90_020))
    assert job.worker.output_tokens == 20


def test_a_worker_that_died_between_two_jobs_is_no_restart_of_the_next() -> None:
    """Restarts are those of the job."""
    job = Job()
    job.run(1)
    job.progress.finish("done")
    job.say(Exited(None, "SIGKILL"))
    job.progress.begin({"m": 1})
    job.progress.assign(0, "m", ["cuda:0"])
    job.say(Started(2))
    assert job.view.restarts == 0
    assert job.worker.phase == "starting"


def test_figures_say_what_each_worker_did() -> None:
    """Seconds are those with requests, up to the last answer."""
    job = Job()
    job.run(3)
    job.clock.now += 4
    job.answer(2, tokens=25)
    job.progress.recorded("m", 0, [failure()])
    job.clock.now += 0.5
    job.progress.read({"cuda:0": Reading(used_bytes=7)})
    expected = WorkerFigures(
        device="cuda:0",
        model="m",
        load_seconds=2.5,
        prompts=3,
        failures=1,
        prompt_tokens=6,
        output_tokens=50,
        busy_seconds=4.0,
        peak_bytes=7,
        restarts=0,
    )
    assert without_history(job) == [expected]
    job.progress.finish("done")
    assert without_history(job) == [expected]


def without_history(job: Job) -> list[WorkerFigures]:
    """What each worker did, without how it went."""
    return [replace(figures, history=()) for figures in job.progress.figures()]


def test_a_note_is_said_once() -> None:
    """The same note from two workers is one line."""
    job = Job()
    for text in ("first", "second", "first"):
        job.progress.note(text)
    assert job.view.notes == ("first", "second")
