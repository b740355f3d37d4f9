"""The terminal: no echo from the start, and restored at the end.

What is typed before the chat is up is not echoed into its picture, and nothing of it is flushed.
A terminal that is gone, or that takes nothing, holds nobody up. Imports little: it is there before the rest is.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["Size", "Terminal"]


_LFLAG: Final = 3
_IFLAG: Final = 0
_MOMENT: Final = 0.2  # seconds to wait for a terminal to accept output
# Out of what the chat may have switched on: reports of the focus and pasting in brackets off, cursor shown, no colour.
_CALM: Final = b"\x1b[?1004l\x1b[?2004l\x1b[?25h\x1b[0m\r\n"


class Size(NamedTuple):
    """Of a terminal."""

    rows: int
    columns: int


_USUAL: Final = Size(rows=24, columns=80)


class Terminal:
    """Standard input and output as a terminal. Use it in a `with` block."""

    def __init__(self) -> None:
        self.input = sys.stdin.fileno()
        self.output = sys.stdout.fileno()
        self._before = termios.tcgetattr(self.input)

    def __enter__(self) -> Self:
        # No echo, and no line buffering; but Ctrl+C is still a signal, as nothing handles it as a key yet.
        quiet = termios.tcgetattr(self.input)
        quiet[_LFLAG] &= ~(termios.ECHO | termios.ICANON)
        quiet[_IFLAG] &= ~termios.ICRNL
        self._set(quiet)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.restore()

    def restore(self) -> None:
        """Restore the settings that it had at the start. From any thread."""
        self._set(self._before)

    def _set(self, attributes: list[int | list[bytes | int]]) -> None:
        with contextlib.suppress(termios.error, OSError):  # it is gone
            termios.tcsetattr(self.input, termios.TCSANOW, attributes)

    def calm(self) -> None:
        """Restore it in the middle of a frame, from any thread, for the last message of a forced exit."""
        self.restore()
        self.say(_CALM)

    def say(self, data: bytes) -> None:
        """Write, as long as the terminal accepts it."""
        view = memoryview(data)
        with contextlib.suppress(OSError):
            while view and select.select([], [self.output], [], _MOMENT)[1]:
                view = view[os.write(self.output, view) :]

    def size(self) -> Size:
        """Its rows and columns, or the usual size if it reports none."""
        try:
            columns, rows = os.get_terminal_size(self.output)
        except OSError:
            return _USUAL
        return Size(rows=rows or _USUAL.rows, columns=columns or _USUAL.columns)
