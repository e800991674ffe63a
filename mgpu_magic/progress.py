"""Gathers events, outcomes and device readings into snapshots.

```
events of workers ──┐
resolved outcomes ──┼─> Progress ── snapshot() ─> Snapshot ─> observers (panel, text view)
device readings   ──┘          └─── figures() ──> WorkerFigures (for the results)
```

Pure: time comes from the clock that it is given, and nothing is drawn. Each call costs O(1) per
worker or outcome, in bounded memory. Imports `messages`, `outcomes`, `rates`,
`snapshot` and `spec` alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, assert_never

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
from mgpu_magic.outcomes import Failure, Outcome
from mgpu_magic.rates import Tally, Window, per_second
from mgpu_magic.snapshot import (
    DeviceView,
    JobState,
    JobView,
    Observer,
    Phase,
    Reading,
    Snapshot,
    WorkerFigures,
    WorkerView,
    one_line,
    render_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mgpu_magic.spec import Device

__all__ = ["Observer", "Progress", "Reading", "Snapshot", "WorkerFigures", "render_text"]

_STAGES: Mapping[str, Phase] = {
    "importing": "importing",
    "imported": "waiting to load",
    "warming up": "warming up",
}
_RATE_SECONDS = 5.0  # tokens/s: short enough to follow, long enough not to flicker
_PACE_SECONDS = 30.0  # prompts/s, also behind the ETA: prompts finish in bursts
_PAUSE_SECONDS = 1.0  # a shorter gap between two requests is a refill, not idleness
_ENOUGH_OUTCOMES = 3
_ENOUGH_SECONDS = 2.0
_MESSAGE_CHARS = 300
_SILENT = Stats(running=0, waiting=0, prompt_tokens=0, output_tokens=0)


@dataclass(slots=True, eq=False)
class _Worker:
    model: str
    devices: tuple[str, ...]
    since: float
    phase: Phase = "starting"
    fraction: float | None = None
    load_seconds: float | None = None
    message: str = ""
    stats: Stats = _SILENT
    counter: int | None = None  # tokens that its process has reported, where known
    in_flight: int = 0
    drained_at: float | None = None
    lost: bool = False
    tally: Tally = field(default_factory=Tally)
    streamed: int = 0
    busy_seconds: float = 0.0
    restarts: int = 0
    peak_bytes: int | None = None
    rate: Window = field(default_factory=lambda: Window(_RATE_SECONDS))
    pace: Window = field(default_factory=lambda: Window(_PACE_SECONDS))

    def forget_job(self) -> None:
        self.tally, self.streamed, self.in_flight = Tally(), 0, 0
        self.busy_seconds, self.restarts, self.peak_bytes = 0.0, 0, None
        self.lost = False

    @property
    def was_ready(self) -> bool:
        return self.phase in ("running", "idle", "lost")

    @property
    def tokens(self) -> int:
        return max(self.streamed, self.tally.output_tokens)

    def rate_at(self, now: float) -> float:
        return self.rate.per_second(now) if self.phase == "running" else 0.0

    def pace_at(self, now: float) -> float:
        return self.pace.per_second(now) if self.phase == "running" else 0.0

    def busy_at(self, now: float) -> float:
        end = now if self.drained_at is None else self.drained_at
        return self.busy_seconds + (end - self.since if self.phase == "running" else 0.0)

    def enter(self, phase: Phase, at: float) -> None:
        if phase == self.phase:
            return
        self.busy_seconds = self.busy_at(at)
        if phase == "running":
            self.rate.restart(at, self.tokens)
            self.pace.restart(at, self.tally.answered)
        self.phase, self.since, self.fraction, self.drained_at = phase, at, None, None

    def settle(self, now: float, pause: float = _PAUSE_SECONDS) -> None:
        """Call it idle once it has had nothing to do for a while."""
        if self.drained_at is not None and now - self.drained_at >= pause:
            self.release("idle", self.drained_at)

    def release(self, phase: Phase, now: float) -> None:
        self.enter(phase, now)
        self.in_flight, self.stats = 0, _SILENT

    def receive(self, stats: Stats, now: float) -> None:
        if self.counter is not None:
            self.streamed += max(0, stats.output_tokens - self.counter)
        self.counter, self.stats = stats.output_tokens, stats
        self.count(now)

    def count(self, now: float) -> None:
        self.rate.add(now, self.tokens)
        self.pace.add(now, self.tally.answered)

    def apply(self, event: Event, now: float) -> None:
        match event:
            case Started() | Hello():
                if self.lost:
                    self.restarts += 1
                self.lost, self.message, self.counter = False, "", 0
                self.enter("starting", now)
            case Loading():
                self.enter(_STAGES.get(event.stage, "loading"), now)
                self.fraction = event.fraction
            case Ready():
                self.load_seconds = event.load_seconds
                self.enter("idle", now)
            case Stats():
                self.receive(event, now)
            case Outcomes():
                pass  # counted by `recorded`, once the scheduler has accepted them
            case Fatal(error):
                self.message = _clipped(f"{error.kind}: {error.message}")
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
        self._tally = Tally()
        self._model_done = dict.fromkeys(totals, 0)
        self._pace = Window(_PACE_SECONDS)
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

    def assign(self, worker: int, model: str, devices: Sequence[str]) -> None:
        """The job uses a worker: a living one as it is, any other is being started.

        Args:
            worker: Its number within the session, used in the other calls.
            model: Name of its model in this job.
            devices: Labels of its devices.
        """
        now = self._clock()
        entry = self._workers.get(worker)
        if entry is None:
            entry = self._workers[worker] = _Worker(model, tuple(devices), now)
        elif entry.phase in ("lost", "failed", "stopped"):
            entry.enter("starting", now)
        entry.model = model
        if entry not in self._assigned:
            self._assigned.append(entry)
        self._on.update(dict.fromkeys(devices, entry))

    def apply(self, worker: int, event: Event) -> None:
        """A worker, or its launcher, says something; of an unknown worker it is ignored."""
        if worker in self._workers:
            now = self._clock()
            self._workers[worker].apply(event, now)
            self._pace.add(now, self._tally.done)  # so that a standstill shows in the ETA

    def submitted(self, worker: int, count: int) -> None:
        """`count` requests went to a worker."""
        now, entry = self._clock(), self._workers[worker]
        if self._first_submit is None:
            self._first_submit = now
            self._pace.restart(now, self._tally.done)
        entry.settle(now)
        entry.enter("running", now)
        entry.in_flight += count
        entry.drained_at = None

    def recorded(self, model: str, worker: int | None, outcomes: Sequence[Outcome]) -> None:
        """Prompts are resolved.

        Args:
            model: Name of the model that they were for.
            worker: Who resolved them; None: nobody, such as after a failed load.
            outcomes: The outcomes; those of kind `"Interrupted"` were not resolved and count
                for nothing.
        """
        now = self._clock()
        entry = None if worker is None else self._workers.get(worker)
        for outcome in outcomes:
            if isinstance(outcome, Failure) and outcome.error.kind == "Interrupted":
                continue
            self._tally.add(outcome)
            self._model_done[model] = self._model_done.get(model, 0) + 1
            if entry is not None:
                entry.tally.add(outcome)
        self._pace.add(now, self._tally.done)
        if entry is not None:
            entry.count(now)
            entry.in_flight = max(0, entry.in_flight - len(outcomes))
            if entry.in_flight == 0 and entry.phase == "running":
                entry.drained_at = now

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
                device="+".join(
                    [worker.devices[0], *(d.split(":")[1] for d in worker.devices[1:])]
                ),
                model=worker.model,
                load_seconds=worker.load_seconds,
                prompts=worker.tally.done,
                failures=worker.tally.failed,
                prompt_tokens=worker.tally.prompt_tokens,
                output_tokens=worker.tally.output_tokens,
                busy_seconds=worker.busy_at(now),
                peak_bytes=worker.peak_bytes,
                restarts=worker.restarts,
            )
            for worker in self._assigned
        ]

    def _job(self, now: float) -> JobView:
        now = now if self._ended is None else self._ended
        tally, total = self._tally, sum(self._totals.values())
        ran = 0.0 if self._first_submit is None else now - self._first_submit
        if self._ended is None:
            tokens = max(tally.output_tokens, sum(worker.tokens for worker in self._assigned))
            rate = sum(worker.rate_at(now) for worker in self._assigned)
            pace = sum(worker.pace_at(now) for worker in self._assigned)
        else:
            tokens = tally.output_tokens
            rate, pace = per_second(tokens, ran), per_second(tally.answered, ran)
        return JobView(
            state=self._state,
            done=tally.done,
            failed=tally.failed,
            total=total,
            elapsed_seconds=now - self._began,
            eta_seconds=self._eta(total - tally.done, ran, now) if self._ended is None else None,
            output_tokens=tokens,
            output_tokens_per_second=rate,
            prompts_per_second=pace,
            prompt_tokens=tally.prompt_tokens,
            restarts=sum(worker.restarts for worker in self._assigned),
            notes=tuple(self._notes),
        )

    def _eta(self, left: int, ran: float, now: float) -> float | None:
        if self._tally.done < _ENOUGH_OUTCOMES or ran < _ENOUGH_SECONDS:
            return None
        pace = self._pace.per_second(now)
        return max(0, left) / pace if pace else None

    def _view(self, worker: _Worker, now: float) -> WorkerView:
        worker.settle(now)
        tally, stats = worker.tally, worker.stats
        if self._ended is None:
            tokens, rate, pace = worker.tokens, worker.rate_at(now), worker.pace_at(now)
        else:
            tokens, busy = tally.output_tokens, worker.busy_at(now)
            rate, pace = per_second(tokens, busy), per_second(tally.answered, busy)
        return WorkerView(
            phase=worker.phase,
            phase_seconds=now - worker.since,
            fraction=worker.fraction,
            model=worker.model,
            done=tally.done,
            failed=tally.failed,
            model_done=self._model_done.get(worker.model, 0),
            total=self._totals.get(worker.model, 0),
            running=stats.running,
            waiting=stats.waiting,
            output_tokens=tokens,
            output_tokens_per_second=rate,
            prompts_per_second=pace,
            kv_usage=stats.kv_usage,
            load_seconds=worker.load_seconds,
            message=worker.message,
        )


def _clipped(text: str) -> str:
    return one_line(" ".join(text.split()), _MESSAGE_CHARS)
