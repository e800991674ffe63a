"""The journal of a job: what is answered stays in a file, and is not asked again.

```
JournalFile ── lines ──> open_journal: keys of the job ──> recorded answers
     ▲
     └── lines <── writer thread <── queue <── add(outcomes) ── session's loop
```

The writer has a thread of its own: neither encoding nor a slow disk holds up the session. What
cannot be written is said once and tried again later; the run goes on.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from platform import python_version
from typing import TYPE_CHECKING, Any

from mgpu_magic.cells import prompt_text
from mgpu_magic.errors import SpecError
from mgpu_magic.identity import KEY_CHARS
from mgpu_magic.journal_file import JournalFile
from mgpu_magic.matching import Asked, Rows, Strays
from mgpu_magic.outcomes import Failure, Outcome
from mgpu_magic.records import NotDataError, fields_of, outcome_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

log = logging.getLogger("mgpu_magic")

FLUSH_SECONDS = 0.25
RETRY_SECONDS = 30.0
_BLOCK_BYTES = 2**20
_PROMPT_CHARS = 80
_PREFIX = b'{"key":"'
_KEY = slice(len(_PREFIX), len(_PREFIX) + KEY_CHARS)
_ADDED = "; these are added"


class Journal:
    """A journal that is open for one job, locked against others.

    Args:
        name: Path of the file.
        asked: The prompts of the job.
        libraries: Distributions whose versions a new journal tells.

    Attributes:
        recorded: The answers that it held, by model name.

    Raises:
        SpecError: The file cannot be had, or is no journal.
    """

    def __init__(self, name: str, asked: Sequence[Asked], libraries: Sequence[str]) -> None:
        self._asked = {of_model.model: of_model for of_model in asked}
        self._notes: dict[str, None] = {}
        self._queue: deque[tuple[str, Outcome]] = deque()
        self._over = threading.Event()
        self._tell: Callable[[str], object] = lambda _: None
        self._then: Callable[[], object] = lambda: None
        self._thread: threading.Thread | None = None
        self._block = b""  # that is to be written
        self._broken = False
        self._retry_at = 0.0
        self._lost: dict[str, int] = {}  # results that are no data, by what they are
        self._unbegun: list[JournalFile] = []
        try:
            self._unbegun.append(JournalFile(name, lambda: _told(libraries)))
            (self._file,) = self._unbegun
            self.recorded: Mapping[str, Sequence[Outcome]] = self._read(asked)
            if self._file.lacks_space:
                self._break("there is no space for a new file on its disk")
        except BaseException:
            self.abandon()
            raise

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know by now."""
        late = self._over.is_set() and not self._file.closed
        what = f"journal {self._file.name} is still being written; the results are in memory."
        return (*self._notes, *[what] * late)

    def begin(self, tell: Callable[[str], object]) -> None:
        """The job begins: outcomes may come.

        Args:
            tell: Called with what goes wrong meanwhile, from another thread.

        Raises:
            SpecError: The job was given up before.
        """
        try:
            self._unbegun.pop()
        except IndexError:
            raise SpecError("the job was given up before it began") from None
        self._tell = tell
        self._thread = threading.Thread(target=self._run, name="mgpu-journal", daemon=True)
        self._thread.start()

    def abandon(self) -> None:
        """Let go of the file where the job has not begun; else nothing. From any thread."""
        with suppress(IndexError):
            self._unbegun.pop().close()

    def add(self, model: str, outcomes: Iterable[Outcome]) -> None:
        """Have the outcomes written soon; returns at once."""
        if not self._file.is_read_only:
            self._queue.extend((model, outcome) for outcome in outcomes)

    def end(self, then: Callable[[], object]) -> None:
        """No more will come; `then` is called from another thread once all is on the disk."""
        self._then = then
        self._over.set()

    def wait(self, seconds: float) -> None:
        """Wait for the end, no longer than that."""
        if self._thread is not None:
            self._thread.join(seconds)

    # --- what it holds -----------------------------------------------------------------------

    def _read(self, asked: Sequence[Asked]) -> dict[str, list[Outcome]]:
        recorded: dict[str, list[Outcome]] = {of_model.model: [] for of_model in asked}
        rows = Rows(asked)
        strays = Strays(rows)
        others = unreadable = 0
        for line in self._file.lines():
            try:
                key, fields = _parted(line)
                if not rows.is_free(key):
                    others += 1
                    continue
                fields = fields or json.loads(line)
                place = rows.own(key, fields)
                outcome = outcome_of(fields, place[1] if place else 0)
            except (ValueError, RecursionError):
                unreadable += 1
                continue
            if isinstance(outcome, Failure):
                continue
            if place is None:
                strays.keep(key, outcome)
            else:
                rows.take(*place)
                recorded[place[0]].append(outcome)
        for model, outcome in strays.placed():
            recorded[model].append(outcome)
        others += strays.left
        taken = sum(map(len, recorded.values()))
        self._notes.update(dict.fromkeys(self._words(taken, others, unreadable)))
        return recorded

    def _words(self, taken: int, others: int, unreadable: int) -> Iterator[str]:
        name = self._file.name
        total = sum(len(of_model.prompts) for of_model in self._asked.values())
        if self._file.lacks_space:
            return  # the first that comes tries again, and says so
        if self._file.is_new:
            yield f"new journal {self._file.path}"
        if taken:
            yield f"{taken:,} of {total:,} answers came from the journal {name}."
        if others and taken:
            yield f"journal {name} also holds {_counted(others, 'outcome')} of other jobs."
        elif others:
            yield (
                f"journal {name} holds {_counted(others, 'outcome')} of other prompts, settings "
                f"or models, and none of this job's{'' if self._file.is_read_only else _ADDED}."
            )
        if unreadable:
            yield f"journal {name}: {_counted(unreadable, 'line')} cannot be read; left out."
        if self._file.is_read_only:
            yield (
                f"journal {name} can be read and not written: new answers are not kept there; "
                "copy it to a folder where you may write to go on with it."
            )

    # --- the writer's thread -----------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._over.wait(FLUSH_SECONDS):
                self._write(last=False)
            self._write(last=True)
            if count := sum(self._lost.values()):
                what = ", ".join(self._lost)
                self._say(f"{_counted(count, 'result')} of this run not in the journal: {what}.")
        except Exception as error:  # the results are in memory; nobody else would say it
            log.exception("the journal failed")
            self._say(f"journal {self._file.name} failed: {type(error).__name__}: {error}")
        finally:
            self._file.close()
            self._then()

    def _write(self, *, last: bool) -> None:
        """Write what has come; after an error, not before its time."""
        if self._broken and not last and time.monotonic() < self._retry_at:
            return
        try:
            if self._block or self._queue or last:
                self._restore()
            while self._block or self._queue:
                self._block = self._block or self._encoded()
                kept, error = self._file.append(self._block)
                self._block = self._block[kept:]
                if error is not None:
                    raise error
            if last:
                self._file.sync()
        except OSError as error:
            self._break(error.strerror or str(error))
            return
        if self._broken:
            self._broken = False
            self._say(f"journal {self._file.name} could be written again and lacks nothing.")

    def _restore(self) -> None:
        if what := self._file.restore():
            self._say(f"journal {self._file.name} was {what}.")

    def _break(self, why: str) -> None:
        self._broken = True
        self._retry_at = time.monotonic() + RETRY_SECONDS
        self._say(
            f"journal {self._file.name} cannot be written ({why}); the run goes on, and what is "
            "missing there is in the results, in memory."
        )

    def _encoded(self) -> bytes:
        """Lines of what has come, about a block."""
        block = bytearray()
        while self._queue and len(block) < _BLOCK_BYTES:
            block += self._line(*self._queue.popleft())
        return bytes(block)

    def _line(self, model: str, outcome: Outcome) -> bytes:
        if isinstance(outcome, Failure) and (
            outcome.error.kind == "Interrupted" or not outcome.attempts
        ):
            return b""  # it says nothing of the prompt
        asked = self._asked[model]
        head = {
            "key": asked.key(outcome.index).decode(),
            "model": model,
            "index": outcome.index,
            "prompt": _head(asked.prompts[outcome.index]),
        }
        try:
            return _json({**head, **fields_of(outcome)})
        except NotDataError as error:
            self._lose(str(error))
        except (ValueError, TypeError, RecursionError) as error:
            self._lose(f"{type(error).__name__}: {error}")
        return b""

    def _lose(self, what: str) -> None:
        if not self._lost:
            self._say(
                f"predict returns {what}; the journal keeps JSON data, tuples, bytes and NumPy "
                "arrays, so another run computes such results again."
            )
        self._lost[what] = self._lost.get(what, 0) + 1

    def _say(self, note: str) -> None:
        if note not in self._notes:
            self._notes[note] = None
            self._tell(note)


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _parted(line: bytes) -> tuple[bytes, dict[str, Any] | None]:
    """The key of a line, and its fields where they had to be read for it."""
    if line.startswith(_PREFIX) and line.endswith(b"}\n"):
        return line[_KEY], None
    fields = json.loads(line)  # another program wrote the file anew, perhaps
    try:
        return fields["key"].encode(), fields
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"a line without a key: {error}") from None


def _head(prompt: object) -> str:
    try:
        text = prompt_text(prompt)
        line = " ".join(text[: 4 * _PROMPT_CHARS].split())
        return line if len(line) <= _PROMPT_CHARS else line[: _PROMPT_CHARS - 1] + "…"
    except Exception:  # noqa: BLE001  # an object of the user's that cannot be shown
        return ""


def _json(fields: dict[str, Any]) -> bytes:
    """One line; readable where all of it is text."""
    try:
        return _readable(fields).encode() + b"\n"
    except UnicodeEncodeError:  # a lone surrogate
        return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


_readable = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _told(libraries: Iterable[str]) -> dict[str, Any]:
    """What the header of a new journal says."""
    versions = {"python": python_version()}
    for library in libraries:
        with suppress(PackageNotFoundError):
            versions[library] = version(library)
    return {"versions": versions, "created": datetime.now(UTC).isoformat(timespec="seconds")}
