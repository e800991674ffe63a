"""The words behind the figures, as HTML: failed prompts and the workers' logs, folded away.

```
while it runs                            afterwards
[main]    render_html                    final_html: all in one, with <details>
[heads]   HEADS: <details> without text
[bodies]  bodies_html, shown by CSS where its <details> above is open
```

A front end draws a widget anew with each value, which closes its `<details>`. So those stand in a
widget of their own whose value never changes, and what they show is in the next.
Imports `markup` alone.
"""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING

from mgpu_magic.markup import RED, faint, mark, root, safe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mgpu_magic.snapshot import DeviceView, FailureView, JobView, Snapshot

HEADS_CLASS, BODIES_CLASS = "mgpu-heads", "mgpu-bodies"
_FINAL_LOG_CHARS = 1500
_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|.)")


def _hidden(kind: str) -> str:
    return f".{HEADS_CLASS}:not(:has(.{kind}[open]))+.{BODIES_CLASS} .{kind}"


# Browsers that do not know :has() drop the rule and show everything.
HEADS = root(
    f"<style>{_hidden('mgpu-failed')},{_hidden('mgpu-logs')}{{display:none}}"
    f".{HEADS_CLASS} summary{{cursor:pointer}}</style>"
    '<div style="display:flex;gap:20px">'
    '<details class="mgpu-failed"><summary>Failed prompts</summary></details>'
    '<details class="mgpu-logs"><summary>Logs of the workers</summary></details></div>'
)


def bodies_html(snapshot: Snapshot) -> str:
    """What the folds show while the job runs."""
    failed = _failures(snapshot.job) or faint("No prompt has failed.")
    logs = "".join(_log(device, log) for device, log in _logs(snapshot))
    return root(
        f'<div class="mgpu-failed">{failed}</div>'
        f'<div class="mgpu-logs">{logs or faint("The workers have printed nothing.")}</div>'
    )


def final_html(html: str, snapshot: Snapshot, most_bytes: int) -> str:
    """The panel as it stays in the notebook, with what fits of failures and logs.

    Args:
        html: The panel without them.
        snapshot: The final state.
        most_bytes: The size that it may have.
    """
    job = snapshot.job
    if job.failed:
        title = f"{job.failed:,} failed prompt{'s' if job.failed > 1 else ''}"
        room = most_bytes - len((html + _fold(title, "")).encode())
        html += _fold(title, _failures(job, room))
    for device, log in sorted(_logs(snapshot), key=lambda pair: not _in_trouble(pair[0])):
        fold = _fold(f"Log of {safe(device.label)}", _log(device, log[-_FINAL_LOG_CHARS:]))
        if len((html + fold).encode()) <= most_bytes:
            html += fold
    return html


def _fold(title: str, body: str) -> str:
    return root(f'<details><summary style="cursor:pointer">{title}</summary>{body}</details>')


def _failures(job: JobView, most_bytes: int | None = None) -> str:
    """A line for each that is known and has room, and how many are not shown."""
    several = len({failure.model for failure in job.failures}) > 1
    html, shown, rest = "", 0, 60
    for failure in job.failures:
        line = _failure(failure, several)
        if most_bytes is not None and len((html + line).encode()) > most_bytes - rest:
            break
        html, shown = html + line, shown + 1
    more = job.failed - shown
    return html + (f"<div>{faint(f'and {more:,} more')}</div>" if more > 0 and html else "")


def _failure(failure: FailureView, several: bool) -> str:
    model = f"{safe(failure.model)} " if several else ""
    prompt = f" {faint(safe(failure.prompt))}" if failure.prompt else ""
    return (
        f'<div style="white-space:normal;overflow-wrap:anywhere">{mark("✗", RED)}{model}'
        f"<b>#{failure.index}</b> {safe(failure.error)}{prompt}</div>"
    )


def _logs(snapshot: Snapshot) -> Iterator[tuple[DeviceView, str]]:
    """Each worker's log, once, with the first of its devices."""
    seen = []
    for device in snapshot.devices:
        if device.worker is not None and device.worker.log and device.worker not in seen:
            seen.append(device.worker)
            yield device, device.worker.log


def _in_trouble(device: DeviceView) -> bool:
    return device.worker is not None and device.worker.phase in ("lost", "failed")


def _log(device: DeviceView, log: str) -> str:
    label = safe(device.label)
    # reversed, so that it is scrolled to its end however often it is drawn anew
    return (
        f'<div><b>{label}</b></div><div tabindex="0" role="region" aria-label="log of {label}" '
        'style="display:flex;flex-direction:column-reverse;max-height:15em;overflow:auto;'
        'border:1px solid #8884;border-radius:6px;padding:4px 8px;margin:2px 0 8px">'
        '<pre style="margin:0;font-size:12px;white-space:pre-wrap;overflow-wrap:anywhere;'
        f'color:inherit;background:none">{escape(plain_log(log))}</pre></div>'
    )


def plain_log(log: str) -> str:
    """A log as it would stand on a terminal without colours: of redrawn lines the last state."""
    lines = _ESCAPES.sub("", log).replace("\r\n", "\n").split("\n")
    last = (line.rstrip("\r").rpartition("\r")[2] for line in lines)
    return "\n".join(
        "".join(char if char.isprintable() or char == "\t" else " " for char in line)
        for line in last
    ).strip("\n")
