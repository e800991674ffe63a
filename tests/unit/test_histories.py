"""What is kept of how a job goes on each device."""

from __future__ import annotations

import pickle

from followed import Job

from mgpu_magic.messages import Exited, Loading, Ready, Started
from mgpu_magic.snapshot import DeviceHistory, Reading


def test_a_history_holds_what_was_read_and_when() -> None:
    """Seconds count from the job's start; what a sensor did not say is None, never 0."""
    job = Job(devices=("cuda:0", "cuda:1"))
    job.clock.now += 0.5
    job.progress.read({"cuda:0": Reading(used_bytes=7, utilisation=0.25), "cuda:1": Reading()})
    job.run(1)
    job.clock.now += 2
    job.answer(1, tokens=40)
    job.progress.read({"cuda:0": Reading(utilisation=1.0)})
    [figures] = job.progress.figures()
    first = DeviceHistory(
        device="cuda:0",
        seconds=(0.5, 2.5),
        used_bytes=(7, None),
        utilisation=(0.25, 1.0),
        tokens_per_second=(0.0, 20.0),
        prompts_per_second=(0.0, 0.5),
        loading=((0.0, 0.5),),
    )
    second = DeviceHistory(
        device="cuda:1",
        seconds=(0.5,),
        used_bytes=(None,),
        utilisation=(None,),
        tokens_per_second=(0.0,),
        prompts_per_second=(0.0,),
        loading=((0.0, 0.5),),
    )
    assert figures.history == (first, second)


def test_a_day_is_kept_in_240_points_from_its_beginning_to_its_end() -> None:
    """Memory keeps its peaks, utilisation its mean, and a point without readings stays unknown."""
    job = Job()
    for tick in range(100_000):
        known = not 30_000 <= tick < 40_000
        read = Reading(used_bytes=tick, utilisation=tick % 2) if known else Reading()
        job.progress.read({"cuda:0": read})
        job.clock.now += 0.5
    [history] = job.progress.figures()[0].history
    seconds, memory = history.seconds, history.used_bytes
    assert 120 <= len(seconds) <= 240
    assert {len(memory), len(history.utilisation)} == {len(seconds)}
    assert seconds[0] < 250
    assert 49_750 < seconds[-1] < 50_000
    assert memory[-1] == 99_999
    assert set(history.utilisation[:-1]) == {0.5, None}
    unknown = [at for at, value in zip(seconds, memory, strict=True) if value is None]
    assert 15_000 < min(unknown) < 15_500
    assert 19_500 < max(unknown) < 20_000
    assert len(pickle.dumps(history)) < 15_000


def test_a_history_knows_when_models_were_loaded() -> None:
    """From the start to ready, again after a loss, until now where it goes on; cut at the job."""
    job = Job()
    job.say(Loading("importing"), seconds=1)
    job.say(Loading("loading"), seconds=1)
    job.say(Ready(8, 2.0), seconds=3)
    job.clock.now += 4
    job.say(Exited(None, "SIGKILL"))
    job.clock.now += 1
    job.say(Started(2))
    job.clock.now += 2
    assert loading(job) == ((0.0, 2.0), (10.0, 12.0))
    job.progress.begin({"m": 1})
    job.progress.assign(0, "m", ["cuda:0"])
    job.clock.now += 3
    assert loading(job) == ((0.0, 3.0),)
    job.say(Ready(8, 2.0))
    job.clock.now += 3
    assert loading(job) == ((0.0, 3.0),)


def loading(job: Job) -> tuple[tuple[float, float], ...]:
    """When its first device was loading."""
    return job.progress.figures()[0].history[0].loading


def test_a_new_job_has_a_history_of_its_own() -> None:
    """A warm worker's second job does not show the first, nor its load."""
    job = Job()
    job.clock.now += 3
    job.run(1)
    job.progress.read({"cuda:0": Reading(used_bytes=1)})
    job.progress.finish("done")
    job.progress.begin({"m": 1})
    job.progress.assign(0, "m", ["cuda:0"])
    assert job.progress.figures()[0].history == (DeviceHistory(device="cuda:0"),)
