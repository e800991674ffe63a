"""The panel in JupyterLab, seen through a real browser."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pytest
from playwright.sync_api import sync_playwright

from notebook.live import Family

if TYPE_CHECKING:
    from collections.abc import Iterator

CHROMIUM = "/usr/bin/chromium"
SWITCHES = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip
PICTURES = Path(__file__).parents[2] / "build"
TOKEN = "test"
NO_NEWS = {"fetchNews": "false", "checkForUpdates": False}

RUN = """\
%%multigpu --engine echo --devices cpu:2 -o answers
model = "tiny<b>model"
prompts = [f"one two <i>{i}" if i % 20 == 9 else "one two three" for i in range(80)]
engine_args = {"delay": 0.1, "fail_on": "<i>"}"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[str]:
    """Address of a notebook in JupyterLab: one cell loads the extension, one runs for 4 s."""
    cells = [nbformat.v4.new_code_cell(source) for source in ("%load_ext mgpu_magic", RUN)]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=metadata)
    nbformat.write(notebook, tmp_path / "panel.ipynb")
    settings = tmp_path / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text(json.dumps(NO_NEWS))
    folders = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    family = Family()
    server = subprocess.Popen(
        [
            sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1",
            "--ServerApp.port=0", f"--IdentityProvider.token={TOKEN}",
        ],
        cwd=tmp_path,
        env={
            **os.environ,
            **family.variable,
            **{name: str(tmp_path / folder) for name, folder in folders.items()},
        },
    )  # fmt: skip
    try:
        yield f"{address(server, tmp_path / 'runtime')}lab/tree/panel.ipynb?token={TOKEN}"
    finally:
        server.terminate()
        server.wait()
        family.end()


def address(server: subprocess.Popen[bytes], runtime: Path) -> str:
    """Where the server listens, once it does."""
    written = runtime / f"jpserver-{server.pid}.json"
    while not written.exists():
        assert server.poll() is None, "the server ended"
        time.sleep(0.1)
    url: str = json.loads(written.read_text())["url"]
    return url


def answered(panel: Any) -> int:
    """How many prompts the panel says are answered; waits until there is a panel."""
    match = re.search(r"(\d+) of 80 prompts", panel.inner_text())
    return int(match[1]) if match else -1


def test_the_panel_moves_while_the_cell_runs_and_ends_right(lab: str, tmp_path: Path) -> None:
    """It is there within a second, counts up while the kernel is busy, and is saved as it ends.

    An open fold stays open. Who does not trust the file that is sent around reads the same.
    """
    PICTURES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        page = browser.new_page(viewport={"width": 1100, "height": 620})
        page.goto(lab)
        page.get_by_text("| Idle").wait_for()
        page.get_by_role("textbox").filter(has_text="load_ext").click()
        page.keyboard.press("Shift+Enter")
        page.get_by_text("[1]").wait_for()
        page.keyboard.press("Shift+Enter")
        began = time.monotonic()
        panel = page.locator(".jp-OutputArea-output")
        page.get_by_text("of 80 prompts").wait_for()
        appeared = time.monotonic() - began
        page.get_by_text("Failed prompts").press("Enter")
        logs = page.get_by_text("The workers have printed nothing.")
        failures: list[int] = []
        seen = [answered(panel)]
        while seen[-1] < 80:
            page.wait_for_timeout(100)
            failures.append(page.locator(".mgpu-bodies b:visible").count())
            assert not logs.is_visible()
            seen.append(answered(panel))
            if 60 <= seen[-1] < 80 and seen[-2] < 60:
                page.screenshot(path=PICTURES / "panel_running.png")
                assert page.get_by_text("[*]").count() == 1
        page.get_by_text("[2]").wait_for()
        page.screenshot(path=PICTURES / "panel_done.png")
        output = panel.inner_text()
        page.keyboard.press("Control+s")
        page.locator(".jp-mod-dirty").wait_for(state="detached")
        page.goto(lab)
        saved = panel.inner_text()
        file = tmp_path / "panel.ipynb"
        (tmp_path / "other.ipynb").write_text(file.read_text().replace("load_ext", "reload_ext"))
        page.goto(lab.replace("tree/panel", "workspaces/other/tree/other"))
        page.get_by_text("reload_ext").wait_for()
        untrusted = panel.inner_text()
        page.screenshot(path=PICTURES / "panel_untrusted.png")
        styled = panel.locator("[style*=flex]").count()
        browser.close()
    assert appeared < 1
    assert seen == sorted(seen)
    assert len(set(seen)) >= 8
    assert max(failures[:-5]) >= 1
    assert re.match(r"✓ Done\s+80 of 80 prompts \(100 %\)", output)
    assert "✗ 4 failed" in output
    assert "4 failed prompts" in output
    assert output.count("tiny<b>model") == 2
    assert "running" not in output
    done = [int(count) for count in re.findall(r"(\d+) of 80\b(?! prompts)", output)]
    assert sum(done) == 80
    assert saved == output
    assert untrusted.split() == output.split()
    assert styled >= 5
