"""What a snapshot says about a job, and the text made of it."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import pytest

from mgpu_magic.messages import (
    Event,
    Exited,
    Fatal,
    Hello,
    Loading,
    Outcomes,
    Ready,
    Started,
    Stats,
    Stopped,
)
from mgpu_magic.outcomes import (
    Completion,
    Failure,
    Outcome,
    Prediction,
    RemoteError,
    Returned,
)
from mgpu_magic.progress import Progress, Reading, WorkerFigures, render_text
from mgpu_magic.snapshot import (
    JobView,
    WorkerView,
    memory_text,
    model_basename,
    one_line,
    seconds_text,
    speed_text,
)
from mgpu_magic.spec import Device

if TYPE_CHECKING:
    from collections.abc import Sequence

GIB = 2**30
DEVICES = [
    Device(kind="cuda", index=index, name="Tesla T4", mask=str(index), total_bytes=15 * GIB)
    for index in range(2)
]


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Job:
    """A job of model `"m"` whose worker 0 is on `cuda:0`."""

    def __init__(self, total: int = 100, devices: Sequence[str] = ("cuda:0",)) -> None:
        self.clock = Clock()
        self.progress = Progress(DEVICES, self.clock)
        self.progress.begin({"m": total})
        self.progress.assign(0, "m", devices)

    def say(self, *events: Event, seconds: float = 0.0) -> None:
        for event in events:
            self.progress.apply(0, event)
            self.clock.now += seconds

    def run(self, count: int = 50) -> None:
        self.say(Started(1), Ready(8, 2.5))
        self.progress.submitted(0, count)

    def answer(self, count: int, tokens: int = 10) -> None:
        self.progress.recorded("m", 0, [answer(tokens)] * count)

    @property
    def view(self) -> JobView:
        return self.progress.snapshot().job

    @property
    def worker(self) -> WorkerView:
        worker = self.progress.snapshot().devices[0].worker
        assert worker is not None
        return worker


def answer(tokens: int = 10) -> Completion:
    """An answer of so many tokens to a prompt of three."""
    return Completion(
        index=0,
        texts=("x",),
        finish_reasons=("stop",),
        prompt_tokens=3,
        output_tokens=tokens,
        seconds=1.0,
        device="cuda:0",
    )


def prediction() -> Prediction:
    """The numbers for a prompt of seven tokens."""
    return Prediction(
        index=0,
        task="classify",
        values=array("f", [1.0, 2.0]),
        labels=("no", "yes"),
        activation="softmax",
        prompt_tokens=7,
        seconds=1.0,
        device="cuda:0",
    )


def failure(kind: str = "ValueError") -> Outcome:
    """A prompt that failed."""
    return Failure(0, RemoteError(kind, "no"))


def stats(output_tokens: int) -> Stats:
    """A sign of life of a worker that has four requests running and two waiting."""
    return Stats(4, 2, 0, output_tokens, 0.5)


# --- phases ----------------------------------------------------------------------------------


def test_each_phase_is_named_as_the_worker_goes_through_it() -> None:
    """Starting, importing, waiting, loading, warming up, idle, running: all are told apart."""
    job = Job()
    phases = [job.worker.phase]
    for event in (
        Started(1),
        Hello(1, 1),
        Loading("importing"),
        Loading("imported"),
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
    assert job.progress.snapshot().devices[0].peak_bytes == 5


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
    assert job.progress.figures() == [expected]
    job.progress.finish("done")
    assert job.progress.figures() == [expected]


def test_a_note_is_said_once() -> None:
    """The same note from two workers is one line."""
    job = Job()
    for text in ("first", "second", "first"):
        job.progress.note(text)
    assert job.view.notes == ("first", "second")


# --- text ------------------------------------------------------------------------------------


def test_the_text_has_a_line_per_device_one_for_the_job_and_the_notes() -> None:
    """The text view says what the panel says."""
    job = Job(total=1000)
    job.run(500)
    for _ in range(42):
        job.clock.now += 1
        job.answer(3, tokens=40)
    job.progress.recorded("m", 0, [failure()])
    job.progress.read(
        {"cuda:0": Reading(used_bytes=9 * GIB, total_bytes=15 * GIB, utilisation=0.97)}
    )
    job.progress.note("a note")
    assert render_text(job.progress.snapshot(), 120).splitlines() == [
        "cuda:0   running 42 s    127 of 1,000  120 tokens/s  9.0 of 15.0 GiB  97 % busy  m",
        "cuda:1   memory n/a  n/a busy",
        "running  127 of 1,000 prompts  42 s  ETA 4 min 47 s  120 tokens/s  1 failed",
        "a note",
    ]


def test_the_text_counts_prompts_where_there_are_no_tokens() -> None:
    """A classifier's line says prompts/s, while it runs and afterwards."""
    job = Job(total=1000)
    job.run(500)
    for _ in range(4):
        job.clock.now += 1
        job.progress.recorded("m", 0, [prediction()] * 56)
    lines = [
        "cuda:0   running 4 s     224 of 1,000  56.0 prompts/s  memory n/a  n/a busy  m",
        "running  224 of 1,000 prompts  4 s  ETA 13 s  56.0 prompts/s",
    ]
    first, _, last = render_text(job.progress.snapshot(), 120).splitlines()
    assert [first, last] == lines
    job.progress.finish("done")
    assert "  56.0 prompts/s  " in render_text(job.progress.snapshot(), 120)
    assert "tokens/s" not in render_text(job.progress.snapshot(), 120)


def test_the_text_names_the_reason_of_a_loss_and_a_device_that_is_gone() -> None:
    """A lost worker and a lost device are told apart in words."""
    job = Job()
    job.run()
    job.say(Exited(None, "SIGSEGV"), Started(2), Exited(3, None))
    job.progress.read({"cuda:1": Reading(lost=True)})
    text = render_text(job.progress.snapshot(), 200)
    assert "failed 0 s" in text
    assert "exit code 3" in text
    assert "cuda:1   the driver no longer answers" in text
    assert "1 restart" in text


def test_no_line_is_wider_than_asked() -> None:
    """Lines never wrap on a terminal, whatever the names are."""
    job = Job()
    job.progress.assign(3, "org/" + "x" * 300, ["cuda:1"])
    job.progress.note("y" * 300)
    lines = render_text(job.progress.snapshot(), 60).splitlines()
    assert max(map(len, lines)) == 60
    assert lines[1].endswith("...")


def test_text_from_elsewhere_stays_printable_and_on_its_line() -> None:
    """Newlines, escapes and lone surrogates cannot break the display."""
    assert one_line("a\nb\x1b[31mc\ud800d", 80) == "a b [31mc d"
    assert one_line("abcdef", 5) == "ab..."
    one_line("a\ud800", 80).encode()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (59.9, "59 s"), (62.0, "1 min 02 s"), (7500.0, "2 h 05 min")],
)
def test_durations_are_readable(seconds: float, text: str) -> None:
    """Seconds, minutes and hours, as people say them."""
    assert seconds_text(seconds) == text


def test_figures_are_readable() -> None:
    """Small rates keep a decimal; what is not known is n/a; a model goes by its last name."""
    assert [speed_text(9, rate, 5.0) for rate in (0.0, 3.14, 1234.5)] == [
        "0 tokens/s",
        "3.1 tokens/s",
        "1,234 tokens/s",
    ]
    assert [speed_text(0, 0.0, rate) for rate in (0.0, 56.04, 1234.5)] == [
        "0 prompts/s",
        "56.0 prompts/s",
        "1,234 prompts/s",
    ]
    assert memory_text(Reading(used_bytes=GIB)) == "1.0 of n/a GiB"
    assert [model_basename(name) for name in ("m", "org/m", "/dir/m/", "/")] == ["m", "m", "m", "/"]
