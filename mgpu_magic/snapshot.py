"""How a job is getting on, as one frozen value, and that value as text.

```
Snapshot
├── job: JobView
└── devices: DeviceView each
    ├── reading: Reading         what its sensors say
    └── worker: WorkerView       what runs on it
```

`progress` makes snapshots, observers show them. Imports nothing of the package.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

JobState = Literal["new", "running", "done", "interrupted", "failed"]
Phase = Literal[
    "starting", "importing", "waiting to load", "downloading", "loading", "warming up",
    "running", "idle", "lost", "failed", "stopped",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a device's sensors say at one moment; None: not known (shown as n/a, never as 0).

    Attributes:
        used_bytes: Memory in use on a GPU, whoever uses it; on CPU devices the workers' own.
        own_bytes: The part of it that this session's workers use.
        total_bytes: Memory that there is.
        utilisation: Part of the time that the device was busy, 0 to 1.
        temperature: Degrees Celsius.
        power_watts: Power drawn.
        power_limit_watts: Power that it may draw.
        lost: The driver no longer answers for this device.
    """

    used_bytes: int | None = None
    own_bytes: int | None = None
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
        prompts_per_second: Answered prompts, the same way.
        kv_usage: Part of its KV cache in use, 0 to 1, where known.
        load_seconds: How long its model took to load, once it has.
        message: Why it was lost or failed, on one line; else empty.
        prompt_tokens_per_second: Prompt tokens of finished requests, like the output tokens.
        log: The last of what it printed.
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
    prompts_per_second: float
    kv_usage: float | None
    load_seconds: float | None
    message: str
    prompt_tokens_per_second: float = 0.0
    log: str = ""


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
        memory_history: Bytes in use during the job, evenly spaced, up to now.
        speed_history: Output tokens per second the same way; prompts per second where the
            answers have no tokens.
    """

    label: str
    name: str
    kind: Literal["cuda", "cpu"]
    reading: Reading
    peak_bytes: int | None
    worker: WorkerView | None
    memory_history: tuple[float, ...] = ()
    speed_history: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureView:
    """A prompt without an answer.

    Attributes:
        model: Name of the model that it was for.
        index: Its place among the prompts.
        error: Kind and message, on one line.
        prompt: How the prompt begins, on one line; empty where it is not known.
    """

    model: str
    index: int
    error: str
    prompt: str


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
        prompts_per_second: Answered prompts, the same way.
        prompt_tokens: Prompt tokens of resolved prompts.
        restarts: How often a lost worker was started again.
        notes: What the user should know, a line each.
        eta_doubt_seconds: By how much the ETA may be wrong, either way.
        retries: How many prompts were sent once more, because their worker was lost.
        failures: The first of the failed prompts.
    """

    state: JobState
    done: int
    failed: int
    total: int
    elapsed_seconds: float
    eta_seconds: float | None
    output_tokens: int
    output_tokens_per_second: float
    prompts_per_second: float
    prompt_tokens: int
    restarts: int
    notes: tuple[str, ...]
    eta_doubt_seconds: float | None = None
    retries: int = 0
    failures: tuple[FailureView, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The job and every device at one moment: all that a view needs."""

    job: JobView
    devices: tuple[DeviceView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHistory:
    """How a job went on one device: a few hundred points at most; None: not known.

    Of two models that ran on it one after the other it covers both.

    Attributes:
        device: Label, such as `"cuda:0"`.
        seconds: When each point was, since the job began.
        used_bytes: Memory in use at each point, the most where a point stands for a while.
        utilisation: Part of the time that the device was busy, 0 to 1.
        tokens_per_second: Output tokens of its worker, over the last seconds before the point.
        prompts_per_second: Prompts that its worker answered, over the last half minute.
        loading: From when to when a model was being loaded.
    """

    device: str
    seconds: tuple[float, ...] = ()
    used_bytes: tuple[float | None, ...] = ()
    utilisation: tuple[float | None, ...] = ()
    tokens_per_second: tuple[float | None, ...] = ()
    prompts_per_second: tuple[float | None, ...] = ()
    loading: tuple[tuple[float, float], ...] = ()


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
        history: How the job went on each of its devices.
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
    history: tuple[DeviceHistory, ...] = ()


class Observer(Protocol):
    """Something that shows snapshots."""

    def update(self, snapshot: Snapshot) -> None:
        """Show how it is getting on; may be called more often than it draws."""

    def finish(self, snapshot: Snapshot) -> None:
        """Show the final state; called once, last."""


# --- as text ---------------------------------------------------------------------------------


def render_text(snapshot: Snapshot, width: int = 80) -> str:
    """A line per device, one for the job and one per note.

    Args:
        snapshot: What to show.
        width: Columns that a line may have; longer ones are cut.
    """
    lines = [device_line(device) for device in snapshot.devices]
    if snapshot.job.state != "new":
        lines.append(job_line(snapshot.job))
    return "\n".join(one_line(line, width) for line in (*lines, *snapshot.job.notes))


def device_line(device: DeviceView) -> str:
    """Such as `"cuda:0  running 42 s  412 of 1,000  1,234 tokens/s  9.8 of 15.0 GiB  97 %"`."""
    worker, reading = device.worker, device.reading
    parts = [f"{device.label:<7}"]
    if reading.lost:
        parts.append("the driver no longer answers for this device")
    if worker is not None:
        parts.append(f"{phase_text(worker):<14}")
        if worker.message:
            parts.append(worker.message)
        if worker.total:
            parts.append(f"{worker.done:,} of {worker.total:,}")
        if speed := worker_speed(worker):
            parts.append(speed)
    parts += [memory_text(reading), f"{percent_text(reading.utilisation)} busy"]
    if worker is not None:
        parts.append(model_basename(worker.model))
    return "  ".join(parts)


def job_line(job: JobView) -> str:
    """Such as `"running  412 of 1,000 prompts  42 s  ETA 1 min 02 s  1,234 tokens/s"`."""
    parts = [f"{job.state:<7}", f"{job.done:,} of {job.total:,} prompts", *job_figures(job)]
    return "  ".join(parts)


def job_figures(job: JobView) -> list[str]:
    """Time, speed, failures and restarts of a job, as far as there is something to say."""
    figures = [seconds_text(job.elapsed_seconds)]
    if job.eta_seconds is not None:
        figures.append(f"ETA {seconds_text(job.eta_seconds)}")
    if job.output_tokens or job.prompts_per_second:
        figures.append(
            speed_text(job.output_tokens, job.output_tokens_per_second, job.prompts_per_second)
        )
    if job.failed:
        figures.append(f"{job.failed:,} failed")
    if job.restarts:
        figures.append(f"{job.restarts} restart{'s' if job.restarts > 1 else ''}")
    if job.retries:
        figures.append(f"{job.retries:,} retried")
    return figures


def phase_text(worker: WorkerView) -> str:
    """Such as `"loading 12 s"` or `"loading 12 s (40 %)"`."""
    text = f"{worker.phase} {seconds_text(worker.phase_seconds)}"
    return text if worker.fraction is None else f"{text} ({percent_text(worker.fraction)})"


def seconds_text(seconds: float) -> str:
    """`"42 s"`, `"1 min 02 s"` or `"2 h 05 min"`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes_rest = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes_rest:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def worker_speed(worker: WorkerView) -> str:
    """Its speed; empty where it has none, as before it runs."""
    tokens, prompts = worker.output_tokens_per_second, worker.prompts_per_second
    if worker.phase == "running" or tokens or prompts:
        return speed_text(worker.output_tokens, tokens, prompts)
    return ""


def speed_text(output_tokens: int, tokens_per_second: float, prompts_per_second: float) -> str:
    """`"1,234 tokens/s"`, or `"56.0 prompts/s"` where the answers have no tokens."""
    if output_tokens:
        return f"{rate_text(tokens_per_second, 10)} tokens/s"
    return f"{rate_text(prompts_per_second, 100)} prompts/s"


def rate_text(per_second: float, small: float) -> str:
    """`"1,234"`; with a decimal below `small`."""
    return f"{per_second:,.1f}" if 0 < per_second < small else f"{per_second:,.0f}"


def percent_text(part: float | None) -> str:
    """`"97 %"`, or `"n/a"`."""
    return "n/a" if part is None else f"{part:.0%}".replace("%", " %")


def memory_text(reading: Reading) -> str:
    """`"9.8 of 15.0 GiB"`, or `"memory n/a"`."""
    used, total = (
        "n/a" if size is None else f"{size / 2**30:.1f}"
        for size in (reading.used_bytes, reading.total_bytes)
    )
    return "memory n/a" if used == total == "n/a" else f"{used} of {total} GiB"


def model_basename(model: str) -> str:
    """`"Qwen2.5-7B"` of `"Qwen/Qwen2.5-7B"` or `"/models/Qwen2.5-7B/"`."""
    return model.rstrip("/").rpartition("/")[2] or model


def one_line(text: str, width: int) -> str:
    """`text` on one line that can be printed and sent anywhere, cut to `width` characters."""
    line = "".join(char if char.isprintable() else " " for char in text)
    return line if len(line) <= width else line[: max(0, width - 3)] + "..."
