"""The panel as HTML: the job and its devices."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from shown import DEVICE, EVIL, GIB, JOB, SNAPSHOT, WORKER, Page

from mgpu_magic.cards import eta_text, render_html
from mgpu_magic.markup import spark
from mgpu_magic.snapshot import DeviceView, Reading, Snapshot


def page(*devices: DeviceView, job: Any = JOB) -> Page:
    """What stands in the panel."""
    return Page(render_html(Snapshot(job, devices)))


def test_the_panel_shows_the_job_and_every_figure_of_a_device() -> None:
    """Name, phase with seconds, model, prompts, speed, queue, memory, load: all on the card."""
    text = Page(render_html(SNAPSHOT)).text
    for expected in (
        "● Running  750 of 1,000 prompts (75 %) ETA 24 s ± 3 s\n",
        "1 min 13 s · 2,468 tokens/s · 36,000 tokens out · 9,000 tokens in\n",
        "cuda:1  H100 80GB HBM3 ● running 42 s\nQwen2.5-7B-Instruct-AWQ\n",
        "250 of 1,000 256 running · 31 waiting\n1,234 tokens/s\n60.0 of 80.0 GiB\n",
        "in 410 tokens/s\npeak 61.0 · KV 40 %\n",
        "this run 55.0 · others 5.0 · free 20.0 GiB\n97 % busy · 71 °C · 560 of 700 W\n",
    ):
        assert expected in text
    assert {"Qwen/Qwen2.5-7B-Instruct-AWQ", "NVIDIA H100 80GB HBM3"} <= set(
        Page(render_html(SNAPSHOT)).titles
    )


def test_bars_tell_a_screen_reader_how_far_it_is() -> None:
    """Job and prompts of the model are progress bars with values and words."""
    assert page(DEVICE).bars == [
        ("prompts of the job", "75", "750 of 1,000 prompts (75 %)"),
        ("prompts", "75", "250 of 1,000, by all 750"),
    ]


def test_a_card_tells_its_own_share_from_that_of_the_others() -> None:
    """A card whose worker did a quarter of the prompts does not look like one that did all."""
    html = render_html(Snapshot(JOB, (DEVICE,)))
    assert re.findall(r"width:([\d.]+)%", html) == ["75.0", "25.0", "50.0", "68.8", "6.2"]


@pytest.mark.parametrize(
    ("kind", "reading", "words", "widths"),
    [
        ("cuda", (6, 4, 8), "this run 4.0 · others 2.0 · free 2.0 GiB", ["50.0", "25.0"]),
        ("cuda", (6, 9, 8), "this run 6.0 · others 0.0 · free 2.0 GiB", ["75.0"]),
        ("cuda", (6, None, 8), "used 6.0 · free 2.0 GiB", ["75.0"]),
        ("cpu", (2, None, 8), "this run 2.0 of the host's 8.0 GiB", ["25.0"]),
    ],
)
def test_memory_is_claimed_only_as_far_as_it_is_known(
    kind: Any, reading: tuple[int, int | None, int], words: str, widths: list[str]
) -> None:
    """Containers often hide whose memory it is; of a host a device's workers are but a part."""
    used, own, total = reading
    known = Reading(
        used_bytes=used * GIB, own_bytes=None if own is None else own * GIB, total_bytes=total * GIB
    )
    device = replace(DEVICE, kind=kind, reading=known, worker=None)
    html = render_html(Snapshot(replace(JOB, state="new"), (device,)))
    assert words in Page(html).text
    assert re.findall(r"width:([\d.]+)%", html) == widths


def test_text_from_elsewhere_cannot_inject_html() -> None:
    """Names of models and devices, errors and notes are escaped."""
    worker = replace(WORKER, model=EVIL, phase="failed", message=EVIL)
    evil = page(
        replace(DEVICE, name=EVIL, label=EVIL, worker=worker),
        replace(DEVICE, worker=replace(worker, phase="loading")),
        job=replace(JOB, notes=(EVIL,)),
    )
    assert evil.tags == {"div", "span", "b", "small"}
    assert evil.attributes == {
        "style", "title", "role", "aria-label", "aria-valuenow", "aria-valuetext", "aria-hidden",
    }  # fmt: skip
    assert evil.text.count('onerror="alert(1)"') == 7


def test_a_lone_surrogate_cannot_break_the_panel() -> None:
    """Text that has no UTF-8 form is shown without what is wrong in it."""
    device = replace(DEVICE, worker=replace(WORKER, model="a\ud800b", message="x\ud800"))
    assert "a b" in render_html(Snapshot(JOB, (device,))).encode().decode()


def test_what_is_not_known_is_not_shown_as_zero() -> None:
    """A device without sensors has n/a and no memory bar."""
    html = render_html(Snapshot(JOB, (replace(DEVICE, reading=Reading(), peak_bytes=None),)))
    text = Page(html).text
    assert "memory n/a" in text
    assert "n/a busy" in text
    assert re.findall(r"width:([\d.]+)%", html) == ["75.0", "25.0", "50.0"]
    for unknown in ("°C", " W", "peak", "GiB", "free"):
        assert unknown not in text
    assert "KV" not in page(replace(DEVICE, worker=replace(WORKER, kv_usage=None))).text
    half = replace(DEVICE, reading=Reading(used_bytes=GIB, power_watts=56.2))
    assert "1.0 of n/a GiB" in page(half).text
    assert "n/a busy · 56 W" in page(half).text


def test_a_load_says_what_is_loaded_and_never_a_frozen_percentage() -> None:
    """Before the first answer there is no percentage, but model, phase and how long it takes."""
    worker = replace(WORKER, phase="loading", phase_seconds=20.0, done=0, model_done=0)
    worker = replace(worker, running=0, waiting=0, output_tokens_per_second=0.0, output_tokens=0)
    worker = replace(worker, prompts_per_second=0.0, prompt_tokens_per_second=0.0, kv_usage=None)
    job = replace(JOB, done=0, eta_seconds=None, output_tokens=0, prompts_per_second=0.0)
    loading = page(replace(DEVICE, worker=worker), job=job)
    assert "◐ loading 20 s\nQwen2.5-7B-Instruct-AWQ\n" in loading.text
    assert not re.search(r"\b0 %", loading.text)
    assert "/s" not in loading.text
    assert loading.bars[1] == ("loading", "", "loading 20 s: Qwen2.5-7B-Instruct-AWQ")
    known = page(replace(DEVICE, worker=replace(worker, fraction=0.4)), job=job)
    assert "loading 20 s (40 %)" in known.text
    assert known.bars[1][1] == "40"


def test_a_job_without_tokens_is_measured_in_prompts() -> None:
    """Classifiers and functions generate nothing; their card and the header say prompts/s."""
    none: Any = {"output_tokens": 0, "output_tokens_per_second": 0.0}
    worker = replace(WORKER, **none, prompts_per_second=56.0, prompt_tokens_per_second=0.0)
    job = replace(JOB, **none, prompts_per_second=112.0)
    text = page(replace(DEVICE, worker=worker), job=job).text
    assert "56.0 prompts/s" in text
    assert "112 prompts/s" in text
    assert "tokens/s" not in text


def test_failures_and_losses_are_said_in_words() -> None:
    """Nothing is told by colour alone: each has a sign and a word."""
    worker = replace(WORKER, phase="lost", failed=3, message="killed by SIGKILL")
    devices = (
        replace(DEVICE, worker=worker),
        replace(DEVICE, worker=None),
        replace(DEVICE, reading=Reading(lost=True)),
    )
    text = page(*devices, job=replace(JOB, failed=3, restarts=2, retries=12)).text
    for expected in (
        "✗ 3 failed · ▲ 2 restarts · 12 retried",
        "▲ lost 42 s",
        "killed by SIGKILL",
        "250 of 1,000 · ✗ 3 failed 256 running · 31 waiting",
        "○ no worker",
        "▲ the driver no longer answers",
    ):
        assert expected in text


def test_each_phase_has_a_sign_of_its_own_kind() -> None:
    """Ok, loading, lost and failed can be told apart without any colour."""
    signs = {
        phase: page(replace(DEVICE, worker=replace(WORKER, phase=phase))).text.split("HBM3 ")[1][0]
        for phase in ("running", "idle", "downloading", "loading", "lost", "failed", "stopped")
    }
    assert "".join(signs.values()) == "●○◐◐▲✗■"


def test_a_long_error_is_cut_on_the_card_and_whole_in_its_tooltip() -> None:
    """One failed device does not push the others out of sight."""
    worker = replace(WORKER, phase="failed", message="e" * 300)
    long = page(replace(DEVICE, worker=worker))
    assert "e" * 300 in long.titles
    assert "e" * 117 + "..." in long.text
    assert "e" * 118 not in long.text


def test_an_idle_worker_says_how_long_its_load_took() -> None:
    """Afterwards the queue is empty, and what the load cost stands in its place."""
    worker = replace(WORKER, phase="idle", running=0, waiting=0)
    assert "250 of 1,000 loaded in 31 s" in page(replace(DEVICE, worker=worker)).text


@pytest.mark.parametrize("state", ["done", "interrupted", "failed"])
def test_the_final_state_is_named(state: Any) -> None:
    """A reader of the saved notebook sees how it ended."""
    assert f"{state.capitalize()}  750 of" in page(DEVICE, job=replace(JOB, state=state)).text


def test_devices_are_shown_before_there_is_a_job() -> None:
    """`dashboard` in a fresh session has cards and no header."""
    new = page(replace(DEVICE, worker=None), job=replace(JOB, state="new"))
    assert new.bars == []
    assert "60.0 of 80.0 GiB" in new.text
    assert "prompts" not in new.text


def test_a_job_without_prompts_is_complete() -> None:
    """Nothing to do divides by nothing."""
    empty = page(job=replace(JOB, state="done", done=0, total=0))
    assert empty.bars == [("prompts of the job", "100", "0 of 0 prompts")]


@pytest.mark.parametrize(
    ("eta", "doubt", "text"),
    [
        (None, None, ""),
        (80.0, 9.4, "ETA 1 min 20 s ± 9 s"),
        (80.0, 12.6, "ETA 1 min 20 s ± 15 s"),
        (80.0, 41.0, "ETA about 1 min 20 s"),
        (80.0, None, "ETA about 1 min 20 s"),
        (3.0, 0.2, "ETA 3 s ± 1 s"),
        (7500.0, 700.0, "ETA 2 h 05 min ± 10 min"),
    ],
)
def test_an_eta_says_how_sure_it_is(eta: float | None, doubt: float | None, text: str) -> None:
    """To as many digits as it is worth; a guess is called one."""
    assert eta_text(replace(JOB, eta_seconds=eta, eta_doubt_seconds=doubt)) == text


def test_a_curve_stays_in_its_frame_and_covers_the_run() -> None:
    """Values above the top and below 0 do not leave it; a level stretch needs two corners."""
    html = spark((0, 5, 5, 5, 5, 5, 5, 5, 20, -1), 10, "#123456")
    assert html.endswith(
        'polygon(0 100%,0% 21px,11% 10px,78% 10px,89% 0px,100% 21px,100% 21px,100% 100%)"></div>'
    )
    young = spark((10, 10), 10, "#123456")
    assert "polygon(0 100%,0% 0px,12% 0px,12% 21px,100% 21px,100% 100%)" in young
    assert (
        spark((), 10, "#123456")
        == spark((1, 2), 0, "#123456")
        == ('<div style="height:22px"></div>')
    )


def test_a_busy_panel_stays_small() -> None:
    """Four updates a second cost 25 kB/s with two devices, and 80 kB/s with eight."""
    curve = tuple(float(7 * point % 40) for point in range(40))
    device = replace(DEVICE, memory_history=curve, speed_history=curve)
    assert len(render_html(Snapshot(JOB, (device,) * 2)).encode()) < 6_300
    assert len(render_html(Snapshot(JOB, (device,) * 8)).encode()) < 20_000
