"""What a snapshot says of workers and prompts while a job goes on."""

from __future__ import annotations

import pytest
from followed import DEVICES, Clock, Job, answer, failure, prediction, stats

from mgpu_magic.messages import (
    Exited,
    Fatal,
    Hello,
    Loading,
    Outcomes,
    Ready,
    Started,
    Stopped,
)
from mgpu_magic.outcomes import (
    RemoteError,
    Returned,
)
from mgpu_magic.progress import Progress

# --- phases ----------------------------------------------------------------------------------


def test_each_phase_is_named_as_the_worker_goes_through_it() -> None:
    """From starting over downloading, loading and warming up to running: all are told apart."""
    job = Job()
    phases = [job.worker.phase]
    for event in (
        Started(1),
        Hello(1, 1),
        Loading("importing"),
        Loading("imported"),
        Loading("downloading", 0.0),
        Loading("loading"),
        Loading("warming up"),
        Ready(8, 2.5),
    ):
        job.say(event)
        phases.append(job.worker.phase)
    job.progress.submitted(0, 1)
    phases.append(job.worker.phase)
    job.say(Stopped())
    phases.append(job.worker.phase)
    assert phases == [
        "starting",
        "starting",
        "starting",
        "importing",
        "waiting to load",
        "downloading",
        "loading",
        "warming up",
        "idle",
        "running",
        "stopped",
    ]


def test_a_stage_of_an_engine_that_is_not_known_is_loading() -> None:
    """An engine may name stages of its own."""
    job = Job()
    job.say(Loading("compiling"))
    assert job.worker.phase == "loading"


def test_phase_seconds_count_from_the_change_of_phase() -> None:
    """A silent load of 20 s shows 20 s, however often the worker repeats its stage."""
    job = Job()
    job.say(Loading("importing"), seconds=3)
    job.say(Loading("loading"), seconds=8)
    job.say(Loading("loading", 0.5), seconds=12)
    assert job.worker.phase_seconds == 20
    assert job.worker.fraction == 0.5


def test_a_new_phase_begins_without_the_fraction_of_the_last() -> None:
    """A fraction is never carried over to a phase that does not report one."""
    job = Job()
    job.say(Loading("loading", 0.9), Ready(8, 2.5))
    assert job.worker.fraction is None
    assert job.worker.load_seconds == 2.5


def test_a_refill_is_not_idleness() -> None:
    """Seconds of `running` do not start over whenever the last request in flight ends."""
    job = Job()
    job.run(1)
    job.clock.now += 10
    job.answer(1)
    job.clock.now += 0.4
    job.progress.submitted(0, 1)
    assert job.worker.phase == "running"
    assert job.worker.phase_seconds == pytest.approx(10.4)


def test_a_worker_with_nothing_to_do_is_idle_since_its_last_answer() -> None:
    """After a second without requests a worker is idle, counted from when it ended."""
    job = Job()
    job.run(1)
    job.say(stats(5))
    job.clock.now += 10
    job.answer(1)
    job.clock.now += 3
    assert job.worker.phase == "idle"
    assert job.worker.phase_seconds == 3
    assert (job.worker.running, job.worker.waiting) == (0, 0)


def test_events_of_a_worker_nobody_assigned_are_ignored() -> None:
    """A late word of a retired worker changes nothing."""
    job = Job()
    before = job.progress.snapshot()
    job.progress.apply(9, Ready(8, 1.0))
    assert job.progress.snapshot() == before


# --- lost and failed workers -----------------------------------------------------------------


def test_a_worker_that_fails_before_it_is_ready_shows_the_real_error() -> None:
    """The engine's own error is shown, on one line, and the exit code does not replace it."""
    job = Job()
    job.say(
        Loading("loading"),
        Fatal(RemoteError("OSError", "no file\n  named model.safetensors")),
        Exited(1, None),
    )
    assert job.worker.phase == "failed"
    assert job.worker.message == "OSError: no file named model.safetensors"


def test_a_long_error_is_cut() -> None:
    """An error of thousands of lines does not fill the panel."""
    job = Job()
    job.say(Fatal(RemoteError("OSError", "x" * 5000)))
    assert len(job.worker.message) == 300
    assert job.worker.message.endswith("...")


def test_a_worker_that_dies_while_running_is_lost_with_the_reason() -> None:
    """A killed worker shows the signal, and no requests."""
    job = Job()
    job.run()
    job.say(stats(5), Exited(None, "SIGKILL"))
    assert job.worker.phase == "lost"
    assert job.worker.message == "killed by SIGKILL (often: out of host memory)"
    assert job.worker.running == 0


def test_a_fatal_error_after_ready_is_a_loss_and_not_a_failed_start() -> None:
    """The phase tells a model that cannot be loaded from an engine that broke down."""
    job = Job()
    job.run()
    job.say(Fatal(RemoteError("RuntimeError", "CUDA error")), Exited(1, None))
    assert job.worker.phase == "lost"
    assert job.worker.message == "RuntimeError: CUDA error"


@pytest.mark.parametrize("assigned_again", [True, False])
def test_a_restart_is_counted_once_and_clears_the_message(assigned_again: bool) -> None:
    """A lost worker that is started again is one restart; its counts of the job stay."""
    job = Job()
    job.run()
    job.answer(3)
    job.say(Exited(None, "SIGKILL"))
    if assigned_again:
        job.progress.assign(0, "m", ["cuda:0"])
    job.say(Started(2), Hello(1, 2), Loading("loading"))
    assert job.view.restarts == 1
    assert job.worker.phase == "loading"
    assert job.worker.message == ""
    assert job.worker.done == 3


def test_a_worker_that_said_goodbye_is_not_lost_when_its_process_ends() -> None:
    """A retired worker is stopped."""
    job = Job()
    job.run()
    job.say(Stopped(), Exited(0, None))
    assert job.worker.phase == "stopped"
    assert job.worker.message == ""


# --- counts ----------------------------------------------------------------------------------


def test_progress_reaches_the_total_with_failures_too() -> None:
    """Done counts every resolved prompt, and says how many of them failed."""
    job = Job(total=3)
    job.run(3)
    job.progress.recorded("m", 0, [answer(), failure()])
    job.progress.recorded("m", None, [failure("WorkerLost")])
    job.progress.finish("done")
    assert (job.view.done, job.view.failed, job.view.total) == (3, 2, 3)
    assert (job.worker.done, job.worker.failed) == (2, 1)
    assert (job.worker.model_done, job.worker.total) == (3, 3)
    assert (job.view.prompt_tokens, job.view.output_tokens) == (3, 10)


def test_outcomes_of_every_task_count() -> None:
    """What a function returned and what a classifier says are done like any answer."""
    job = Job(total=4)
    job.run(4)
    value = Returned(index=0, data=b"", seconds=1.0, device="cuda:0")
    job.progress.recorded("m", 0, [answer(), prediction(), value, failure()])
    assert (job.view.done, job.view.failed) == (4, 1)
    assert (job.view.prompt_tokens, job.view.output_tokens) == (10, 10)
    [figures] = job.progress.figures()
    assert (figures.prompts, figures.prompt_tokens, figures.output_tokens) == (4, 10, 10)


def test_what_an_interrupt_left_over_does_not_count() -> None:
    """After an interrupt the panel says how far it got, not that the rest failed."""
    job = Job(total=5)
    job.run(5)
    job.progress.recorded("m", 0, [answer(), failure("Interrupted"), failure("Interrupted")])
    job.progress.finish("interrupted")
    assert job.view.state == "interrupted"
    assert (job.view.done, job.view.failed, job.view.total) == (1, 0, 5)
    assert job.worker.phase == "idle"


def test_outcomes_count_only_when_recorded() -> None:
    """An outcome that the scheduler drops is not shown as progress."""
    job = Job()
    job.run()
    job.say(Outcomes(1, (answer(),)))
    assert job.view.done == 0


def test_an_ensemble_counts_each_model_on_its_own() -> None:
    """Each card counts the prompts of its own model, the header those of all."""
    progress = Progress(DEVICES, Clock())
    progress.begin({"a": 10, "b": 20})
    for number, model in enumerate(("a", "b")):
        progress.assign(number, model, [f"cuda:{number}"])
        progress.submitted(number, 5)
        progress.recorded(model, number, [answer()] * (number + 1))
    snapshot = progress.snapshot()
    workers = [device.worker for device in snapshot.devices]
    assert [(w.done, w.model_done, w.total) for w in workers if w] == [(1, 1, 10), (2, 2, 20)]
    assert (snapshot.job.done, snapshot.job.total) == (3, 30)


def test_a_million_outcomes_take_bounded_memory() -> None:
    """The accumulator keeps counts, not outcomes."""
    job = Job(total=1_000_000)
    job.run(1_000_000)
    batch = [answer()] * 10_000
    for _ in range(100):
        job.clock.now += 0.01
        job.progress.recorded("m", 0, batch)
    assert (job.view.done, job.view.output_tokens) == (1_000_000, 10_000_000)
    for _ in range(10_000):
        job.clock.now += 0.01
        job.say(stats(10_000_000))
    assert len(job.progress._pace._samples) < 50
    assert len(job.progress._workers[0].rate._samples) < 50
    assert len(job.progress._workers[0].pace._samples) < 50
