"""Why vLLM's engine process ended: its error names no cause, which stands in the log alone.

Imports no vLLM.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_TAIL_BYTES = 65536
_ERROR = re.compile(
    r"^(?:\(\w+[^)]*\) ?)?(?:ERROR [^\]]*\] )?"  # what vLLM's log puts before a line
    r"(?P<kind>(?:\w+\.)*[A-Z]\w*(?:Error|Exception)): (?P<message>.+)$"
)
_RELAYED = re.compile(r"Worker failed with error '(.*)', please check the stack trace above")
_POINTER = "root cause above"


def root_cause(log: str) -> str | None:
    """The error behind `"See root cause above"`, such as `"ValueError: No available memory"`.

    The last one that was printed; where it only passes on the error of a process below, that one.
    """
    errors = [match for line in log.splitlines() if (match := _ERROR.match(line))]
    errors = [match for match in errors if _POINTER not in match["message"]]
    if not errors:
        return None
    last = errors[-1]
    if relayed := _RELAYED.search(last["message"]):
        for match in errors:
            if match["message"] == relayed[1]:
                return f"{match['kind']}: {match['message']}"
        return relayed[1]
    return f"{last['kind']}: {last['message']}"


@contextlib.contextmanager
def cause_told() -> Iterator[None]:
    """Have an error that points at the log say what is there."""
    try:
        yield
    except RuntimeError as error:
        if _POINTER in str(error) and (cause := root_cause(_printed())):
            told = RuntimeError(f"vLLM's engine process failed: {cause}")
            raise told.with_traceback(error.__traceback__) from None
        raise


def _printed() -> str:
    """The end of what this process, and those below it, wrote to a log."""
    with contextlib.suppress(OSError):
        if stat.S_ISREG(os.fstat(1).st_mode):
            with open("/proc/self/fd/1", "rb") as log:
                log.seek(max(0, os.fstat(1).st_size - _TAIL_BYTES))
                return log.read().decode(errors="replace")
    return ""
