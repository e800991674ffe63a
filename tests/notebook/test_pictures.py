"""Pictures of the panel in `build/`, to be looked at: two and eight devices, light and dark."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import sync_playwright
from shown import DEVICE, GIB, JOB, WORKER

from mgpu_magic.cards import render_html
from mgpu_magic.folds import BODIES_CLASS, HEADS, HEADS_CLASS, bodies_html, final_html
from mgpu_magic.snapshot import DeviceView, FailureView, Phase, Reading, Snapshot
from notebook.servers import CHROMIUM, SWITCHES

if TYPE_CHECKING:
    from collections.abc import Iterator

PICTURES = Path(__file__).parents[2] / "build"
WIDTH = 900
# The page and the colour of text of JupyterLab's themes, of VS Code's, and of a bare page.
THEMES = {
    "light": "background:#fff;--jp-content-font-color1:rgba(0,0,0,.87)",
    "dark": "background:#111;--jp-content-font-color1:#fff",
    "code": "background:#1e1e1e;--vscode-editor-foreground:#d4d4d4",
    "bare": "background:#fff",
}
PHASES: tuple[Phase, ...] = (
    "running", "loading", "running", "idle", "lost", "importing", "failed", "warming up",
)  # fmt: skip
CONTRASTS = """
panel => {
    const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    const over = (colour, alpha, under) => {  // under is opaque
        canvas.globalAlpha = 1; canvas.fillStyle = `rgb(${under})`; canvas.fillRect(0, 0, 1, 1);
        canvas.globalAlpha = alpha; canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
    };
    const light = rgb => rgb.map(c => c / 255)
        .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const found = [];
    const texts = document.createTreeWalker(panel, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        if (!texts.currentNode.data.trim()) continue;
        const parents = [];
        for (let up = texts.currentNode.parentElement; up; up = up.parentElement)
            parents.unshift(up);
        let ground = [255, 255, 255], alpha = 1;
        for (const parent of parents) {
            const style = getComputedStyle(parent);
            alpha *= style.opacity;
            ground = over(style.backgroundColor, alpha, ground);
        }
        const own = parents.at(-1);
        const ink = light(over(getComputedStyle(own).color, alpha, ground)), paper = light(ground);
        const [high, low] = [Math.max(ink, paper), Math.min(ink, paper)];
        const sign = own.getAttribute("aria-hidden") === "true";
        found.push([sign, (high + 0.05) / (low + 0.05), texts.currentNode.data]);
    }
    return found;
}
"""


def device(index: int, phase: Phase, kind: Any = "cuda") -> DeviceView:
    """A device in the middle of a run: it loaded for a quarter of it."""
    loading = phase in ("loading", "importing", "warming up")
    worker = replace(
        WORKER, phase=phase, done=250 - 9 * index, output_tokens_per_second=1234.0 - 31 * index
    )
    if phase not in ("running", "idle"):
        worker = replace(worker, running=0, waiting=0, output_tokens_per_second=0.0)
    if loading:
        worker = replace(worker, done=0, output_tokens=0, kv_usage=None, load_seconds=None)
        worker = replace(worker, prompts_per_second=0.0, prompt_tokens_per_second=0.0)
    if phase in ("lost", "failed"):
        worker = replace(worker, failed=3, message="killed by SIGKILL (often: out of host memory)")
    memory = tuple(GIB * (0.5 + 12.9 * min(1.0, point / 12)) for point in range(36))
    speed = tuple(
        0.0 if loading or point < 9 else 1200 + 180 * math.sin(1.3 * point + index)
        for point in range(36)
    )
    reading = Reading(
        used_bytes=int(13.4 * GIB),
        own_bytes=None if index == 3 else int(12.1 * GIB),
        total_bytes=15 * GIB,
        utilisation=0.97,
        temperature=71,
        power_watts=62.2,
        power_limit_watts=70.0,
    )
    if kind == "cpu":
        memory = tuple(size / 6 for size in memory)
        reading = Reading(used_bytes=int(2.2 * GIB), total_bytes=24 * GIB, utilisation=0.98)
    return replace(
        DEVICE,
        label=f"{kind}:{index}",
        kind=kind,
        name="CPU (1 core)" if kind == "cpu" else "Tesla T4",
        reading=reading,
        peak_bytes=int(max(memory)),
        worker=worker,
        memory_history=memory,
        speed_history=speed,
    )


FAILURES = tuple(
    FailureView(
        model="m",
        index=31 * n,
        error="ValueError: the prompt has 9,120 tokens, more than the model's 4,096",
        prompt="Does this comment break the rule? I think that ...",
    )
    for n in range(3)
)
BUSY = replace(
    JOB,
    failed=3,
    failures=FAILURES,
    restarts=1,
    retries=12,
    eta_seconds=80.0,
    eta_doubt_seconds=9.4,
)
SHOWN = {
    "gpus_2": Snapshot(BUSY, tuple(device(index, "running") for index in range(2))),
    "gpus_8": Snapshot(
        replace(BUSY, notes=("cuda:4 was lost (killed by SIGKILL) and started again.",)),
        tuple(device(index, phase) for index, phase in enumerate(PHASES)),
    ),
    "cpus_2": Snapshot(JOB, tuple(device(index, "running", "cpu") for index in range(2))),
}


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    """A page as wide as the output of a notebook."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        yield browser.new_page(viewport={"width": WIDTH, "height": 400})
        browser.close()


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", SHOWN)
def test_the_panel_fits_and_can_be_read(page: Any, name: str, theme: str) -> None:
    """No sideways scrolling at 900 px; text has a contrast of 4.5 in each theme, signs of 3."""
    html = render_html(SHOWN[name])
    if name == "gpus_2":
        html = final_html(html, SHOWN[name], 19_000).replace("<details>", "<details open>")
    page.set_content(
        f'<body style="margin:0;padding:12px;{THEMES[theme]}"><div>{html}</div></body>'
    )
    PICTURES.mkdir(exist_ok=True)
    page.screenshot(path=PICTURES / f"panel_{name}_{theme}.png", full_page=True)
    for part in ("html", "body > div", "body > div > div"):
        assert page.locator(part).first.evaluate("it => it.scrollWidth <= it.clientWidth")
    contrasts = page.locator("body > div").evaluate(CONTRASTS)
    assert len(contrasts) > 20
    assert [text for sign, ratio, text in contrasts if ratio < (3 if sign else 4.5)] == []


@pytest.mark.parametrize("name", SHOWN)
def test_nothing_moves_when_figures_change(page: Any, name: str) -> None:
    """Speeds, counts and curves change four times a second, and no card moves or grows."""
    places = []
    for step in range(3):
        shown = SHOWN[name]
        moved = tuple(
            replace(
                device,
                speed_history=device.speed_history[: 30 + step],
                worker=device.worker
                and replace(
                    device.worker,
                    done=device.worker.done + 7**step,
                    phase_seconds=8.0**step,
                    running=device.worker.running and 9**step,
                    output_tokens_per_second=device.worker.output_tokens_per_second
                    * 10 ** (step - 1),
                    prompt_tokens_per_second=410.0 * step,
                    kv_usage=0.1 * step or None,
                ),
            )
            for device in shown.devices
        )
        page.set_content(render_html(Snapshot(shown.job, moved)))
        places.append(
            page.locator("[title]").evaluate_all(
                """all => all.map(it => it.getBoundingClientRect())
                    .map(box => [box.x, box.y, box.width, box.height])"""
            )
        )
    assert places[0] == places[1] == places[2]


def test_a_fold_is_opened_with_the_keyboard_and_shows_the_end_of_a_log(page: Any) -> None:
    """Logs and failures are hidden until asked for; of a log the last line is in sight."""
    [device, other] = SHOWN["gpus_2"].devices
    assert device.worker
    log = "\n".join(f"line {n} of the log" for n in range(100))
    loud = replace(device, worker=replace(device.worker, log=log))
    bodies = bodies_html(Snapshot(BUSY, (loud, other)))
    page.set_content(
        f'<div class="{HEADS_CLASS}">{HEADS}</div><div class="{BODIES_CLASS}">{bodies}</div>'
    )
    error, region = page.get_by_text("#31"), page.get_by_role("region", name="log of cuda:0")
    assert not error.is_visible()
    assert not region.is_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert not error.is_visible()
    box, text = region.bounding_box(), region.locator("pre").bounding_box()
    assert text["height"] > 5 * box["height"]
    assert 0 <= box["y"] + box["height"] - text["y"] - text["height"] < 8
    page.screenshot(path=PICTURES / "panel_logs.png", full_page=True)
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Space")
    assert error.is_visible()
