"""Gathers events, outcomes and device readings into snapshots.

```
events of workers ──┐
resolved outcomes ──┼─> Progress ── snapshot() ─> Snapshot ─> observers (panel, text view)
device readings   ──┘          └─── figures() ──> WorkerFigures (for the results)
```

Pure: time comes from the clock that it is given, and nothing is drawn. Each call costs O(1) per
worker or outcome, in bounded memory. Imports `messages`, `outcomes`, `rates`,
`snapshot`, `spec` and `tracked` alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isnan
from typing import TYPE_CHECKING, Literal

from mgpu_magic.errors import shortened
from mgpu_magic.outcomes import Failure, Outcome
from mgpu_magic.rates import History, Tally, Window, per_second
from mgpu_magic.snapshot import (
    DeviceHistory,
    DeviceView,
    FailureView,
    JobState,
    JobView,
    Observer,
    Reading,
    Snapshot,
    WorkerFigures,
    WorkerView,
    one_line,
    render_text,
)
from mgpu_magic.tracked import PACE_SECONDS, Tracked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mgpu_magic.messages import Event
    from mgpu_magic.spec import Device

__all__ = ["Observer", "Progress", "Reading", "Snapshot", "WorkerFigures", "render_text"]

_ENOUGH_OUTCOMES = 3
_ENOUGH_SECONDS = 2.0
_FAILURES = 20  # that are shown
_ERROR_CHARS = 200
_PROMPT_CHARS = 80
_NOTE_CHARS = 400
_LOG_CHARS = 4096
_POINTS = 240  # of a picture, about one for each three pixels


class _Course:
    """What is kept of a device for a picture of the job."""

    def __init__(self) -> None:
        self._seconds, self._utilisation, self._tokens, self._prompts = (
            History(mean=True, points=_POINTS) for _ in range(4)
        )
        self._memory = History(mean=False, points=_POINTS)

    def add(self, seconds: float, reading: Reading, worker: Tracked | None, now: float) -> None:
        self._seconds.add(seconds)
        self._memory.add(reading.used_bytes)
        self._utilisation.add(reading.utilisation)
        self._tokens.add(None if worker is None else worker.rate_at(now))
        self._prompts.add(None if worker is None else worker.pace_at(now))

    def history(self, device: str, loading: Sequence[tuple[float, float]]) -> DeviceHistory:
        return DeviceHistory(
            device=device,
            seconds=self._seconds.points,
            used_bytes=_known(self._memory),
            utilisation=_known(self._utilisation),
            tokens_per_second=_known(self._tokens),
            prompts_per_second=_known(self._prompts),
            loading=tuple(loading),
        )


def _known(history: History) -> tuple[float | None, ...]:
    return tuple(None if isnan(point) else point for point in history.points)


@dataclass(slots=True)
class _Sensors:
    """What was read of a device during the job."""

    reading: Reading = field(default_factory=Reading)
    peak_bytes: int | None = None
    memory: History = field(default_factory=lambda: History(mean=False))
    speed: History = field(default_factory=lambda: History(mean=True))
    course: _Course = field(default_factory=_Course)

    def add(self, reading: Reading, speed: float) -> None:
        self.reading = reading
        self.speed.add(speed)
        if reading.used_bytes is not None:
            self.peak_bytes = max(reading.used_bytes, self.peak_bytes or 0)
            self.memory.add(reading.used_bytes)


class Progress:
    """Gathers what happens into snapshots; one of it lives as long as its session.

    Args:
        devices: All that are shown, in this order.
        clock: Seconds from any start that never go back, such as `time.monotonic`.
    """

    def __init__(self, devices: Sequence[Device], clock: Callable[[], float]) -> None:
        self._devices = tuple(devices)
        self._clock = clock
        self._sensors = {device.label: _Sensors() for device in devices}
        self._workers: dict[int, Tracked] = {}
        self._on: dict[str, Tracked] = {}
        self._reset("new", {}, None)

    def _reset(
        self,
        state: JobState,
        totals: Mapping[str, int],
        peeps: Callable[[str, int], str] | None,
    ) -> None:
        self._state: JobState = state
        self._totals = dict(totals)
        self._peeps = peeps
        self._failures: list[FailureView] = []
        self._retries = 0
        self._began = self._clock()
        self._ended: float | None = self._began if state == "new" else None
        self._first_submit: float | None = None
        self._notes: dict[str, None] = {}
        self._tally = Tally()
        self._recorded = 0
        self._model_done = dict.fromkeys(totals, 0)
        self._pace = Window(PACE_SECONDS)
        self._assigned: list[Tracked] = []
        self._sensors = {
            label: _Sensors(device.reading, device.reading.used_bytes)
            for label, device in self._sensors.items()
        }

    def begin(
        self,
        totals: Mapping[str, int],
        peeps: Callable[[str, int], str] | None = None,
        recorded: Mapping[str, int] | None = None,
    ) -> None:
        """A new job begins; warm workers stay on their devices.

        Args:
            totals: Number of prompts by model name.
            peeps: `peeps(model, index)` is how that prompt begins, for the list of failures.
            recorded: How many of the prompts a journal has answered: they count as done, and
                for no speed.
        """
        self._reset("running", totals, peeps)
        self._model_done.update(recorded or {})
        self._recorded = sum(self._model_done.values())
        shown = set(self._on.values())
        self._workers = {i: worker for i, worker in self._workers.items() if worker in shown}
        for worker in shown:
            worker.forget_job()
        for label, worker in self._on.items():  # the job may be over before the next reading
            worker.hold(self._sensors[label].reading.used_bytes)

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
            entry = self._workers[worker] = Tracked(model, tuple(devices), now)
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

    def submitted(self, worker: int, count: int, retries: int = 0) -> None:
        """`count` requests went to a worker, `retries` of them not for the first time."""
        now, entry = self._clock(), self._workers[worker]
        if self._first_submit is None:
            self._first_submit = now
            self._pace.restart(now, self._tally.done)
        self._retries += retries
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
            if isinstance(outcome, Failure) and len(self._failures) < _FAILURES:
                self._failures.append(self._failure(model, outcome))
            self._model_done[model] = self._model_done.get(model, 0) + 1
            if entry is not None:
                entry.tally.add(outcome)
        self._pace.add(now, self._tally.done)
        if entry is not None:
            entry.resolve(len(outcomes), now)

    def read(self, readings: Mapping[str, Reading]) -> None:
        """New device readings, by device label."""
        now = self._clock()
        for label in self._sensors.keys() & readings.keys():
            reading, worker = readings[label], self._on.get(label)
            self._sensors[label].add(reading, worker.speed_at(now) if worker else 0.0)
            self._sensors[label].course.add(now - self._began, reading, worker, now)
            if worker is not None:
                worker.hold(reading.used_bytes)

    def logged(self, worker: int, tail: str) -> None:
        """The last of what a worker printed; of an unknown worker it is ignored."""
        if worker in self._workers:
            self._workers[worker].log = tail[-_LOG_CHARS:]

    def note(self, text: str) -> None:
        """Something the user should know; said once however often it comes."""
        self._notes[shortened(" ".join(text.split()), _NOTE_CHARS)] = None

    def finish(self, state: Literal["done", "interrupted", "failed"]) -> None:
        """The job is over: what is still in flight is given up, warm workers are idle."""
        now = self._clock()
        self._state, self._ended = state, now
        for worker in self._workers.values():
            worker.settle(now, pause=0.0)
            if worker.phase == "running":
                worker.release("idle", now)
            elif state == "failed" and worker.phase not in ("idle", "lost", "failed", "stopped"):
                worker.enter("stopped", now)  # it was on its way, and nobody needs it any more

    def snapshot(self) -> Snapshot:
        """The state now."""
        now = self._clock()
        views = {worker: self._view(worker, now) for worker in set(self._on.values())}
        devices = tuple(
            DeviceView(
                label=device.label,
                name=device.name,
                kind=device.kind,
                reading=sensors.reading,
                peak_bytes=sensors.peak_bytes,
                worker=views[self._on[device.label]] if device.label in self._on else None,
                memory_history=sensors.memory.points,
                speed_history=sensors.speed.points,
            )
            for device, sensors in zip(self._devices, self._sensors.values(), strict=True)
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
                history=tuple(self._history(label, now) for label in worker.devices),
            )
            for worker in self._assigned
        ]

    def _history(self, label: str, now: float) -> DeviceHistory:
        now = now if self._ended is None else self._ended
        loading = [
            (max(0.0, start - self._began), end - self._began)
            for worker in self._workers.values()
            if label in worker.devices
            for start, end in worker.loads_until(now)
            if end > self._began
        ]
        return self._sensors[label].course.history(label, sorted(loading))

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
        done = tally.done + self._recorded
        eta = self._eta(total - done, ran, now) if self._ended is None else None
        return JobView(
            state=self._state,
            done=done,
            failed=tally.failed,
            total=total,
            elapsed_seconds=now - self._began,
            eta_seconds=eta,
            output_tokens=tokens,
            output_tokens_per_second=rate,
            prompts_per_second=pace,
            prompt_tokens=tally.prompt_tokens,
            restarts=sum(worker.restarts for worker in self._assigned),
            notes=tuple(self._notes),
            eta_doubt_seconds=None if eta is None else eta * self._pace.doubt(),
            retries=self._retries,
            failures=tuple(self._failures),
        )

    def _eta(self, left: int, ran: float, now: float) -> float | None:
        if self._tally.done < _ENOUGH_OUTCOMES or ran < _ENOUGH_SECONDS:
            return None
        pace = self._pace.per_second(now)
        return max(0, left) / pace if pace else None

    def _view(self, worker: Tracked, now: float) -> WorkerView:
        return worker.view(
            now,
            model_done=self._model_done.get(worker.model, 0),
            total=self._totals.get(worker.model, 0),
            over=self._ended is not None,
        )

    def _failure(self, model: str, failure: Failure) -> FailureView:
        error = f"{failure.error.kind}: {failure.error.message}"
        return FailureView(
            model=model,
            index=failure.index,
            error=_clipped(error, _ERROR_CHARS),
            prompt=_clipped(
                self._peeps(model, failure.index) if self._peeps else "", _PROMPT_CHARS
            ),
        )


def _clipped(text: str, width: int) -> str:
    return one_line(" ".join(text[: 4 * width].split()), width)
