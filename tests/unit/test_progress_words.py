"""What the panel shows beside the figures of the moment: curves, failures, logs, retries."""

from __future__ import annotations

import pytest
from followed import GIB, Job, answer, failure, prediction, stats

from mgpu_magic.messages import Exited, Ready, Started, Stats
from mgpu_magic.outcomes import Failure, RemoteError
from mgpu_magic.progress import Reading
from mgpu_magic.snapshot import FailureView


def histories(job: Job) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The curves of the first device: memory, speed."""
    device = job.progress.snapshot().devices[0]
    return device.memory_history, device.speed_history


def test_memory_and_speed_are_kept_over_the_run() -> None:
    """Each reading is a point; what is not known of the memory is none."""
    job = Job()
    job.progress.read({"cuda:0": Reading(used_bytes=GIB)})
    job.run()
    for second in range(1, 3):
        job.clock.now += 1
        job.say(stats(100 * second))
        job.progress.read({"cuda:0": Reading(used_bytes=(1 + second) * GIB)})
    job.progress.read({"cuda:0": Reading(), "cuda:7": Reading(used_bytes=1)})
    memory, speed = histories(job)
    assert list(memory) == [GIB, 2 * GIB, 3 * GIB]
    assert list(speed) == [0.0, 100.0, 100.0, 100.0]


def test_the_curve_of_a_job_without_tokens_is_in_prompts() -> None:
    """A classifier has a curve too."""
    job = Job()
    job.run()
    job.clock.now += 2
    job.progress.recorded("m", 0, [prediction()] * 20)
    job.progress.read({"cuda:0": Reading()})
    assert histories(job) == ((), (10.0,))


def test_a_new_job_begins_new_curves() -> None:
    """The curve is that of the job, and its peak."""
    job = Job()
    job.progress.read({"cuda:0": Reading(used_bytes=9)})
    job.progress.begin({"m": 1})
    assert histories(job) == ((), ())
    assert job.progress.snapshot().devices[0].reading == Reading(used_bytes=9)


def test_curves_of_a_long_run_stay_short() -> None:
    """Ten thousand readings are at most forty points."""
    job = Job()
    for second in range(10_000):
        job.progress.read({"cuda:0": Reading(used_bytes=second)})
    memory, speed = histories(job)
    assert 20 <= len(memory) == len(speed) <= 40
    assert max(memory) == 9999


# --- failures --------------------------------------------------------------------------------


def test_a_failure_is_kept_with_its_error_and_a_peep_at_its_prompt() -> None:
    """On one line each, and short."""
    job = Job()
    job.progress.begin({"m": 10}, peeps=lambda model, index: f"{model}\n{index}" + "x" * 100)
    error = RemoteError("ValueError", "no\n  such " + "y" * 10_000)
    job.progress.recorded("m", None, [answer(), Failure(7, error)])
    [shown] = job.view.failures
    assert (shown.model, shown.index) == ("m", 7)
    assert shown.error.startswith("ValueError: no such yyy")
    assert len(shown.error) == 200
    assert shown.prompt.startswith("m 7xxx")
    assert len(shown.prompt) == 80


def test_the_first_twenty_failures_are_kept() -> None:
    """The count goes on, the list does not, and no more prompts are looked at."""
    job = Job()
    looked: list[int] = []

    def peep(_: str, index: int) -> str:
        looked.append(index)
        return "p"

    job.progress.begin({"m": 1000}, peeps=peep)
    for index in range(100):
        job.progress.recorded("m", None, [Failure(index, RemoteError("E", "no"))])
    assert job.view.failed == 100
    assert [shown.index for shown in job.view.failures] == looked == list(range(20))


def test_without_peeps_a_failure_has_no_prompt_and_an_interrupt_is_no_failure() -> None:
    """What was given up is not listed."""
    job = Job()
    job.progress.recorded("m", None, [failure(), failure("Interrupted")])
    assert job.view.failures == (
        FailureView(model="m", index=0, error="ValueError: no", prompt=""),
    )
    job.progress.begin({"m": 1})
    assert not job.view.failures


# --- logs, retries, prompt tokens, doubts ----------------------------------------------------


def test_a_log_keeps_its_last_four_kib_over_jobs_and_restarts() -> None:
    """A worker that died and came back still shows what it said."""
    job = Job()
    job.progress.logged(0, "a" * 10 + "b" * 4096)
    job.progress.logged(99, "of nobody")
    job.say(Started(1), Ready(8, 2.5), Exited(None, "SIGKILL"), Started(2))
    assert job.worker.log == "b" * 4096
    job.progress.begin({"m": 1})
    assert job.worker.log == "b" * 4096


def test_retries_are_counted() -> None:
    """Prompts that a lost worker held and that were sent once more."""
    job = Job()
    job.run(10)
    job.progress.submitted(0, 6, retries=4)
    job.progress.submitted(0, 1, retries=1)
    assert job.view.retries == 5
    job.progress.begin({"m": 1})
    assert job.view.retries == 0


def test_prompt_tokens_per_second_follow_the_engine_or_the_answers() -> None:
    """Reading prompts is work too; the average remains."""
    job = Job()
    job.run()
    for second in range(1, 4):
        job.clock.now += 1
        job.say(Stats(4, 2, 500 * second, 0))
    assert job.worker.prompt_tokens_per_second == 500
    other = Job()
    other.run(40)
    for _ in range(4):
        other.clock.now += 1
        other.answer(10)  # of three prompt tokens each
    assert other.worker.prompt_tokens_per_second == 30
    other.clock.now += 0.1
    other.progress.finish("done")
    assert other.worker.prompt_tokens_per_second == pytest.approx(30)


def test_an_eta_says_by_how_much_it_may_be_wrong() -> None:
    """The more answers, the surer; without an ETA there is no doubt of it either."""
    job = Job(total=1000)
    job.run(1000)
    assert job.view.eta_doubt_seconds is None
    for _ in range(4):
        job.clock.now += 1
        job.answer(25)
    assert job.view.eta_seconds == pytest.approx(36)
    assert job.view.eta_doubt_seconds == pytest.approx(3.6)
