"""A terminal for a script: a real pseudo-terminal, and the screen that its output makes."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING
from unicodedata import east_asian_width

from process.living import TESTS

if TYPE_CHECKING:
    from pathlib import Path

_TOKEN = re.compile(r"\x1b\[(\d*)([A-Za-z])|(.)", re.DOTALL)

# For its Ctrl-C; who runs tests in the background has it ignored, and so have their children.
_TAKE_TERMINAL = """\
import fcntl, signal, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.default_int_handler)
"""


class Screen:
    """What a terminal shows: it wraps, scrolls, moves up and clears, and obeys nothing else."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns = columns
        self.rows = rows
        self.gone: list[str] = []  # lines that scrolled out at the top
        self._cells: list[list[str]] = [[]]
        self._row = self._column = 0

    @property
    def lines(self) -> list[str]:
        """From the first line ever to the last that is not empty."""
        shown = ["".join(cells).rstrip() for cells in self._cells]
        text = "\n".join([*self.gone, *shown]).rstrip("\n")
        return text.split("\n")

    def write(self, text: str) -> None:
        for count, command, char in _TOKEN.findall(text):
            match command or char:
                case "\r":
                    self._column = 0
                case "\n":
                    self._down()
                case "A":
                    self._row = max(0, self._row - int(count or 1))
                case "J":
                    del self._cells[self._row + 1 :]
                    del self._cells[self._row][self._column :]
                case _ if command:
                    raise AssertionError(f"an unknown command: {command}")
                case _:
                    self._put(char)

    def _put(self, char: str) -> None:
        width = 2 if east_asian_width(char) in "WF" else 1
        if self._column + width > self.columns:
            self._column = 0
            self._down()
        cells = self._cells[self._row]
        cells += [" "] * (self._column + width - len(cells))
        cells[self._column : self._column + width] = [char, *[""] * (width - 1)]
        self._column += width

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self._cells):
            self._cells.append([])
        if len(self._cells) > self.rows:
            self.gone.append("".join(self._cells.pop(0)).rstrip())
            self._row -= 1


class TerminalScript:
    """A plain script in a terminal of its own, in which Ctrl-C can be pressed."""

    def __init__(
        self, folder: Path, body: str, *, columns: int = 100, rows: int = 24, **environ: str
    ) -> None:
        self.screen = Screen(columns, rows)
        self.output = ""
        script = folder / "script.py"
        script.write_text(f"{_TAKE_TERMINAL}\n{body}", encoding="utf-8")
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        modes = termios.tcgetattr(slave)
        modes[3] |= termios.NOFLSH  # else Ctrl-C throws away what we have not read yet
        termios.tcsetattr(slave, termios.TCSANOW, modes)
        self.process = subprocess.Popen(
            [sys.executable, script],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}", "TERM": "xterm", **environ},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)

    def until(self, text: str, seconds: float = 30.0) -> None:
        """Wait until it has printed that."""
        deadline = time.monotonic() + seconds
        while text not in self.output:
            assert time.monotonic() < deadline, self.output
            assert self._take(), self.output

    def press_interrupt(self) -> None:
        """Press Ctrl-C, between two drawings: its echo would break a line in two."""
        self._take()  # so that the next drawing is a while away
        while select.select([self._master], [], [], 0.05)[0]:
            self._take()
        os.write(self._master, b"\x03")

    def end(self) -> list[str]:
        """Wait for its end; returns the lines on the screen, those scrolled away included."""
        try:
            while self._take():
                pass
            assert self.process.wait(timeout=10) == 0, self.output
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self._master)
        return self.screen.lines

    def _take(self) -> bool:
        """Take what it prints; whether it goes on."""
        ready, _, _ = select.select([self._master], [], [], 30)
        assert ready, self.output
        try:
            some = os.read(self._master, 65536).decode()
        except OSError:  # nobody holds the other end any more
            return False
        self.output += some
        self.screen.write(some)
        return bool(some)
