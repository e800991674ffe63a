"""Jupyter servers on loopback, and a browser that opens a notebook there.

```
opened(LAB, folder, cells) ── server ── kernel ── workers
           └── Chromium ── Sheet: press keys, read what stands on the page
```
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from playwright.sync_api import sync_playwright

from notebook.live import PYTHON, Family

if TYPE_CHECKING:
    from collections.abc import Iterator

CHROMIUM = "/usr/bin/chromium"
SWITCHES = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip
PICTURES = Path(__file__).parents[2] / "build"
FILE = "panel.ipynb"
TOKEN = "test"
NO_NEWS = {"fetchNews": "false", "checkForUpdates": False}
LOAD = "%load_ext mgpu_magic"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontEnd:
    """How a front end is started, and where things stand on its page.

    Attributes:
        python: Its interpreter; None: the one that `MGPU_TEST_PYTHON` names.
        module: What `python -m` runs.
        token: The option that sets the token.
        path: Of a notebook's page.
        ready: Selector of what is there once the kernel is.
        cell: Selector of a cell's source.
        output: Selector of an output.
    """

    python: str | None
    module: str
    token: str
    path: str
    ready: str
    cell: str
    output: str


LAB = FrontEnd(
    python=sys.executable,
    module="jupyterlab",
    token="--IdentityProvider.token",
    path="lab/tree/",
    ready="text=| Idle",
    cell=".jp-Cell .cm-content",
    output=".jp-OutputArea-output",
)
NOTEBOOK_7 = FrontEnd(
    python=sys.executable,
    module="notebook",
    token="--IdentityProvider.token",
    path="notebooks/",
    ready=".jp-Notebook-ExecutionIndicator[data-status=idle]",
    cell=".jp-Cell .cm-content",
    output=".jp-OutputArea-output",
)
NBCLASSIC = FrontEnd(
    python=None,
    module="notebook",
    token="--NotebookApp.token",
    path="notebooks/",
    ready=".kernel_idle_icon",
    cell=".cell .CodeMirror",
    output=".output_subarea",
)


class Sheet:
    """A notebook in a browser.

    Attributes:
        page: Playwright's.
        file: Where it is saved.
        root: The server's address.
    """

    def __init__(self, front: FrontEnd, page: Any, root: str, file: Path) -> None:
        self.page = page
        self.file = file
        self.root = root
        self._front = front

    def open(self) -> None:
        """Load the page, anew if it is there."""
        # Notebook 7 shows a kernel as idle before there is one, and then takes no keys
        address = f"{self.root}{self._front.path}{FILE}?token={TOKEN}"
        self.page.goto(address, wait_until="networkidle")
        self.page.locator(self._front.ready).first.wait_for()

    def begin(self, number: int) -> float:
        """Run a cell, counted from 0; returns when."""
        self.page.locator(self._front.cell).nth(number).click()
        self.page.keyboard.press("Shift+Enter")
        return time.monotonic()

    def run(self, number: int) -> None:
        """Run a cell, which must be the one with this place among those that were run."""
        self.begin(number)
        self.wait(f"[{number + 1}]")

    def wait(self, text: str) -> float:
        """Until this stands on the page; returns when."""
        self.page.get_by_text(text).first.wait_for()
        return time.monotonic()

    def picture(self, name: str) -> None:
        """Keep what the page looks like."""
        PICTURES.mkdir(exist_ok=True)
        self.page.screenshot(path=PICTURES / f"{name}.png")

    def save(self) -> Any:
        """Save; returns the notebook as it is in the file."""
        before = self.file.stat().st_mtime_ns
        self.page.keyboard.press("Control+s")
        while self.file.stat().st_mtime_ns == before:
            self.page.wait_for_timeout(50)
        return nbformat.read(self.file, as_version=4)

    def end_kernels(self) -> None:
        """Leave the page and end what the server runs: a page opened now gets another kernel."""
        self.page.goto("about:blank")
        for kernel in json.loads(self._ask("GET", "api/kernels")):
            self._ask("DELETE", f"api/kernels/{kernel['id']}")

    def _ask(self, method: str, path: str) -> bytes:
        headers = {"Authorization": f"token {TOKEN}"}
        request = urllib.request.Request(self.root + path, method=method, headers=headers)
        with urllib.request.urlopen(request) as answer:
            body: bytes = answer.read()
            return body

    @property
    def outputs(self) -> Any:
        """All outputs, as a locator."""
        return self.page.locator(self._front.output)

    def count(self, pattern: str) -> int:
        """The number that a pattern's group matches in the outputs; -1 where there is none."""
        match = re.search(pattern, "\n".join(self.outputs.all_inner_texts()))
        return int(match[1]) if match else -1


@contextmanager
def opened(front: FrontEnd, folder: Path, *cells: str) -> Iterator[Sheet]:
    """A notebook with these cells in a front end of its own; afterwards no process is left."""
    sources = [nbformat.v4.new_code_cell(source) for source in cells]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    notebook = nbformat.v4.new_notebook(cells=sources, metadata=metadata)
    nbformat.write(notebook, folder / FILE)
    settings = folder / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text(json.dumps(NO_NEWS))
    family = Family()
    server = subprocess.Popen(
        [
            front.python or os.environ[PYTHON], "-m", front.module, "--no-browser", "--allow-root",
            "--ip=127.0.0.1", f"--port={_free_port()}", f"{front.token}={TOKEN}",
        ],
        cwd=folder,
        env={**os.environ, **family.variable, **_folders(folder)},
    )  # fmt: skip
    try:
        root = _address(server, folder / "runtime")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
            page = browser.new_page(viewport={"width": 1100, "height": 620})
            sheet = Sheet(front, page, root, folder / FILE)
            sheet.open()
            yield sheet
            browser.close()
    finally:
        server.terminate()
        server.wait()
        family.end()


def _folders(folder: Path) -> dict[str, str]:
    """Variables that keep it away from the user's own settings."""
    names = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    return {name: str(folder / part) for name, part in names.items()}


def _free_port() -> int:
    """A port that nobody listens at; Notebook 6 does not tell which it took where it may choose."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def _address(server: subprocess.Popen[bytes], runtime: Path) -> str:
    """Where the server listens, once it does."""
    while True:
        for written in runtime.glob(f"*server-{server.pid}.json"):
            if text := written.read_text():
                url: str = json.loads(text)["url"]
                return url
        assert server.poll() is None, "the server ended"
        time.sleep(0.1)
