"""Standard output as an answer is written to it: at once, and without a lock that somebody could be stuck with.

What is written goes to the file descriptor: nothing is left in a buffer that the end of the program has to flush.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import Final

__all__ = ["Output", "complain", "harmless", "may_color", "plain"]

# What a terminal would obey. A model may have read it anywhere.
_CONTROLS: Final = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def complain(error: object) -> int:
    """Say what went wrong, on standard error. Returns the exit code for it."""
    _say(f"halter: {error}\n")
    return 1


def plain(text: str) -> str:
    """One line that can be shown: a terminal obeys what is in a name, too."""
    return "".join(each if each.isprintable() else " " for each in text)


def harmless(text: str) -> str:
    """Text that can be shown, its lines kept, without what a terminal would obey."""
    return text.translate(_CONTROLS)


def may_color() -> bool:
    """Whether standard output is a terminal, and the user has nothing against colour."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Output:
    """Standard output, as text that is written at once; and what is said beside it."""

    def __init__(self) -> None:
        # None where it was closed before we began: its number may be anybody's by now.
        self._file = sys.stdout.fileno() if sys.stdout is not None else None
        self._encoding = (sys.stdout.encoding if sys.stdout is not None else None) or "utf-8"
        self._is_terminal = self._file is not None and os.isatty(self._file)
        self._open: list[None] = []  # not empty in the middle of a line; who takes it out is the one who ends the line
        self.announced = threading.Event()  # that the program wants to end

    def write(self, text: str) -> None:
        """Write all of it. Raises `OSError` if nobody reads any more."""
        if not text:
            return
        if self._is_terminal:
            text = harmless(text)
        self._write(text.encode(self._encoding, "replace"))
        self._open[:] = [] if text.endswith("\n") else [None]

    def write_line(self, line: bytes) -> None:
        """Write one whole line."""
        self._write(line + b"\n")

    def end_line(self) -> None:
        """Be at the beginning of a line."""
        if self._takes_end():
            self._write(b"\n")

    def _takes_end(self) -> bool:
        try:
            self._open.pop()
        except IndexError:
            return False
        return True

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and self._file is not None:
            view = view[os.write(self._file, view) :]

    def say(self, text: str) -> None:
        """Tell the user something that is no part of the answer, on a line of its own."""
        # On one terminal the answer's line would go on with it. It is ended there, and not by a write to the output:
        # that may be a full pipe, and this must not wait for it.
        breaks = self._is_terminal and sys.stderr is not None and sys.stderr.isatty() and self._takes_end()
        _say(f"\n{text}\n" if breaks else f"{text}\n")

    def announce(self, text: str) -> None:
        """Say that the program wants to end, or what it waits for."""
        self.say(text)
        self.announced.set()


def _say(text: str) -> None:
    """Write to standard error. Where nobody reads that, there is nobody to tell."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()
