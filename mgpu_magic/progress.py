"""How a job is getting on, as one frozen value, and that value as text.

```
events of workers ──┐
resolved outcomes ──┼─> Progress ── snapshot() ─> Snapshot ─> observers (panel, text view)
device readings   ──┘          └─── figures() ──> WorkerFigures (for the results)
```

Pure: time comes from the clock that `Progress` is given, and nothing is drawn here. Each call
costs O(1) per worker or outcome, in bounded memory. Imports `messages` and `spec` alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, assert_never

from mgpu_magic.messages import (
    Event,
    Exited,
    Failure,
    Fatal,
    Hello,
    Loading,
    Outcome,
    Outcomes,
    Ready,
    Started,
    Stats,
    Stopped,
)
from mgpu_magic.spec import Device

JobState = Literal["new", "running", "done", "interrupted", "failed"]
Phase = Literal[
    "starting", "importing", "waiting to load", "loading", "warming up",
    "running", "idle", "lost", "failed", "stopped",
]  # fmt: skip

_STAGES: Mapping[str, Phase] = {
    "importing": "importing",
    "imported": "waiting to load",
    "warming up": "warming up",
}
_RATE_SECONDS = 5.0  # tokens/s: short enough to follow, long enough not to flicker
_PACE_SECONDS = 30.0  # prompts/s behind the ETA: prompts finish in bursts
_PAUSE_SECONDS = 1.0  # a shorter gap between two requests is a refill, not idleness
_ENOUGH_OUTCOMES = 3
_ENOUGH_SECONDS = 2.0
_MESSAGE_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a device's sensors say at one moment; None: not known (shown as n/a, never as 0).

    Attributes:
        used_bytes: Memory in use on a GPU, whoever uses it; on CPU devices the workers' own.
        total_bytes: Memory that there is.
        utilisation: Part of the time that the device was busy, 0 to 1.
        temperature: Degrees Celsius.
        power_watts: Power drawn.
        power_limit_watts: Power that it may draw.
        lost: The driver no longer answers for this device.
    """

    used_bytes: int | None = None
    total_bytes: int | None = None
    utilisation: float | None = None
    temperature: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    lost: bool = False

    @property
    def free_bytes(self) -> int | None:
        """Memory that is left, where known."""
        if self.used_bytes is None or self.total_bytes is None:
            return None
        return max(0, self.total_bytes - self.used_bytes)


# --- what observers get ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """One worker at one moment. Counts are of this job.

    Attributes:
        phase: What it is doing.
        phase_seconds: For how long.
        fraction: Part of the phase that is done, 0 to 1, where known.
        model: Name of its model.
        done: Prompts that it resolved, failed ones included.
        failed: Prompts that failed on it.
        model_done: Prompts of its model that are resolved, by whichever worker.
        total: Prompts of its model; 0 where the job has none for it.
        running: Requests that its engine works on.
        waiting: Requests that its engine holds back.
        output_tokens: Tokens generated, those of unfinished answers included where known.
        output_tokens_per_second: Over the last seconds; the average once the job is over.
        kv_usage: Part of its KV cache in use, 0 to 1, where known.
        load_seconds: How long its model took to load, once it has.
        message: Why it was lost or failed, on one line; else empty.
    """

    phase: Phase
    phase_seconds: float
    fraction: float | None
    model: str
    done: int
    failed: int
    model_done: int
    total: int
    running: int
    waiting: int
    output_tokens: int
    output_tokens_per_second: float
    kv_usage: float | None
    load_seconds: float | None
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceView:
    """One device at one moment.

    Attributes:
        label: Such as `"cuda:0"`.
        name: Product name.
        kind: `"cuda"` or `"cpu"`.
        reading: Its sensors.
        peak_bytes: Most memory seen in use during the job, where known.
        worker: The worker on it, if any; a tensor-parallel worker is on each of its devices.
    """

    label: str
    name: str
    kind: Literal["cuda", "cpu"]
    reading: Reading
    peak_bytes: int | None
    worker: WorkerView | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """The job at one moment.

    Attributes:
        state: `"new"` until the first job begins.
        done: Prompts resolved, failed ones included; an ensemble counts each model's.
        failed: Prompts without an answer.
        total: Prompts in all.
        elapsed_seconds: Since it began, loading included.
        eta_seconds: Until it is done, once there is enough to tell by.
        output_tokens: Tokens generated; those of resolved prompts alone once it is over.
        output_tokens_per_second: Over the last seconds, all devices together; once it is over
            the average since the first prompt was submitted.
        prompt_tokens: Prompt tokens of resolved prompts.
        restarts: How often a lost worker was started again.
        notes: What the user should know, a line each.
    """

    state: JobState
    done: int
    failed: int
    total: int
    elapsed_seconds: float
    eta_seconds: float | None
    output_tokens: int
    output_tokens_per_second: float
    prompt_tokens: int
    restarts: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The job and every device at one moment: all that a view needs."""

    job: JobView
    devices: tuple[DeviceView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFigures:
    """What one worker did for the job.

    Attributes:
        device: Label of its device, `"cuda:0+1"` for a tensor-parallel group.
        model: Name of its model.
        load_seconds: How long its model took to load; None: it never was ready.
        prompts: Prompts that it resolved, failed ones included.
        failures: Prompts that failed on it.
        prompt_tokens: Prompt tokens of those prompts.
        output_tokens: Tokens of their answers.
        busy_seconds: How long it had requests.
        peak_bytes: Most memory seen in use on its fullest device, where known.
        restarts: How often it was started again after being lost.
    """

    device: str
    model: str
    load_seconds: float | None
    prompts: int
    failures: int
    prompt_tokens: int
    output_tokens: int
    busy_seconds: float
    peak_bytes: int | None
    restarts: int


class Observer(Protocol):
    """Something that shows snapshots."""

    def update(self, snapshot: Snapshot) -> None:
        """Show how it is getting on; may be called more often than it draws."""

    def finish(self, snapshot: Snapshot) -> None:
        """Show the final state; called once, last."""


# --- the accumulator -------------------------------------------------------------------------


class _Window:
    """How fast a counter grew over the last seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._samples: deque[tuple[float, int]] = deque()

    def restart(self, now: float, count: int) -> None:
        self._samples.clear()
        self._samples.append((now, count))

    def add(self, now: float, count: int) -> None:
        samples = self._samples
        if len(samples) > 1 and now - samples[-2][0] < self._seconds / 20:
            samples[-1] = (now, count)
        else:
            samples.append((now, count))
        while len(samples) > 2 and samples[1][0] <= now - self._seconds:
            samples.popleft()

    def per_second(self, now: float) -> float:
        if not self._samples or self._samples[-1][0] < now - self._seconds:
            return 0.0
        (start, before), (end, after) = self._samples[0], self._samples[-1]
        return max(0, after - before) / max(1.0, end - start)


@dataclass(slots=True)
class _Tally:
    done: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0

    def add(self, outcome: Outcome) -> None:
        self.done += 1
        if isinstance(outcome, Failure):
            self.failed += 1
        else:
            self.prompt_tokens += outcome.prompt_tokens
            self.output_tokens += outcome.output_tokens


@dataclass(slots=True, eq=False)
class _Worker:
    model: str
    devices: tuple[str, ...]
    since: float
    phase: Phase = "starting"
    fraction: float | None = None
    load_seconds: float | None = None
    message: str = ""
    stats: Stats = Stats(0, 0, 0, 0)
    counter: int | None = None  # tokens that the process had reported; None: not known
    in_flight: int = 0
    drained_at: float | None = None
    lost: bool = False
    tally: _Tally = field(default_factory=_Tally)
    streamed: int = 0
    busy_seconds: float = 0.0
    restarts: int = 0
    peak_bytes: int | None = None
    rate: _Window = field(default_factory=lambda: _Window(_RATE_SECONDS))

    def forget_job(self) -> None:
        self.tally, self.streamed, self.in_flight = _Tally(), 0, 0
        self.busy_seconds, self.restarts, self.peak_bytes = 0.0, 0, None

    @property
    def was_ready(self) -> bool:
        return self.phase in ("running", "idle", "lost")

    @property
    def tokens(self) -> int:
        return max(self.streamed, self.tally.output_tokens)

    def enter(self, phase: Phase, at: float) -> None:
        if phase == self.phase:
            return
        if self.phase == "running":
            self.busy_seconds += at - self.since
        if phase == "running":
            self.rate.restart(at, self.tokens)
        self.phase, self.since, self.fraction, self.drained_at = phase, at, None, None

    def settle(self, now: float, pause: float = _PAUSE_SECONDS) -> None:
        """Call it idle once it has had nothing to do for a while."""
        if self.drained_at is not None and now - self.drained_at >= pause:
            self.enter("idle", self.drained_at)

    def release(self, phase: Phase, now: float) -> None:
        self.enter(phase, now)
        self.in_flight, self.stats = 0, Stats(0, 0, 0, 0)

    def receive(self, stats: Stats, now: float) -> None:
        if self.counter is not None:
            # a counter that went back belongs to a new process, which began at 0
            grown = stats.output_tokens - self.counter
            self.streamed += grown if grown >= 0 else stats.output_tokens
        self.counter, self.stats = stats.output_tokens, stats
        self.rate.add(now, self.tokens)

    def apply(self, event: Event, now: float) -> None:
        match event:
            case Started() | Hello():
                self.restarts += self.lost
                self.lost, self.message = False, ""
                self.enter("starting", now)
            case Loading():
                self.enter(_STAGES.get(event.stage, "loading"), now)
                self.fraction = event.fraction
            case Ready():
                self.load_seconds, self.counter = event.load_seconds, 0
                self.enter("idle", now)
            case Stats():
                self.receive(event, now)
            case Outcomes():
                pass  # counted by `recorded`, once the scheduler has accepted them
            case Fatal(error):
                self.message = one_line(f"{error.kind}: {error.message}", _MESSAGE_CHARS)
                self.release("lost" if self.was_ready else "failed", now)
            case Stopped():
                self.release("stopped", now)
            case Exited():
                if self.phase != "stopped":
                    self.message = self.message or event.reason
                    self.lost = self.was_ready
                    self.release("lost" if self.lost else "failed", now)
            case _:
                assert_never(event)


class Progress:
    """Gathers what happens into snapshots; one of it lives as long as its session.

    Args:
        devices: All that are shown, in this order.
        clock: Seconds from any start that never go back, such as `time.monotonic`.
    """

    def __init__(self, devices: Sequence[Device], clock: Callable[[], float]) -> None:
        self._devices = tuple(devices)
        self._clock = clock
        self._readings = {device.label: Reading() for device in devices}
        self._workers: dict[int, _Worker] = {}
        self._on: dict[str, _Worker] = {}
        self._reset("new", {})

    def _reset(self, state: JobState, totals: Mapping[str, int]) -> None:
        self._state: JobState = state
        self._totals = dict(totals)
        self._began = self._clock()
        self._ended: float | None = self._began if state == "new" else None
        self._first_submit: float | None = None
        self._notes: dict[str, None] = {}
        self._tally = _Tally()
        self._model_done = dict.fromkeys(totals, 0)
        self._pace = _Window(_PACE_SECONDS)
        self._assigned: list[_Worker] = []
        self._peaks = {label: reading.used_bytes for label, reading in self._readings.items()}

    def begin(self, totals: Mapping[str, int]) -> None:
        """A new job begins; warm workers stay on their devices.

        Args:
            totals: Number of prompts by model name.
        """
        self._reset("running", totals)
        shown = set(self._on.values())
        self._workers = {i: worker for i, worker in self._workers.items() if worker in shown}
        for worker in shown:
            worker.forget_job()

    def assign(
        self,
        worker: int,
        model: str,
        devices: Sequence[str],
        *,
        load_seconds: float | None = None,
    ) -> None:
        """The job uses a worker, or starts it again.

        Args:
            worker: Its number, used in the other calls.
            model: Name of its model.
            devices: Labels of its devices.
            load_seconds: Of a warm worker: how long its load took. None: it is started now.
        """
        now = self._clock()
        view = self._workers.get(worker)
        if view is None or (view.model, view.devices) != (model, tuple(devices)):
            view = self._workers[worker] = _Worker(model, tuple(devices), now)
        if view not in self._assigned:
            self._assigned.append(view)
        self._on.update(dict.fromkeys(devices, view))
        view.load_seconds = load_seconds
        view.enter("starting" if load_seconds is None else "idle", now)

    def apply(self, worker: int, event: Event) -> None:
        """A worker, or its launcher, says something; of an unknown worker it is ignored."""
        if worker in self._workers:
            now = self._clock()
            self._workers[worker].apply(event, now)
            self._pace.add(now, self._tally.done)  # so that a standstill shows in the ETA

    def submitted(self, worker: int, count: int) -> None:
        """`count` requests went to a worker."""
        now, view = self._clock(), self._workers[worker]
        if self._first_submit is None:
            self._first_submit = now
            self._pace.restart(now, self._tally.done)
        view.settle(now)
        view.enter("running", now)
        view.in_flight += count
        view.drained_at = None

    def recorded(self, model: str, worker: int | None, outcomes: Sequence[Outcome]) -> None:
        """Prompts are resolved.

        Args:
            model: Name of the model that they were for.
            worker: Who resolved them; None: nobody, such as after a failed load.
            outcomes: The outcomes; those of kind `"Interrupted"` were not resolved and count
                for nothing.
        """
        now = self._clock()
        view = None if worker is None else self._workers.get(worker)
        for outcome in outcomes:
            if isinstance(outcome, Failure) and outcome.error.kind == "Interrupted":
                continue
            self._tally.add(outcome)
            self._model_done[model] = self._model_done.get(model, 0) + 1
            if view is not None:
                view.tally.add(outcome)
        self._pace.add(now, self._tally.done)
        if view is not None:
            view.rate.add(now, view.tokens)
            view.in_flight = max(0, view.in_flight - len(outcomes))
            if view.in_flight == 0 and view.phase == "running":
                view.drained_at = now

    def read(self, readings: Mapping[str, Reading]) -> None:
        """New device readings, by device label."""
        for label in self._readings.keys() & readings.keys():
            self._readings[label] = readings[label]
            used = readings[label].used_bytes
            if used is not None:
                self._peaks[label] = max(used, self._peaks[label] or 0)
                if worker := self._on.get(label):
                    worker.peak_bytes = max(used, worker.peak_bytes or 0)

    def note(self, text: str) -> None:
        """Something the user should know; said once however often it comes."""
        self._notes[text] = None

    def finish(self, state: Literal["done", "interrupted", "failed"]) -> None:
        """The job is over: what is still in flight is given up, warm workers are idle."""
        now = self._clock()
        self._state, self._ended = state, now
        for worker in self._workers.values():
            worker.settle(now, pause=0.0)
            if worker.phase == "running":
                worker.release("idle", now)

    def snapshot(self) -> Snapshot:
        """The state now."""
        now = self._clock()
        views = {worker: self._view(worker, now) for worker in set(self._on.values())}
        devices = tuple(
            DeviceView(
                label=device.label,
                name=device.name,
                kind=device.kind,
                reading=self._readings[device.label],
                peak_bytes=self._peaks[device.label],
                worker=views[self._on[device.label]] if device.label in self._on else None,
            )
            for device in self._devices
        )
        return Snapshot(self._job(now), devices)

    def figures(self) -> list[WorkerFigures]:
        """What each worker of the job did, in the order of their first assignment."""
        now = self._clock()
        return [
            WorkerFigures(
                device="+".join([worker.devices[0], *(d.split(":")[1] for d in worker.devices[1:])]),
                model=worker.model,
                load_seconds=worker.load_seconds,
                prompts=worker.tally.done,
                failures=worker.tally.failed,
                prompt_tokens=worker.tally.prompt_tokens,
                output_tokens=worker.tally.output_tokens,
                busy_seconds=worker.busy_seconds
                + (now - worker.since if worker.phase == "running" else 0.0),
                peak_bytes=worker.peak_bytes,
                restarts=worker.restarts,
            )
            for worker in self._assigned
        ]
