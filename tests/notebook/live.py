"""A real kernel, driven as a front end drives it.

```
Notebook.run(source) ── execute ──> kernel ──> workers
Cell <── streams, displays, errors, widget messages ──┘
```
"""

from __future__ import annotations

import ast
import os
import re
import time
import uuid
from dataclasses import dataclass
from html import unescape
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import psutil
from jupyter_client.manager import KernelManager

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

SECONDS = 60.0
GONE_SECONDS = 5.0
MARK = "MGPU_TEST_NOTEBOOK"
PYTHON = "MGPU_TEST_PYTHON"  # the interpreter of the kernels, if not ours


@dataclass(frozen=True, slots=True)
class Message:
    """What a kernel sent: when it came, its type and its content."""

    at: float
    kind: str
    content: dict[str, Any]


class Cell:
    """A cell that runs or ran, and what it has put out so far."""

    def __init__(self, client: Any, source: str, heard: list[Message]) -> None:
        self.messages: list[Message] = []
        self._client = client
        self._heard = heard
        self._source = dedent(source).strip("\n")
        self._id = client.execute(self._source)

    def until(self, holds: Callable[[Cell], bool]) -> Cell:
        """Take messages until `holds` of this cell; fails if the cell ends before."""
        while not holds(self):
            assert self._take(), f"the cell is over: {self.stdout}{self.stderr}{self.errors}"
        return self

    def end(self) -> Cell:
        """Take messages until the cell is over."""
        while self._take():
            pass
        return self

    def _take(self) -> bool:
        """Take one message; whether the cell goes on."""
        while True:
            message = self._client.get_iopub_msg(timeout=SECONDS)
            kind, content = message["msg_type"], message["content"]
            taken = Message(time.monotonic(), kind, content)
            self._heard.append(taken)
            if message["parent_header"].get("msg_id") == self._id:
                break
        self.messages.append(taken)
        over = kind == "status" and content["execution_state"] == "idle"
        if over and not self.contents("execute_input"):
            # A kernel passes over what comes right after an error; a person is slower.
            self.messages.clear()
            self._id = self._client.execute(self._source)
            return True
        return not over

    def reply(self) -> dict[str, Any]:
        """The kernel's answer, once the cell is over."""
        while True:
            message = self._client.get_shell_msg(timeout=SECONDS)
            if message["parent_header"].get("msg_id") == self._id:
                content: dict[str, Any] = message["content"]
                return content

    def contents(self, *kinds: str) -> list[dict[str, Any]]:
        """Contents of the messages of these types, in order."""
        return [message.content for message in self.messages if message.kind in kinds]

    @property
    def stdout(self) -> str:
        return self._stream("stdout")

    @property
    def stderr(self) -> str:
        return self._stream("stderr")

    def _stream(self, name: str) -> str:
        return "".join(c["text"] for c in self.contents("stream") if c["name"] == name)

    @property
    def errors(self) -> list[str]:
        """What it shows of each error, without colours."""
        return [
            re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(content["traceback"]))
            for content in self.contents("error")
        ]

    @property
    def result(self) -> str | None:
        """Its value as text."""
        results = self.contents("execute_result")
        return results[-1]["data"]["text/plain"] if results else None

    @property
    def displays(self) -> list[dict[str, str]]:
        """What it displays, by MIME type, as a notebook saved now would hold it."""
        shown: dict[object, dict[str, str]] = {}
        for content in self.contents("display_data", "update_display_data"):
            key = content["transient"].get("display_id", len(shown))
            shown[key] = content["data"]
        return list(shown.values())

    @property
    def panels(self) -> list[tuple[float, str]]:
        """When the panel was sent, and its HTML each time; not that of its folds."""
        return [
            (message.at, message.content["data"]["state"]["value"])
            for message in self.messages
            if message.kind == "comm_msg"
            and message.content["data"]["method"] == "update"
            and "value" in message.content["data"]["state"]
            and 'class="mgpu-' not in message.content["data"]["state"]["value"]
        ]

    @property
    def panel(self) -> str:
        """The text that stands in the panel."""
        return text_of(self.panels[-1][1]) if self.panels else ""


class Notebook:
    """A kernel with a client. After `close` no process of it is left, or the test fails.

    Args:
        folder: Where its files go.
        environ: Variables on top of the test's own.

    Attributes:
        heard: Every message of the kernel so far, whichever cell it belongs to.
    """

    def __init__(self, folder: Path, environ: Mapping[str, str] | None = None) -> None:
        self._family = Family()
        self.manager = KernelManager(connection_file=str(folder / "connection.json"))
        variables = {**os.environ, **self._family.variable, "IPYTHONDIR": str(folder / "ipython")}
        variables.pop("CUDA_VISIBLE_DEVICES", None)
        if python := os.environ.get(PYTHON):
            self.manager.kernel_spec.argv[0] = python
        self.manager.start_kernel(cwd=str(folder), env={**variables, **(environ or {})})
        self.client = self.manager.blocking_client()
        self.heard: list[Message] = []
        self.client.start_channels()
        self.client.wait_for_ready(timeout=SECONDS)

    def begin(self, source: str) -> Cell:
        """Start a cell."""
        return Cell(self.client, source, self.heard)

    def run(self, source: str) -> Cell:
        """Run a cell to its end."""
        return self.begin(source).end()

    def load(self) -> None:
        """Load the extension, with the echo engine on two CPU devices as defaults."""
        cell = self.run(
            "%load_ext mgpu_magic\n"
            "%config MultiGPU.engine = 'echo'\n"
            "%config MultiGPU.devices = 'cpu:2'"
        )
        assert not cell.errors
        assert not cell.stderr

    def value(self, expression: str) -> Any:
        """The value of an expression in the notebook, which must be a literal."""
        return ast.literal_eval(self.run(f"print(repr(({expression})))").stdout)

    @property
    def pid(self) -> int:
        """The kernel's process."""
        return int(self.manager.provisioner.pid)

    def processes(self) -> list[int]:
        """The kernel and whatever it started that lives."""
        return self._family.processes()

    def workers(self) -> list[int]:
        """The living workers."""
        return self._family.processes("mgpu_magic.worker")

    def close(self) -> None:
        """Shut the kernel down as a front end does."""
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel()
        self._family.end()


class Family:
    """A process and all that descends from it, also where those in between are gone.

    Attributes:
        variable: The variable that the process has to be started with: its descendants inherit it.
    """

    def __init__(self) -> None:
        self._mark = uuid.uuid4().hex
        self.variable = {MARK: self._mark}

    def processes(self, argument: str = "") -> list[int]:
        """Ids of those that live; with `argument`, of those that were started with it."""
        living = self._living()
        return sorted(p.pid for p in living if not argument or argument in p.info["cmdline"])

    def end(self) -> None:
        """Fail if one lives for another 5 s, and end it."""
        deadline = time.monotonic() + GONE_SECONDS
        while (left := self._living()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for process in left:
            process.kill()
        assert not left, [process.info for process in left]

    def _living(self) -> list[psutil.Process]:
        return [
            process
            for process in psutil.process_iter(["environ", "cmdline", "status"])
            if (process.info["environ"] or {}).pop(MARK, "") == self._mark
        ]


def text_of(html: str) -> str:
    """The text of some HTML, with a space in place of each tag."""
    return " ".join(unescape(re.sub("<[^>]*>", " ", html)).split())
