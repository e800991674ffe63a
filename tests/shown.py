"""Snapshots to show, and what stands in some HTML."""

from __future__ import annotations

import io
from dataclasses import replace
from html.parser import HTMLParser

from mgpu_magic.snapshot import DeviceView, JobView, Phase, Reading, Snapshot, WorkerView

GIB = 2**30
EVIL = '<img src=x onerror="alert(1)">&\n'

WORKER = WorkerView(
    phase="running",
    phase_seconds=42.0,
    fraction=None,
    model="Qwen/Qwen2.5-7B-Instruct-AWQ",
    done=250,
    failed=0,
    model_done=750,
    total=1000,
    running=256,
    waiting=31,
    output_tokens=12_000,
    output_tokens_per_second=1234.0,
    prompts_per_second=5.0,
    kv_usage=0.4,
    load_seconds=31.0,
    message="",
    prompt_tokens_per_second=410.0,
)
DEVICE = DeviceView(
    label="cuda:0",
    name="NVIDIA H100 80GB HBM3",
    kind="cuda",
    reading=Reading(
        used_bytes=60 * GIB,
        own_bytes=55 * GIB,
        total_bytes=80 * GIB,
        utilisation=0.97,
        temperature=71,
        power_watts=560.2,
        power_limit_watts=700.0,
    ),
    peak_bytes=61 * GIB,
    worker=WORKER,
)
JOB = JobView(
    state="running",
    done=750,
    failed=0,
    total=1000,
    elapsed_seconds=73.0,
    eta_seconds=24.0,
    output_tokens=36_000,
    output_tokens_per_second=2468.0,
    prompts_per_second=10.0,
    prompt_tokens=9000,
    restarts=0,
    notes=(),
    eta_doubt_seconds=3.0,
)
SNAPSHOT = Snapshot(JOB, (DEVICE, replace(DEVICE, label="cuda:1")))


class Clock:
    """A clock that stands until it is moved."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Page(HTMLParser):
    """The text, tags and progress bars of some HTML; fails where tags are not closed in order.

    A bar is its label, the value or `""`, and the words.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.titles: list[str] = []
        self.bars: list[tuple[str, str, str]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "br":
            self.text += "\n"
            return
        self.open.append(tag)
        self.tags.add(tag)
        self.attributes |= values.keys()
        if "title" in values:
            self.titles.append(values["title"])
        if values.get("role") == "progressbar":
            now = values.get("aria-valuenow", "")
            self.bars.append((values["aria-label"], now, values["aria-valuetext"]))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.text += "\n" if tag in ("div", "details", "summary", "pre") else ""

    def handle_data(self, data: str) -> None:
        self.text += data.replace("\xa0", " ")


def after(done: int, phase: Phase = "running") -> Snapshot:
    """The state of a job of one device after so many of 1000 prompts."""
    worker = replace(WORKER, phase=phase, done=done, model_done=done)
    return Snapshot(replace(JOB, done=done), (replace(DEVICE, worker=worker),))
