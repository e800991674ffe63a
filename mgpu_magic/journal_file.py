"""The file of a journal: a header line, then whole lines that are only ever added.

```
        ┌── open to read and write ──> lines, append
path ───┼── open to read ────────────> lines            (yesterday's, in a read-only folder)
        └── no space for a new one ──> append, once there is some
```

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
_COPY_BYTES = 2**20
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_WRITING = (errno.EACCES, errno.EPERM, errno.EROFS)


class JournalFile:
    """An open journal. Not thread-safe.

    Args:
        name: Its path, as the user gave it.
        told: Makes what the header of a new journal tells.

    Attributes:
        path: Where it is, whatever the working directory is later.
        is_new: Whether it held nothing.
        is_read_only: Whether it can be read alone.
        lacks_space: Whether the disk had no space for a new one.

    Raises:
        SpecError: It cannot be read and written, another run has it, or it is no journal.
    """

    def __init__(self, name: str, told: Callable[[], Mapping[str, Any]]) -> None:
        self.name = name
        self.is_new = False
        self.is_read_only = False
        self.lacks_space = False
        self.path = Path(name).expanduser().absolute()
        self._told = told
        self._closed = False
        self._torn = False  # whether the file ends within a line that could not be cut off
        self._lacks_header = False
        self._file: FileIO | None = None
        try:
            self._open()
        except SpecError:
            raise
        except (OSError, ValueError) as error:
            raise SpecError(f"journal {name}: {self._why(error)}") from error

    def lines(self) -> Iterator[bytes]:
        """The whole lines after the header."""
        if self._file is None:
            return
        with open(self._file.fileno(), "rb", buffering=2**20, closefd=False) as reader:
            reader.seek(0)
            next(reader, None)
            yield from (line for line in reader if line.endswith(b"\n"))

    def append(self, lines: bytes) -> tuple[int, OSError | None]:
        """Add whole lines; returns how many bytes of them are there, and why not all."""
        try:
            if self._file is None:
                self._file = self._created()
            elif self._lacks_header:
                self._write_header(self._file.fileno())
        except OSError as error:
            return 0, error
        file = self._file.fileno()
        kept, failed = _written(file, b"\n" * self._torn + lines)
        kept, self._torn = max(kept - self._torn, 0), self._torn and not kept
        whole = lines.rfind(b"\n", 0, kept) + 1
        if whole < kept:
            try:
                os.ftruncate(file, os.fstat(file).st_size - kept + whole)
            except OSError:
                self._torn = True
        return whole, failed

    def restore(self) -> str:
        """See that the journal is still at its path; returns what had become of it, if not so.

        One that was deleted is written anew with all that it held: we still have it open.

        Raises:
            OSError: It is gone, and cannot be written anew; another file is not touched.
        """
        if self._file is None:
            return ""
        ours = os.fstat(self._file.fileno())
        try:
            there = os.stat(self.path)
        except OSError:
            there = None
        if there is not None and os.path.samestat(ours, there):
            return ""
        if ours.st_nlink:
            return f"moved; this run goes on with it at {_place(self._file.fileno())}"
        if there is not None:
            raise OSError(errno.EEXIST, "it was deleted, and another file has its place")
        new = self._created(self._file.fileno())
        self._file.close()
        self._file = new
        return "deleted meanwhile; it was written anew with all that it held"

    def sync(self) -> None:
        """Have the disk keep it, whatever happens to the machine.

        Raises:
            OSError: It does not.
        """
        if self._file is None:
            return
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            if error.errno != errno.EINVAL:  # a file system that has no such thing
                raise

    @property
    def closed(self) -> bool:
        """Whether others can have it."""
        return self._closed

    def close(self) -> None:
        """Let others have it. May be called again."""
        self._closed = True
        if self._file is not None and not self._file.closed:
            with suppress(OSError):  # a process that was forked meanwhile holds the lock, too
                fcntl.flock(self._file.fileno(), fcntl.LOCK_UN)
            self._file.close()

    def _open(self) -> None:
        try:
            file = self._opened()
        except FileNotFoundError:
            self.is_new = True
            try:
                self._file = self._created()
            except OSError as error:
                if error.errno not in _NO_SPACE:
                    raise
                self.lacks_space = True
            return
        with ExitStack() as undo:
            undo.enter_context(file)
            self._lock(file.fileno())
            self._check_header(file.fileno())
            if not self.is_read_only:
                _make_private(file.fileno())
                _cut_torn_line(file.fileno())
            self._file = file
            undo.pop_all()

    def _opened(self) -> FileIO:
        """The file that is there."""
        try:
            return FileIO(self.path, "a+", opener=_existing)
        except OSError as error:
            if error.errno not in _NO_WRITING:
                raise
            refused = error
        try:
            file = FileIO(self.path, "r")
        except OSError:
            raise refused from None
        self.is_read_only = True
        return file

    def _created(self, source: int | None = None) -> FileIO:
        """A new file at the path with a header, or with all that another file holds.

        Raises:
            OSError: It cannot be had; then nothing is left of it.
        """
        file = FileIO(self.path, "a+", opener=_new)
        try:
            self._lock(file.fileno())
            if source is None:
                self._write_header(file.fileno())
            else:
                _copy(source, file.fileno())
        except BaseException:
            self.path.unlink(missing_ok=True)
            file.close()
            raise
        return file

    def _write_header(self, file: int) -> None:
        header = {"journal": "mgpu_magic", "format": FORMAT, **self._told()}
        _, error = _written(file, json.dumps(header, separators=(",", ":")).encode() + b"\n")
        self._lacks_header = error is not None
        if error is not None:
            os.ftruncate(file, 0)
            raise error

    def _why(self, error: Exception) -> str:
        parent = self.path.parent
        if not parent.is_dir():
            return f"there is no folder {parent}; make it, or name a file elsewhere"
        words = error.strerror if isinstance(error, OSError) else str(error)
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            return f"it cannot be written ({words}); free space there, or name a file elsewhere"
        return (
            f"it cannot be opened to read and to write ({words}); name a file in a folder where "
            "you may write, such as answers.jsonl"
        )

    def _lock(self, file: int) -> None:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise self._foreign("no regular file")
        kind = fcntl.LOCK_SH if self.is_read_only else fcntl.LOCK_EX
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise SpecError(
                    f"journal {self.name}: another run is writing it; wait for its end "
                    "(%multigpu stop, or that notebook's kernel), or name another file"
                ) from None
            raise

    def _check_header(self, file: int) -> None:
        begin = os.pread(file, _HEADER_BYTES, 0)
        line, newline, _ = begin.partition(b"\n")
        torn = not newline and len(begin) < _HEADER_BYTES and line.startswith(_BEGIN)
        if (torn or not begin) and not self.is_read_only:
            self.is_new = True
            os.ftruncate(file, 0)
            try:
                self._write_header(file)
            except OSError as error:
                if error.errno not in _NO_SPACE:
                    raise
                self.lacks_space = True
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


def _existing(path: str, flags: int) -> int:
    return os.open(path, flags & ~os.O_CREAT)


def _new(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)


def _written(file: int, content: bytes) -> tuple[int, OSError | None]:
    """Write; returns how many bytes are there, and why not all."""
    left = memoryview(content)
    try:
        while left:
            left = left[os.write(file, left) :]
    except OSError as error:
        return len(content) - len(left), error
    return len(content), None


def _copy(source: int, target: int) -> None:
    at = 0
    while block := os.pread(source, _COPY_BYTES, at):
        _, error = _written(target, block)
        if error is not None:
            raise error
        at += len(block)


def _make_private(file: int) -> None:
    there = os.fstat(file)
    if there.st_uid == os.geteuid() and stat.S_IMODE(there.st_mode) & 0o077:
        with suppress(OSError):
            os.fchmod(file, stat.S_IMODE(there.st_mode) & 0o700)


def _place(file: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{file}")
    except OSError:
        return "its new place"


def _cut_torn_line(file: int) -> None:
    size = at = os.fstat(file).st_size
    while at:
        start = max(0, at - _STEP_BYTES)
        newline = os.pread(file, at - start, start).rfind(b"\n")
        if newline >= 0:
            at = start + newline + 1
            break
        at = start
    if at < size:
        os.ftruncate(file, at)
