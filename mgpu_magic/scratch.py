"""The private folder of a session, and what becomes of those whose kernel was killed.

```
 <temporary folder>/mgpu_magic-XXXXXXXX/     mode 0700
 ├── lock              held by the kernel as long as it lives
 ├── worker-N.log      what worker N printed
 └── worker-N/         where its vLLM puts the files of its own processes
```

`Scratch.close` removes it. After a kernel that was killed its workers do, or the next session.
Imports `process_group` alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from mgpu_magic import process_group

PREFIX = "mgpu_magic-"
LOG_LIMIT_BYTES = 64 * 2**20
_KEEP_BYTES = 2**20
_PUNCH_HOLE = 0x01 | 0x02  # keep the size


class Scratch:
    """A new private folder.

    Attributes:
        path: Where it is.
    """

    def __init__(self) -> None:
        # Under a name that nobody sweeps, until its lock is held.
        made = Path(tempfile.mkdtemp(prefix=f"new-{PREFIX}"))
        self._lock = os.open(made / "lock", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = made.rename(made.with_name(made.name.removeprefix("new-")))

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def sweep() -> None:
    """Remove the folders of kernels that are gone, and what is left of their workers.

    Workers see to their own end, unless they are stopped or stuck in a call that lets nobody else
    run, as a driver that hangs may: they would hold their device for ever.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # not ours to see, in use, or not complete yet
            if folder.lstat().st_uid != os.getuid():
                continue
            lock = os.open(folder / "lock", os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for worker in process_group.started_with(str(folder)):
                    process_group.end(worker)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def shorten(log: Path, size: int) -> None:
    """Release the disk space of a log that has grown too long, but for its last part.

    The beginning becomes a hole: whoever writes goes on writing, and no line of the rest is lost.
    Where the file system cannot do that the log stays as it is.
    """
    if size <= LOG_LIMIT_BYTES:
        return
    with contextlib.suppress(OSError), log.open("rb+") as file:
        length = ctypes.c_int64(size - _KEEP_BYTES)
        start = ctypes.c_int64(0)
        ctypes.CDLL(None, use_errno=True).fallocate(file.fileno(), _PUNCH_HOLE, start, length)
