"""Standard input and output as a terminal device: no echo from the start, and restored at the end.

What is typed before the chat is up is not echoed to the screen, and none of it is discarded. A terminal that was
closed, or that accepts no output, blocks nothing. This module imports little: it is needed before the rest is loaded.
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

__all__ = ["Size", "TerminalDevice"]


_LFLAG: Final = 3
_IFLAG: Final = 0
_WRITE_TIMEOUT: Final = 0.2  # seconds to wait for a terminal to accept output
# Turns off what the chat may have turned on: focus reports, bracketed paste, a hidden cursor, colours.
_RESET: Final = b"\x1b[?1004l\x1b[?2004l\x1b[?25h\x1b[0m\r\n"


class Size(NamedTuple):
    """The size of a terminal."""

    rows: int
    columns: int


_DEFAULT_SIZE: Final = Size(rows=24, columns=80)


class TerminalDevice:
    """Standard input and output as a terminal. Use it in a `with` block."""

    def __init__(self) -> None:
        self.input = sys.stdin.fileno()
        self.output = sys.stdout.fileno()
        self._before = termios.tcgetattr(self.input)

    def __enter__(self) -> Self:
        # No echo, and no line buffering; but Ctrl+C is still a signal, as nothing handles it as a key yet.
        attributes = termios.tcgetattr(self.input)
        attributes[_LFLAG] &= ~(termios.ECHO | termios.ICANON)
        attributes[_IFLAG] &= ~termios.ICRNL
        self._set(attributes)
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

    def reset(self) -> None:
        """Restore it in the middle of a frame, for the last message of a forced exit. From any thread."""
        self.restore()
        self.write(_RESET)

    def write(self, data: bytes) -> None:
        """Write, as long as the terminal accepts it."""
        view = memoryview(data)
        with contextlib.suppress(OSError):
            while view and select.select([], [self.output], [], _WRITE_TIMEOUT)[1]:
                view = view[os.write(self.output, view) :]

    def size(self) -> Size:
        """Its rows and columns, or the default size if it reports none."""
        try:
            columns, rows = os.get_terminal_size(self.output)
        except OSError:
            return _DEFAULT_SIZE
        return Size(rows=rows or _DEFAULT_SIZE.rows, columns=columns or _DEFAULT_SIZE.columns)
