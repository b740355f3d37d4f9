"""Standard output without buffering and without locks that a stuck thread could hold.

Text goes straight to the file descriptor: nothing is left in a buffer that the exit has to flush.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading

from halter.views.text import escape_controls, strip_controls

__all__ = ["Output", "clean_log", "may_color", "print_error"]


def print_error(error: object) -> int:
    """Print an error on standard error. Returns the exit code for it."""
    _say(f"halter: {error}\n")
    return 1


def clean_log() -> None:
    """Have warnings, which go to standard error if nothing else was set up, contain no control characters."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Cleaned())


class _Cleaned(logging.Formatter):
    """The message and its traceback as text that is safe to show."""

    def format(self, record: logging.LogRecord) -> str:
        return strip_controls(super().format(record))


def may_color() -> bool:
    """Whether standard output is a terminal, and colour is not turned off."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Output:
    """Unbuffered standard output, and messages on standard error."""

    def __init__(self) -> None:
        # None if it was closed before the start: its number may be in use by something else.
        self._file = sys.stdout.fileno() if sys.stdout is not None else None
        self._encoding = (sys.stdout.encoding if sys.stdout is not None else None) or "utf-8"
        self._is_terminal = self._file is not None and os.isatty(self._file)
        self._open: list[None] = []  # not empty within a line; whoever pops the element ends the line
        self.announced = threading.Event()  # set when the exit was announced

    def write(self, text: str) -> None:
        """Write all of it. Raises `OSError` if the reader is gone."""
        if not text:
            return
        if self._is_terminal:
            text = strip_controls(text)
        self._write(text.encode(self._encoding, "replace"))
        self._open[:] = [] if text.endswith("\n") else [None]

    def write_line(self, line: bytes) -> None:
        """Write one whole line of JSON."""
        self._write(escape_controls(line) + b"\n")

    def end_line(self) -> None:
        """End the line, if one is open."""
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
        """Print a message on standard error, on a line of its own."""
        # On one terminal the answer's line would go on with it. It is ended there, and not by a write to the output:
        # that may be a full pipe, and this must not wait for it.
        breaks = self._is_terminal and sys.stderr is not None and sys.stderr.isatty() and self._takes_end()
        _say(f"\n{text}\n" if breaks else f"{text}\n")

    def announce(self, text: str) -> None:
        """Announce the exit, or what it waits for."""
        self.say(text)
        self.announced.set()


def _say(text: str) -> None:
    """Write to standard error, if it is open. What a server or a model said may be part of it."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(strip_controls(text))
            sys.stderr.flush()
