"""What is known of one worker, from its events and the outcomes of its prompts.

Pure: time comes with each call, which costs O(1). `progress` keeps one for each worker.
Imports `messages`, `rates` and `snapshot` alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, assert_never

from mgpu_magic.messages import (
    Event,
    Exited,
    Fatal,
    Hello,
    Hung,
    Loading,
    Outcomes,
    Ready,
    Started,
    Stats,
    Stopped,
)
from mgpu_magic.rates import Tally, Window, per_second
from mgpu_magic.snapshot import Phase, WorkerView, one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

_STAGES: Mapping[str, Phase] = {
    "importing": "importing",
    "imported": "waiting to load",
    "downloading": "downloading",
    "warming up": "warming up",
}
RATE_SECONDS = 5.0  # tokens/s: short enough to follow, long enough not to flicker
PACE_SECONDS = 30.0  # prompts/s, also behind the ETA: prompts finish in bursts
_LOADING = ("starting", "importing", "waiting to load", "downloading", "loading", "warming up")
_PAUSE_SECONDS = 1.0  # a shorter gap between two requests is a refill, not idleness
_MESSAGE_CHARS = 300
_SILENT = Stats(running=0, waiting=0, prompt_tokens=0, output_tokens=0)


@dataclass(slots=True)
class Stream:
    """A count of tokens that a worker's process reports, and that starts anew with it.

    Attributes:
        total: Tokens of this job.
        reported: What its process said last; None: nothing yet.
    """

    total: int = 0
    reported: int | None = None

    def receive(self, reported: int) -> None:
        """The process says how many there were since its start."""
        if self.reported is not None:
            self.total += max(0, reported - self.reported)
        self.reported = reported


@dataclass(slots=True, eq=False)
class Tracked:
    """A worker; its counts are of this job.

    Attributes:
        model: Name of its model in this job.
        devices: Labels of its devices.
        since: When its phase began.
        loads: From when to when it loaded, other than now.
    """

    model: str
    devices: tuple[str, ...]
    since: float
    phase: Phase = "starting"
    fraction: float | None = None
    load_seconds: float | None = None
    message: str = ""
    log: str = ""
    stats: Stats = _SILENT
    in_flight: int = 0
    drained_at: float | None = None
    lost: bool = False
    tally: Tally = field(default_factory=Tally)
    output: Stream = field(default_factory=Stream)
    prompt: Stream = field(default_factory=Stream)
    busy_seconds: float = 0.0
    restarts: int = 0
    peak_bytes: int | None = None
    rate: Window = field(default_factory=lambda: Window(RATE_SECONDS))
    prompt_rate: Window = field(default_factory=lambda: Window(RATE_SECONDS))
    pace: Window = field(default_factory=lambda: Window(PACE_SECONDS))
    loads: list[tuple[float, float]] = field(default_factory=list)
    load_began: float = field(init=False)

    def __post_init__(self) -> None:
        self.load_began = self.since

    def forget_job(self) -> None:
        """A new job begins; what is loaded stays loaded."""
        self.tally, self.in_flight = Tally(), 0
        self.output.total = self.prompt.total = 0
        self.busy_seconds, self.restarts, self.peak_bytes = 0.0, 0, None
        self.lost = False
        self.loads.clear()

    def hold(self, used_bytes: int | None) -> None:
        """One of its devices has so much memory in use, where known."""
        if used_bytes is not None:
            self.peak_bytes = max(used_bytes, self.peak_bytes or 0)

    @property
    def was_ready(self) -> bool:
        """Whether it had loaded its model."""
        return self.phase in ("running", "idle", "lost")

    @property
    def tokens(self) -> int:
        """Output tokens; those of unfinished answers included where its engine counts them."""
        return max(self.output.total, self.tally.output_tokens)

    def rate_at(self, now: float) -> float:
        """Output tokens per second."""
        return self.rate.per_second(now) if self.phase == "running" else 0.0

    def prompt_rate_at(self, now: float) -> float:
        """Prompt tokens per second."""
        return self.prompt_rate.per_second(now) if self.phase == "running" else 0.0

    def pace_at(self, now: float) -> float:
        """Answered prompts per second."""
        return self.pace.per_second(now) if self.phase == "running" else 0.0

    def speed_at(self, now: float) -> float:
        """Output tokens per second, or prompts per second where answers have no tokens."""
        return self.rate_at(now) if self.tokens else self.pace_at(now)

    def busy_at(self, now: float) -> float:
        """Seconds that it had requests."""
        end = now if self.drained_at is None else self.drained_at
        return self.busy_seconds + (end - self.since if self.phase == "running" else 0.0)

    def loads_until(self, now: float) -> list[tuple[float, float]]:
        """From when to when it loaded, the load that goes on included."""
        return [*self.loads, (self.load_began, now)] if self.phase in _LOADING else self.loads

    def enter(self, phase: Phase, at: float) -> None:
        """It is in this phase now."""
        if phase == self.phase:
            return
        if phase not in _LOADING:
            self.loads = self.loads_until(at)
        elif self.phase not in _LOADING:
            self.load_began = at
        self.busy_seconds = self.busy_at(at)
        if phase == "running":
            self.rate.restart(at, self.tokens)
            self.prompt_rate.restart(at, self._prompt_tokens)
            self.pace.restart(at, self.tally.answered)
        self.phase, self.since, self.fraction, self.drained_at = phase, at, None, None

    def settle(self, now: float, pause: float = _PAUSE_SECONDS) -> None:
        """Call it idle once it has had nothing to do for a while."""
        if self.drained_at is not None and now - self.drained_at >= pause:
            self.release("idle", self.drained_at)

    def release(self, phase: Phase, now: float) -> None:
        """It enters a phase in which it has no requests."""
        self.enter(phase, now)
        self.in_flight, self.stats = 0, _SILENT

    def resolve(self, count: int, now: float) -> None:
        """So many of its requests, which are in `tally`, are no more in flight."""
        self._count(now)
        self.in_flight = max(0, self.in_flight - count)
        if self.in_flight == 0 and self.phase == "running":
            self.drained_at = now

    def apply(self, event: Event, now: float) -> None:
        """It, or its launcher, says something."""
        match event:
            case Started() | Hello():
                if self.lost:
                    self.restarts += 1
                self.lost, self.message = False, ""
                self.output.reported = self.prompt.reported = 0
                self.enter("starting", now)
            case Loading():
                self.enter(_STAGES.get(event.stage, "loading"), now)
                self.fraction = event.fraction
            case Ready():
                self.load_seconds = event.load_seconds
                self.enter("idle", now)
            case Stats():
                self.stats = event
                self.output.receive(event.output_tokens)
                self.prompt.receive(event.prompt_tokens)
                self._count(now)
            case Outcomes():
                pass  # counted once the scheduler has accepted them
            case Fatal(error):
                text = " ".join(f"{error.kind}: {error.message}".split())
                self.message = one_line(text, _MESSAGE_CHARS)
                self.release("lost" if self.was_ready else "failed", now)
            case Hung(reason):
                self.message, self.lost = reason, True
                self.release("lost", now)
            case Stopped():
                self.release("stopped", now)
            case Exited():
                if self.phase != "stopped":
                    self.message = self.message or event.reason
                    self.lost = self.was_ready
                    self.release("lost" if self.lost else "failed", now)
            case _:
                assert_never(event)

    def view(self, now: float, *, model_done: int, total: int, over: bool) -> WorkerView:
        """It as observers see it.

        Args:
            now: The time.
            model_done: Prompts of its model that are resolved, by whichever worker.
            total: Prompts of its model.
            over: Whether the job is over, so that its speeds are averages.
        """
        self.settle(now)
        tokens, busy = self.tally.output_tokens, self.busy_at(now)
        return WorkerView(
            phase=self.phase,
            phase_seconds=now - self.since,
            fraction=self.fraction,
            model=self.model,
            done=self.tally.done,
            failed=self.tally.failed,
            model_done=model_done,
            total=total,
            running=self.stats.running,
            waiting=self.stats.waiting,
            output_tokens=tokens if over else self.tokens,
            output_tokens_per_second=per_second(tokens, busy) if over else self.rate_at(now),
            prompts_per_second=per_second(self.tally.answered, busy) if over else self.pace_at(now),
            kv_usage=self.stats.kv_usage,
            load_seconds=self.load_seconds,
            message=self.message,
            prompt_tokens_per_second=per_second(self.tally.prompt_tokens, busy)
            if over
            else self.prompt_rate_at(now),
            log=self.log,
        )

    @property
    def _prompt_tokens(self) -> int:
        return max(self.prompt.total, self.tally.prompt_tokens)

    def _count(self, now: float) -> None:
        self.rate.add(now, self.tokens)
        self.prompt_rate.add(now, self._prompt_tokens)
        self.pace.add(now, self.tally.answered)
