"""The chat on a terminal of its own, whose screen the tests read as a person would."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from typing import Self

import pyte
from rich.style import Style

from tests.support.cli_program import Home

ESC, ENTER, TAB, CTRL_C, CTRL_D, CTRL_U = "\x1b", "\r", "\t", "\x03", "\x04", "\x15"
CTRL_O, CTRL_R = "\x0f", "\x12"
WAIT = 60.0
ALT_ENTER, ALT_UP, UP = "\x1b\r", "\x1b[1;3A", "\x1b[A"
# Makes the terminal on its standard input its own, so that closing it hangs up, and becomes the program.
_BECOME = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"


class ChatScreen:
    """A running chat: keys go in, and what is on the screen, and above it, can be read and waited for."""

    def __init__(self, home: Home, *args: str, rows: int = 24, columns: int = 80, **env: str) -> None:
        self.file, theirs = pty.openpty()
        self._set_size(rows, columns)
        self._screen = pyte.HistoryScreen(columns, rows, history=20_000, ratio=0.5)
        self._stream = pyte.ByteStream(self._screen)
        self._changed = threading.Condition()
        self._is_over = False
        self.raw = bytearray()
        python = sys.executable
        self.program = subprocess.Popen(
            [*home.launcher, python, "-c", _BECOME, python, "-m", "halter", *args],
            env=home.env | {"TERM": "xterm-256color"} | env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.program.kill()
        self.program.wait(WAIT)
        self._reader.join(WAIT)
        self.close()

    def close(self) -> None:
        """Close the terminal, as whoever closes its window does."""
        if self.file >= 0:
            file, self.file = self.file, -1
            os.close(file)

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # Linux says so when the other end is closed
            while piece := os.read(self.file, 65536):
                with self._changed:
                    self.raw += piece
                    self._stream.feed(piece)
                    self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    # -- what a person does ------------------------------------------------------------------------------------------

    def type(self, keys: str) -> None:
        data = memoryview(keys.encode(errors="surrogateescape"))
        while data:
            data = data[os.write(self.file, data) :]

    def send(self, text: str) -> None:
        """Type a line, and Enter once it is there."""
        self.type(text)
        self.wait_for_line(text)
        self.type(ENTER)

    def paste(self, text: str) -> None:
        self.type(f"\x1b[200~{text}\x1b[201~")

    def resize(self, rows: int, columns: int) -> None:
        with self._changed:  # what the program draws from now on is for this size
            self._set_size(rows, columns)
            self._screen.resize(rows, columns)
        self.program.send_signal(signal.SIGWINCH)

    def _set_size(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.file, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    # -- what a person sees ------------------------------------------------------------------------------------------

    @property
    def display(self) -> list[str]:
        """The lines of the screen as it is now."""
        with self._changed:
            return [line.rstrip() for line in self._rows()]

    @property
    def text(self) -> str:
        """All that has been shown and is still there: what has scrolled away, and the screen."""
        with self._changed:
            return self._text()

    def _text(self) -> str:
        above = ["".join(line[x].data for x in range(self._screen.columns)) for line in self._screen.history.top]
        return "\n".join(line.rstrip() for line in [*above, *self._rows()])

    def _rows(self) -> list[str]:
        """The screen as it is now. Not pyte's own, which fails on half of a wide character."""
        screen = self._screen
        return ["".join(screen.buffer[y][x].data for x in range(screen.columns)) for y in range(screen.lines)]

    def cells(self) -> list[list[tuple[str, Style]]]:
        """The screen as it is now, cell by cell, with what each looks like; without the empty lines at its end."""
        with self._changed:
            rows = [
                [_cell(self._screen.buffer[y][x]) for x in range(self._screen.columns)]
                for y in range(self._screen.lines)
            ]
        while rows and not "".join(text for text, _ in rows[-1]).strip():
            rows.pop()
        return rows

    def wait(self, condition: Callable[[], object], what: object = "") -> None:
        """Wait until the screen is as it should be."""
        end = time.monotonic() + WAIT
        with self._changed:
            while not condition():
                left = end - time.monotonic()
                is_late = left <= 0 or self._is_over
                assert not is_late, f"{what or condition} did not come:\n{self._text()}"
                self._changed.wait(left)

    def wait_for(self, *wanted: str) -> None:
        """Wait until all of these are to be seen, on the screen or above."""
        self.wait(lambda: all(each in self._text() for each in wanted), wanted)

    def wait_for_match(self, pattern: str) -> re.Match[str]:
        self.wait(lambda: re.search(pattern, self._text()), pattern)
        found = re.search(pattern, self.text)
        assert found is not None
        return found

    def wait_gone(self, *unwanted: str) -> None:
        """Wait until none of these is on the screen any more."""
        self.wait(lambda: not any(each in "\n".join(self._rows()) for each in unwanted), unwanted)

    def wait_for_line(self, text: str) -> None:
        """Wait until this stands in the line in which one types."""
        last = text.rsplit("\n", maxsplit=1)[-1][-60:]
        self.wait(lambda: any(line.rstrip().endswith(last.rstrip()) for line in self._rows()), text)

    def wait_ready(self) -> None:
        """Wait until it takes keys and nothing runs."""
        self.wait_state("idle")

    def wait_state(self, state: str) -> None:
        """Wait until the state in the last line is this."""
        self.wait(lambda: f" · {state}" in self._last_line(), f"state {state!r}")

    def _last_line(self) -> str:
        return next((line for line in reversed(self._rows()) if line.strip()), "")

    def wait_notice(self, text: str) -> None:
        """Wait until this is said above the state, or anywhere on the screen."""
        self.wait(lambda: any(text in line for line in self._rows()), text)

    def end(self) -> int:
        """Wait for its end; gives the exit code."""
        code = self.program.wait(WAIT)
        self._reader.join(WAIT)
        return code


def _cell(cell: pyte.screens.Char) -> tuple[str, Style]:
    """One cell in rich's words."""
    color = {"default": None, "brown": "yellow"}.get(cell.fg, cell.fg.replace("bright", "bright_"))
    if color is not None and re.fullmatch("[0-9a-f]{6}", color):
        color = f"#{color}"
    # Text is faint if whoever reads the screen has told pyte to keep that as blinking, which nothing here does.
    return cell.data, Style(color=color, bold=cell.bold or None, reverse=cell.reverse or None, dim=cell.blink or None)
