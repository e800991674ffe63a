"""In a real kernel: what the panel costs, and how long a cell goes on after the stop button."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from benchmarks.common import ENGINE_ARGS, ROOT, Figure, model, show

if TYPE_CHECKING:
    from jupyter_client.blocking.client import BlockingKernelClient
    from jupyter_client.manager import KernelManager

PANEL_ROUNDS, STOP_ROUNDS = 6, 5
IN_FLIGHT = 500
SETTINGS = {**ENGINE_ARGS, "max_num_seqs": 256}
CELL = """
%%multigpu -o answers --devices cpu:2 {options}
model = {model!r}
engine_args = {settings!r}
sampling = {{"temperature": 0, "max_tokens": {tokens}, "ignore_eos": True}}
prompts = [f"Write one sentence about the number {{number}}." for number in range({count})]
"""


def measure(*, quick: bool = False) -> list[Figure]:
    """The workers are loaded once; cells with and without a panel alternate."""
    notebook = Notebook()
    try:
        notebook.run("%load_ext mgpu_magic")
        for _ in range(2):
            notebook.run(_cell(64, 1))
        panel = [] if quick else [_panel(notebook, turn) for turn in range(PANEL_ROUNDS)]
        stops = [_stop(notebook) for _ in range(STOP_ROUNDS)]
    finally:
        notebook.close()
    figures = [
        Figure(
            what=f"stop button to the cell's end, {IN_FLIGHT} prompts in flight, s",
            rounds=stops,
            target=1.0,
            at_most=True,
        )
    ]
    if panel:
        figures.insert(0, Figure(what="panel on over off, tokens/s", rounds=panel, target=0.99))
    return figures


def _cell(count: int, tokens: int, options: str = "") -> str:
    return CELL.format(
        model=model(), settings=SETTINGS, count=count, tokens=tokens, options=options
    ).lstrip()


def _panel(notebook: Notebook, turn: int) -> float:
    """With a panel over without; each second time the other way round."""
    speeds = {}
    for options in ("--no-panel", "")[:: -1 if turn % 2 else 1]:
        notebook.run(_cell(256, 24, options))
        speeds[options] = notebook.value("answers.stats.output_tokens_per_second")
    return float(speeds[""] / speeds["--no-panel"])


def _stop(notebook: Notebook) -> float:
    """Seconds from the signal that the button sends until the kernel is idle again."""
    began = notebook.begin(_cell(IN_FLIGHT, 200))
    time.sleep(2.0)
    stopped = time.perf_counter()
    notebook.kernel.interrupt_kernel()
    notebook.end(began)
    seconds = time.perf_counter() - stopped
    last = "get_ipython().run_line_magic('multigpu', 'last')"
    stopped_at = notebook.value(f"[failure.attempts for failure in {last}.failures]")
    # Tried once: it was at a worker when the stop came.
    assert stopped_at == [1] * IN_FLIGHT, f"in flight were {sum(stopped_at)}"
    notebook.run(_cell(2, 1))  # the workers are free again, and still loaded
    return seconds


class Notebook:
    """A kernel of its own, and the client that runs cells in it."""

    def __init__(self) -> None:
        from jupyter_client.manager import start_new_kernel

        started: tuple[KernelManager, BlockingKernelClient] = start_new_kernel(
            kernel_name="python3", cwd=str(ROOT)
        )
        self.kernel, self._client = started

    def begin(self, source: str) -> str:
        """Have a cell run; returns its number."""
        return str(self._client.execute(source))

    def end(self, cell: str) -> dict[str, Any]:
        """Wait until the kernel is idle again; returns what the cell replied."""
        while True:
            message = self._client.get_iopub_msg(timeout=300)
            ours = message["parent_header"].get("msg_id") == cell
            if ours and message["content"].get("execution_state") == "idle":
                break
        while True:
            reply: dict[str, Any] = self._client.get_shell_msg(timeout=60)
            if reply["parent_header"].get("msg_id") == cell:
                return dict(reply["content"])

    def run(self, source: str) -> None:
        """Run a cell; an error in it is one here."""
        reply = self.end(self.begin(source))
        assert reply["status"] == "ok", "\n".join(reply.get("traceback", ()))

    def value(self, expression: str) -> Any:
        """What an expression gives, as JSON carries it."""
        cell = self._client.execute(
            "", user_expressions={"it": f"__import__('json').dumps({expression})"}
        )
        found = self.end(cell)["user_expressions"]["it"]
        assert found["status"] == "ok", found
        return json.loads(eval(found["data"]["text/plain"]))  # a literal

    def close(self) -> None:
        """End the kernel, and with it the workers."""
        self._client.stop_channels()
        self.kernel.shutdown_kernel()


if __name__ == "__main__":
    sys.exit(show(measure()))
