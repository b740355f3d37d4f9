"""Standard output without buffering.

Text goes straight to the file descriptor: nothing is left in a buffer that the exit has to flush. Messages never wait
long for the output, whose reader may have stopped reading.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sys
import threading
from typing import Final

from halter.views.text import escape_controls, strip_controls

__all__ = ["EXIT_PIPE_CLOSED", "Output", "clean_log", "may_color", "print_error", "write_all"]

EXIT_PIPE_CLOSED: Final = 141
"""128 + SIGPIPE, which Python ignores: the exit code if nobody reads the output."""
# Seconds that a message waits for a write to the terminal. One that takes longer was paused by the user.
_WRITE_TIMEOUT: Final = 0.2


def print_error(error: object) -> int:
    """Print an error on standard error. Returns the exit code for it."""
    _say(f"halter: {error}\n")
    return 1


def clean_log() -> None:
    """Remove control characters from warnings, which go to standard error if no logging was set up."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Cleaned())


def write_all(file: int, data: bytes) -> None:
    """Write all of it, however slow the reader is. Raises `OSError` if there is none, or the disk is full."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(file, view) :]
        except BlockingIOError:  # another program that has the same file open has made it non-blocking
            select.select([], [file], [])


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
        self._line_is_open = False
        # Held from a write until it is known whether its line is open: a message in between would continue the line.
        self._writing = threading.Lock()
        self.announced = threading.Event()  # set when the exit was announced

    def write(self, text: str) -> None:
        """Write all of it. Raises `OSError` if the reader is gone."""
        if not text:
            return
        if self._is_terminal:
            text = strip_controls(text)
        with self._writing:
            self._write(text.encode(self._encoding, "replace"))
            self._line_is_open = not text.endswith("\n")

    def write_line(self, line: bytes) -> None:
        """Write one whole line of JSON."""
        self._write(escape_controls(line) + b"\n")

    def end_line(self) -> None:
        """End the line, if one is open."""
        with self._writing:
            if self._line_is_open:
                self._line_is_open = False
                self._write(b"\n")

    def _write(self, data: bytes) -> None:
        if self._file is not None:
            write_all(self._file, data)

    def say(self, text: str) -> None:
        """Print a message on standard error, on a line of its own."""
        if not self._is_terminal or sys.stderr is None or not sys.stderr.isatty():
            _say(f"{text}\n")
            return
        # On one terminal the message would continue the answer's line, so that is ended first.
        is_held = self._writing.acquire(timeout=_WRITE_TIMEOUT)
        try:
            _say(f"\n{text}\n" if self._line_is_open else f"{text}\n")
            self._line_is_open = False
        finally:
            if is_held:
                self._writing.release()

    def announce(self, text: str) -> None:
        """Announce the exit, or what it waits for."""
        self.say(text)
        self.announced.set()


def _say(text: str) -> None:
    """Write to standard error, if it is open, without control characters: the text may come from a server or model."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(strip_controls(text))
            sys.stderr.flush()
