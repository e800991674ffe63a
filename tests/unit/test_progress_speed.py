"""How fast a job is, and how long it will take."""

from __future__ import annotations

import pytest
from followed import Job, failure, prediction, stats

from mgpu_magic.messages import (
    Exited,
    Ready,
    Started,
)

# --- speed and time left ---------------------------------------------------------------------


def test_tokens_per_second_is_the_rate_of_the_last_seconds() -> None:
    """Unfinished answers count, and a change of speed shows within five seconds."""
    job = Job()
    job.run()
    for second in range(1, 11):
        job.clock.now += 1
        job.say(stats(100 * second))
    assert job.worker.output_tokens_per_second == 100
    for second in range(1, 7):
        job.clock.now += 1
        job.say(stats(1000 + 300 * second))
    assert job.worker.output_tokens_per_second == 300
    assert job.view.output_tokens_per_second == 300
    assert job.view.output_tokens == 2800


def test_tokens_per_second_comes_from_answers_where_the_engine_reports_nothing() -> None:
    """An engine without token counts still has a speed."""
    job = Job()
    job.run()
    for _ in range(4):
        job.clock.now += 1
        job.answer(2, tokens=25)
    assert job.worker.output_tokens_per_second == 50


def test_a_restarted_counter_never_makes_the_speed_negative() -> None:
    """A worker that is started again counts from 0; the tokens of before stay counted."""
    job = Job()
    job.run()
    job.clock.now += 1
    job.say(stats(500), Exited(None, "SIGKILL"), Started(2), Ready(8, 2.5))
    job.progress.submitted(0, 1)
    job.clock.now += 1
    job.say(stats(40))
    assert job.worker.output_tokens_per_second == 40
    assert job.worker.output_tokens == 540


def test_a_silent_worker_has_no_speed() -> None:
    """A worker that says nothing for five seconds is not shown at its last speed."""
    job = Job()
    job.run()
    job.clock.now += 1
    job.say(stats(500))
    assert job.worker.output_tokens_per_second == 500
    job.clock.now += 5.1
    assert job.worker.output_tokens_per_second == 0


def test_an_idle_worker_has_no_speed() -> None:
    """The speed falls to 0 with the last answer and not five seconds later."""
    job = Job()
    job.run(1)
    job.clock.now += 1
    job.answer(1, tokens=500)
    job.clock.now += 1
    assert job.worker.output_tokens_per_second == 0


def test_the_final_speed_is_the_average_without_the_load() -> None:
    """After the run: tokens of the answers over the time since the first prompt was sent."""
    job = Job()
    job.clock.now += 60
    job.run(2)
    job.clock.now += 5
    job.answer(2, tokens=100)
    job.clock.now += 5
    job.progress.finish("done")
    job.clock.now += 100
    assert job.view.elapsed_seconds == 70
    assert job.view.output_tokens_per_second == 20
    assert job.worker.output_tokens_per_second == 40


def test_prompts_per_second_follows_the_answers_of_the_last_half_minute() -> None:
    """A classifier's speed is known from its answers; what failed is no speed."""
    job = Job(total=10_000)
    job.run(10_000)
    for _ in range(10):
        job.clock.now += 1
        job.progress.recorded("m", 0, [prediction()] * 56 + [failure()] * 3)
    assert job.worker.prompts_per_second == 56
    assert job.view.prompts_per_second == 56
    assert job.worker.output_tokens_per_second == 0
    for _ in range(32):
        job.clock.now += 1
        job.progress.recorded("m", 0, [prediction()] * 7)
    assert job.worker.prompts_per_second == 7


def test_prompts_per_second_falls_at_a_standstill() -> None:
    """A worker that still gives signs of life but no answers is not shown at its old speed."""
    job = Job()
    job.run()
    job.clock.now += 2
    job.progress.recorded("m", 0, [prediction()] * 20)
    assert job.worker.prompts_per_second == 10
    for _ in range(8):
        job.clock.now += 1
        job.say(stats(0))
    assert job.worker.prompts_per_second == 2
    for _ in range(40):
        job.clock.now += 1
        job.say(stats(0))
    assert job.worker.prompts_per_second == 0


def test_the_final_prompts_per_second_are_the_average_without_the_load() -> None:
    """After the run: answers over the time since the first prompt was sent, and while busy."""
    job = Job()
    job.clock.now += 60
    job.run(40)
    job.clock.now += 5
    job.progress.recorded("m", 0, [prediction()] * 39 + [failure()])
    job.clock.now += 5
    job.progress.finish("done")
    assert job.view.prompts_per_second == 3.9
    assert job.worker.prompts_per_second == 7.8


def test_there_is_no_eta_without_evidence() -> None:
    """Two answers, or one second, are too little to tell the rest by."""
    job = Job(total=103)
    job.run(100)
    job.clock.now += 1.9
    job.answer(3)
    assert job.view.eta_seconds is None
    job.clock.now += 0.1
    assert job.view.eta_seconds == pytest.approx(100 / (3 / 1.9))
    few = Job()
    few.run()
    few.clock.now += 100
    few.answer(2)
    assert few.view.eta_seconds is None


def test_answers_of_a_journal_count_as_done_and_for_no_speed() -> None:
    """They are there from the first moment; the time left is that of the others."""
    job = Job(total=1000, recorded=900)
    assert (job.view.done, job.view.total, job.view.failed) == (900, 1000, 0)
    job.run()
    assert job.worker.model_done == 900
    for _ in range(10):
        job.clock.now += 1
        job.answer(1)
    assert job.view.done == 910
    assert job.view.prompts_per_second == pytest.approx(1)
    assert job.view.eta_seconds == pytest.approx(90)
    job.progress.finish("done")
    assert (job.view.output_tokens, job.view.prompts_per_second) == (100, 1)


def test_the_eta_follows_the_recent_pace() -> None:
    """What was slow in the beginning does not spoil the ETA for the rest of the run."""
    job = Job(total=1000)
    job.run(1000)
    for _ in range(100):
        job.clock.now += 1
        job.answer(1)
    assert job.view.eta_seconds == pytest.approx(900)
    for _ in range(32):
        job.clock.now += 1
        job.answer(10)
    assert job.view.eta_seconds == pytest.approx(58)


def test_the_eta_grows_at_a_standstill_and_goes_when_it_lasts() -> None:
    """A promise is not kept up while nothing finishes."""
    job = Job(total=100)
    job.run(100)
    for _ in range(10):
        job.clock.now += 1
        job.answer(1)
    etas = []
    for _ in range(40):
        job.clock.now += 1
        job.say(stats(0))
        etas.append(job.view.eta_seconds)
    assert etas[0] == pytest.approx(99)
    assert etas[9] == pytest.approx(180)
    assert etas[-1] is None


def test_the_eta_is_never_negative_and_none_after_the_end() -> None:
    """More outcomes than prompts, or an ended job, make no odd ETA."""
    job = Job(total=3)
    job.run(3)
    job.clock.now += 3
    job.answer(4)
    assert job.view.eta_seconds == 0
    job.progress.finish("done")
    assert job.view.eta_seconds is None
