"""The exceptions that a user can meet.

```
MultiGPUError
├── SpecError (ValueError)      bad option, cell or prompt; nothing was started
├── PlacementError              the models do not fit the devices
├── ReportedError               what a worker reported; carries its traceback and log tail
│   ├── EngineError             engine not installed or model not loadable
│   ├── WorkerError             a worker process failed
│   │   ├── WorkerStartError    ... before it was ready
│   │   └── WorkerLost          ... after it was ready
│   └── RequestError            one request failed
└── ProtocolError               a message that is not understood or not allowed now

KeyboardInterrupt
└── JobInterrupted              the user stopped the job; carries what was finished
```

Every message says the value, the rule and the fix. `JobInterrupted` is deliberately no
`MultiGPUError`: a loop with `except Exception` around a job must not swallow the stop button.
Imports nothing of the package.
"""

from __future__ import annotations

from typing import Any


class MultiGPUError(Exception):
    """Base of all errors of this package."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows instead of a traceback: our frames explain nothing to the user."""
        return f"{type(self).__name__}: {self}".splitlines()


class SpecError(MultiGPUError, ValueError):
    """A bad option, cell or prompt. Raised before anything is started."""


class PlacementError(MultiGPUError):
    """The models do not fit the devices."""


class ReportedError(MultiGPUError):
    """Base of the errors that happened in a worker.

    Args:
        message: One sentence: what failed, where, what to do.
        kind: Type name of the original exception, such as `"TypeError"`; empty if unknown.
        traceback: The worker's traceback as text; empty if there was none.
        log_tail: The last lines of the worker's log; empty if it wrote nothing.
        results: What was finished until then (a `ResultSet` or `Ensemble`), or None.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str = "",
        traceback: str = "",
        log_tail: str = "",
        results: Any = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.traceback = traceback
        self.log_tail = log_tail
        self.results = results

    @property
    def message(self) -> str:
        """The sentence, whole; a long one is shown without its middle."""
        return str(self.args[0])

    def __str__(self) -> str:
        text = shortened(self.message, _MESSAGE_CHARS)
        if self.traceback:
            text += "\n\nIn the worker (whole: the error's .traceback):\n"
            text += _last_lines(self.traceback)
        if self.log_tail:
            text += "\n\nLast lines of the worker's log (more: %multigpu logs):\n"
            text += _last_lines(self.log_tail)
        return text


class EngineError(ReportedError):
    """The engine is not installed, cannot load the model, or refuses the job's settings."""


class WorkerError(ReportedError):
    """A worker process failed: device, model, exit code or signal name are in the message."""


class WorkerStartError(WorkerError):
    """A worker ended before it was ready."""


class WorkerLost(WorkerError):  # noqa: N818  # the name says what happened
    """A worker died after it was ready and could not be replaced."""


class RequestError(ReportedError):
    """One request failed; raised by `ResultSet.raise_for_failures()`."""


class ProtocolError(MultiGPUError):
    """A message between kernel and worker is not understood or not allowed in this state."""


class JobInterrupted(KeyboardInterrupt):
    """The user stopped the job.

    Args:
        message: How far it got.
        results: A `ResultSet` (or `Ensemble`) as long as the prompts; what was not finished is
            a `Failure` of kind `"Interrupted"`.
    """

    def __init__(self, message: str = "", *, results: Any = None) -> None:
        super().__init__(message)
        self.results = results

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}"]


_MESSAGE_CHARS = 2000
_LINE_CHARS = 400


def shortened(text: str, most: int) -> str:
    """`text` of at most `most` characters: begin and end, where cause and fix stand, are kept."""
    if len(text) <= most:
        return text
    gap = f" [... {len(text):,} characters in all ...] "
    kept = max(0, most - len(gap))
    return text[: kept - kept // 3] + gap + text[len(text) - kept // 3 :]


def _last_lines(text: str, count: int = 12) -> str:
    lines = text.rstrip().splitlines()
    shown = ["..."] * (len(lines) > count) + lines[-count:]
    shown = [shortened(line, _LINE_CHARS) for line in shown]
    return "\n".join("    " + line for line in shown)
