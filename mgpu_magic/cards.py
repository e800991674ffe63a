"""A snapshot as HTML: the job as a header, each device as a card.

```
● Running  750 of 1,000 prompts (75 %)                          ETA 24 s ± 3 s
[===============================================----------------]
1 min 13 s · 2,468 tokens/s · 36,000 tokens out · 9,000 in · 2 failed

cuda:0  Tesla T4    ● running 42 s  │ cuda:1  Tesla T4     ◐ loading 12 s
Qwen2.5-7B-Instruct                 │ Qwen2.5-7B-Instruct
[=====------------------]           │ [/////////////////////]
250 of 1,000   256 running · 31 w.  │ 0 of 1,000
1,234 tokens/s │ 9.8 of 15.0 GiB    │ ...
~~curve~~      │ ~~curve~~          │
[#########==------------] memory    │
97 % busy · 71 °C · 62 of 70 W      │
```

Each line keeps its place while figures come and go. Imports `markup` and `snapshot` alone.
"""

from __future__ import annotations

from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING

from mgpu_magic.markup import (
    AMBER,
    BLUE,
    CUT,
    GREEN,
    GREY,
    RED,
    VIOLET,
    bar,
    ends,
    faint,
    hatched,
    mark,
    root,
    row,
    safe,
    spark,
    spoken,
)
from mgpu_magic.snapshot import (
    device_line,
    model_basename,
    one_line,
    percent_text,
    phase_text,
    rate_text,
    seconds_text,
    speed_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mgpu_magic.snapshot import DeviceView, JobView, Reading, Snapshot, WorkerView

_MESSAGE_CHARS = 120  # on the card; the whole message is its tooltip
_MANY_DEVICES = 4  # their curves have half the points, so that the panel stays small
_HEADROOM = 1.15  # above the highest point of a curve
_GIB = 2**30
_FEW_NOTES = 3
_LINE_CHARS = 200
_FEW_WORDS = 60  # characters
_SURE = 0.5  # an ETA that may be wrong by more than this part is "about"

_LOADING = ("starting", "importing", "waiting to load", "downloading", "loading", "warming up")
_PHASE_MARKS = {
    **dict.fromkeys(_LOADING, ("◐", AMBER)),
    "running": ("●", BLUE),
    "idle": ("○", GREEN),
    "stopped": ("■", GREY),
    "lost": ("▲", RED),
    "failed": ("✗", RED),
}
_JOB_MARKS = {
    "running": ("●", BLUE),
    "done": ("✓", GREEN),
    "interrupted": ("■", AMBER),
    "failed": ("✗", RED),
}
_NO_MARK = ("○", GREY)


def render_html(snapshot: Snapshot) -> str:
    """The job as a header and each device as a card.

    All text from elsewhere (names of models and devices, errors, notes) is escaped.
    """
    job = snapshot.job
    header = "" if job.state == "new" else _header(job)
    coarse = len(snapshot.devices) > _MANY_DEVICES
    cards = "".join(_card(device, coarse) for device in snapshot.devices)
    notes = _notes(job)
    return root(
        f'{header}<div style="display:grid;gap:8px;margin:8px 0;'
        f'grid-template-columns:repeat(auto-fit,minmax(250px,1fr))">{cards}</div>{notes}'
    )


def compact_html(snapshot: Snapshot) -> str:
    """The job as a header and each device as a line, for where words need the room."""
    lines = "\n".join(one_line(device_line(device), _LINE_CHARS) for device in snapshot.devices)
    header = "" if snapshot.job.state == "new" else _header(snapshot.job)
    style = "margin:8px 0;font-size:12px;white-space:pre-wrap;color:inherit;background:none"
    table = f'<pre style="{style}">{escape(lines)}</pre>'
    return root(f"{header}{table}{_notes(snapshot.job)}")


def _notes(job: JobView) -> str:
    return "".join(
        f'<div style="white-space:normal">{faint(safe(note))}</div>' for note in job.notes
    )


def leaner(snapshot: Snapshot) -> Iterator[Snapshot]:
    """The same with less and less to draw, for where the size is limited."""
    yield snapshot
    bare = tuple(
        replace(device, speed_history=(), memory_history=()) for device in snapshot.devices
    )
    yield replace(snapshot, devices=bare)
    terse = tuple(replace(device, worker=_terse(device.worker)) for device in bare)
    notes = snapshot.job.notes
    if left_out := len(notes[_FEW_NOTES:]):
        notes = (*notes[:_FEW_NOTES], f"and {left_out} more notes")
    yield replace(snapshot, devices=terse, job=replace(snapshot.job, notes=notes))


def _terse(worker: WorkerView | None) -> WorkerView | None:
    return worker and replace(worker, message=one_line(worker.message, _FEW_WORDS))


# --- the job ---------------------------------------------------------------------------------


def _header(job: JobView) -> str:
    share = job.done / job.total if job.total else 1.0
    failed = job.failed / job.total if job.total else 0.0
    # a percentage that stands at 0 while models load says nothing; the seconds do
    percent = (
        f" ({percent_text(min(share, 0.99) if job.done < job.total else share)})"
        if job.done
        else ""
    )
    count = f"{job.done:,} of {job.total:,} prompts{percent}"
    state = f"{mark(*_JOB_MARKS.get(job.state, _NO_MARK))}<b>{job.state.capitalize()}</b>"
    parts = [(share - failed, GREEN if job.state == "done" else BLUE), (failed, RED)]
    return (
        row(f"{state} &nbsp;{count}", eta_text(job))
        + bar(parts, 7, spoken("prompts of the job", count, share))
        + f'<div style="white-space:normal">{faint(" · ".join(_job_figures(job)))}</div>'
    )


def eta_text(job: JobView) -> str:
    """`"ETA 1 min 20 s ± 10 s"`, or `"ETA about 1 min 20 s"` where it is anyone's guess."""
    if job.eta_seconds is None:
        return ""
    text, doubt = seconds_text(job.eta_seconds), job.eta_doubt_seconds
    if doubt is None or doubt > _SURE * job.eta_seconds:
        return f"ETA about {text}"
    return f"ETA {text} ± {_doubt_text(doubt)}"


def _doubt_text(seconds: float) -> str:
    """To what a doubt is worth: `"3 s"`, `"20 s"`, `"3 min"`."""
    step = next((step for step in (1, 5, 10, 60, 300) if seconds < 10 * step), 600)
    rounded = max(1, round(seconds / step) * step)
    return f"{rounded // 60} min" if rounded % 60 == 0 else f"{rounded} s"


def _job_figures(job: JobView) -> list[str]:
    figures = [seconds_text(job.elapsed_seconds)]
    if job.output_tokens or job.prompts_per_second:
        speed = speed_text(job.output_tokens, job.output_tokens_per_second, job.prompts_per_second)
        figures.append(speed)
    if job.output_tokens:
        figures.append(f"{job.output_tokens:,} tokens out")
    if job.prompt_tokens:
        figures.append(f"{job.prompt_tokens:,} tokens in")
    if job.failed:
        figures.append(f"{mark('✗', RED)}{job.failed:,} failed")
    if job.restarts:
        figures.append(f"{mark('▲', RED)}{job.restarts} restart{'s' if job.restarts > 1 else ''}")
    if job.retries:
        figures.append(f"{job.retries:,} retried")
    return figures


# --- a device --------------------------------------------------------------------------------


def _card(device: DeviceView, coarse: bool) -> str:
    worker, name = device.worker, safe(device.name)
    phase = f"{mark(*_NO_MARK)}no worker"
    if worker is not None:
        phase = mark(*_PHASE_MARKS.get(worker.phase, _NO_MARK)) + phase_text(worker)
    title = f"<b>{safe(device.label)}</b> &nbsp;<small>{name.removeprefix('NVIDIA ')}</small>"
    work = "" if worker is None else _work(worker)
    return (
        f'<div title="{name}" style="padding:8px 10px;min-width:0;border:1px solid #8884;'
        f'border-radius:6px;background:#8881">{row(title, phase)}{work}'
        f"{_tiles(device, coarse)}{_memory(device)}</div>"
    )


# --- its worker ------------------------------------------------------------------------------


def _work(worker: WorkerView) -> str:
    full, short = safe(worker.model), safe(model_basename(worker.model))
    title = f' title="{full}"' if full != short else ""
    parts = [f'<div style="{CUT}"{title}>{short}</div>']
    if worker.message:
        whole, begin = safe(worker.message), safe(worker.message, _MESSAGE_CHARS)
        hover = f'title="{whole}" ' if whole != begin else ""
        parts.append(
            f'<div {hover}style="border-left:3px solid {RED};padding-left:6px;'
            f'white-space:normal;overflow-wrap:anywhere">{begin}</div>'
        )
    parts += [_work_bar(worker), _work_counts(worker)]
    return "".join(parts)


def _work_bar(worker: WorkerView) -> str:
    if worker.phase in _LOADING:
        says = f"{phase_text(worker)}: {safe(model_basename(worker.model))}"
        full = (1.0, hatched(AMBER)) if worker.fraction is None else (worker.fraction, AMBER)
        return bar([full], 5, spoken("loading", says, worker.fraction))
    total = max(1, worker.total)
    parts = [
        (worker.done / total, BLUE),
        ((worker.model_done - worker.done) / total, f"{BLUE}60"),
    ]
    says = f"{worker.done:,} of {worker.total:,}, by all {worker.model_done:,}"
    return bar(parts, 5, spoken("prompts", says, worker.model_done / total))


def _work_counts(worker: WorkerView) -> str:
    left = f"{worker.done:,} of {worker.total:,}" if worker.total else "&nbsp;"
    if worker.failed:
        left += f" · {mark('✗', RED)}{worker.failed:,} failed"
    right = ""
    if worker.running or worker.waiting:
        right = f"{worker.running:,} running · {worker.waiting:,} waiting"
    elif worker.load_seconds is not None:
        right = f"loaded in {seconds_text(worker.load_seconds)}"
    return ends(left, right)


# --- its figures -----------------------------------------------------------------------------


def _tiles(device: DeviceView, coarse: bool) -> str:
    """Two columns: speed and memory, each a figure, its curve over the run, and more about it."""
    columns = [_memory_column(device, coarse)]
    if device.worker is not None:
        columns.insert(0, _speed_column(device, device.worker, coarse))
    cells = "".join(f"<div>{cell}</div>" for line in zip(*columns, strict=True) for cell in line)
    return (
        '<div style="display:grid;grid-template-columns:' + " ".join("1fr" for _ in columns) + ";"
        f'gap:0 10px;margin:4px 0;overflow:hidden">{cells}</div>'
    )


def _speed_column(device: DeviceView, worker: WorkerView, coarse: bool) -> list[str]:
    text = speed_text(
        worker.output_tokens, worker.output_tokens_per_second, worker.prompts_per_second
    )
    figure, _, unit = text.partition(" ")
    if figure == "0" and worker.phase != "running":  # it has not been fast or slow yet
        figure, unit = "—", "tokens/s" if worker.output_tokens else ""
    history = device.speed_history
    curve = spark(_curve(history, coarse), _HEADROOM * max(history, default=0), BLUE)
    rate = worker.prompt_tokens_per_second
    return [
        _figure(figure, unit),
        curve,
        faint(f"in {rate_text(rate, 10)} tokens/s" if rate else ""),
    ]


def _memory_column(device: DeviceView, coarse: bool) -> list[str]:
    reading, worker = device.reading, device.worker
    used, total = _gib(reading.used_bytes), _gib(reading.total_bytes)
    if used == total == "n/a":
        figure = _figure("—", "memory n/a")
    else:
        figure = _figure(used, f"of {total} GiB")
    # of a host, a worker's memory would be a flat line
    top = reading.total_bytes if device.kind == "cuda" else None
    below = [] if device.peak_bytes is None else [f"peak {_gib(device.peak_bytes)}"]
    if worker is not None and worker.kv_usage is not None:
        below.append(f"KV {percent_text(worker.kv_usage)}")
    history = device.memory_history
    curve = spark(_curve(history, coarse), top or _HEADROOM * max(history, default=0), VIOLET)
    return [figure, curve, faint(" · ".join(below))]


def _figure(figure: str, unit: str) -> str:
    return f'<b style="font-size:17px">{figure}</b> <small>{unit}</small>'


def _curve(points: tuple[float, ...], coarse: bool) -> tuple[float, ...]:
    return (points[:1] + points[2::2]) if coarse else points


def _memory(device: DeviceView) -> str:
    """The bar of the device's memory, and its parts in words."""
    reading = device.reading
    used, total = reading.used_bytes, reading.total_bytes
    sensors = _sensors(reading)
    if used is None or not total:
        return f"<div>{faint(sensors)}</div>"
    if device.kind == "cpu":  # what others use of the host is not a device's
        parts = [(used, VIOLET)]
        words = f"this run {_gib(used)} of the host's {_gib(total)} GiB"
    elif reading.own_bytes is None:
        parts = [(used, VIOLET)]
        words = f"used {_gib(used)} · free {_gib(reading.free_bytes)} GiB"
    else:
        own = min(used, reading.own_bytes)
        parts = [(own, VIOLET), (used - own, GREY)]
        words = (
            f"this run {_gib(own)} · others {_gib(used - own)} · "
            f"free {_gib(reading.free_bytes)} GiB"
        )
    shares = [(size / total, colour) for size, colour in parts]
    return f"{bar(shares, 5)}<div>{faint(f'{words}<br>{sensors}')}</div>"


def _sensors(reading: Reading) -> str:
    if reading.lost:
        return f"{mark('▲', RED)}the driver no longer answers"
    figures = [f"{percent_text(reading.utilisation)} busy"]
    if reading.temperature is not None:
        figures.append(f"{reading.temperature} °C")
    if reading.power_watts is not None:
        limit = reading.power_limit_watts
        of = "" if limit is None else f" of {limit:.0f}"
        figures.append(f"{reading.power_watts:.0f}{of} W")
    return " · ".join(figures)


def _gib(size: float | None) -> str:
    return "n/a" if size is None else f"{size / _GIB:.1f}"
