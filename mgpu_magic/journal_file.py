"""The file of a journal: a header line, then whole lines that are only ever added.

One run at a time has it: it is locked by `flock`, which ends with the process, however that ends.
A file that is no journal is refused and not touched. A last line that a crash tore is cut off.
Imports `errors` alone.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from contextlib import ExitStack, suppress
from functools import partial
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mgpu_magic.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

FORMAT = 1
_BEGIN = b'{"journal":"mgpu_magic"'
_HEADER_BYTES = 4096
_STEP_BYTES = 2**16
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


class JournalFile:
    """An open journal. Not thread-safe.

    Args:
        name: Its path, as the user gave it.
        told: Makes what the header of a new journal tells.

    Attributes:
        is_new: Whether it held nothing.

    Raises:
        SpecError: It cannot be read and written, another run has it, or it is no journal.
    """

    def __init__(self, name: str, told: Callable[[], Mapping[str, Any]]) -> None:
        self.name = name
        self.is_new = False
        self._path = Path(name).expanduser()
        private = partial(os.open, mode=0o600)
        try:
            with ExitStack() as undo:
                self._file = undo.enter_context(FileIO(self._path, "a+", opener=private))
                self._lock()
                self._check_header(told)
                self._cut_torn_line()
                undo.pop_all()
        except SpecError:
            raise
        except (OSError, ValueError) as error:
            raise SpecError(f"journal {name}: {self._why(error)}") from error

    def lines(self) -> Iterator[bytes]:
        """The lines after the header."""
        with open(self._file.fileno(), "rb", buffering=2**20, closefd=False) as reader:
            reader.seek(0)
            next(reader)
            yield from reader

    def append(self, lines: bytes) -> None:
        """Add whole lines.

        Raises:
            OSError: They could not be written; then none of them is there.
        """
        end = os.fstat(self._file.fileno()).st_size
        left = memoryview(lines)
        try:
            while left:
                left = left[os.write(self._file.fileno(), left) :]
        except OSError:
            with suppress(OSError):  # else the next reader cuts it
                os.ftruncate(self._file.fileno(), end)
            raise

    def sync(self) -> None:
        """Have the disk keep it, whatever happens to the machine.

        Raises:
            OSError: It does not.
        """
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            if error.errno != errno.EINVAL:  # a file system that has no such thing
                raise

    @property
    def closed(self) -> bool:
        """Whether others can have it."""
        return self._file.closed

    def close(self) -> None:
        """Let others have it. May be called again."""
        if not self._file.closed:
            with suppress(OSError):  # a process that was forked meanwhile holds the lock, too
                fcntl.flock(self._file.fileno(), fcntl.LOCK_UN)
            self._file.close()

    def _why(self, error: Exception) -> str:
        parent = self._path.parent
        if not parent.is_dir():
            return f"there is no folder {parent}; make it, or name a file elsewhere"
        words = error.strerror if isinstance(error, OSError) else str(error)
        return (
            f"it cannot be opened to read and to write ({words}); name a file in a folder where "
            "you may write, such as answers.jsonl"
        )

    def _lock(self) -> None:
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            raise self._foreign("no regular file")
        try:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise SpecError(
                    f"journal {self.name}: another run is writing it; wait for its end "
                    "(%multigpu stop, or that notebook's kernel), or name another file"
                ) from None
            raise

    def _check_header(self, told: Callable[[], Mapping[str, Any]]) -> None:
        begin = os.pread(self._file.fileno(), _HEADER_BYTES, 0)
        line, newline, _ = begin.partition(b"\n")
        if not newline and (line.startswith(_BEGIN) or _BEGIN.startswith(line)):  # new, or torn
            self.is_new = True
            os.ftruncate(self._file.fileno(), 0)
            header = {"journal": "mgpu_magic", "format": FORMAT, **told()}
            self.append(json.dumps(header, separators=(",", ":")).encode() + b"\n")
            return
        try:
            header = json.loads(line) if line.startswith(_BEGIN) else {}
        except ValueError:
            header = {}
        if "journal" not in header:
            raise self._foreign("no journal of mgpu_magic")
        if header.get("format") != FORMAT:
            raise self._foreign(f"a journal of format {header.get('format')!r}, not {FORMAT}")

    def _foreign(self, what: str) -> SpecError:
        return SpecError(
            f"journal {self.name}: there is such a file, and it is {what}; it was not touched. "
            "Name another file"
        )

    def _cut_torn_line(self) -> None:
        line = self._file.fileno()
        size = at = os.fstat(line).st_size
        while at:
            start = max(0, at - _STEP_BYTES)
            newline = os.pread(line, at - start, start).rfind(b"\n")
            if newline >= 0:
                at = start + newline + 1
                break
            at = start
        if at < size:
            os.ftruncate(line, at)
