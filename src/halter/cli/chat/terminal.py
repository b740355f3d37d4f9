"""The terminal: no echo from the start, written to in whole frames, and restored at the end.

What is typed before the chat is up is not echoed into its picture and waits in the terminal, whole: nothing is flushed.
A terminal that is gone, or that takes nothing, holds nobody up.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
from typing import TYPE_CHECKING, Final

from prompt_toolkit.data_structures import Size
from prompt_toolkit.output.vt100 import Vt100_Output

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

__all__ = ["BufferedOutput", "Terminal"]

_LFLAG: Final = 3
_IFLAG: Final = 0
_MOMENT: Final = 0.2  # seconds to wait for a terminal to accept output
_USUAL: Final = Size(rows=24, columns=80)
# Out of what the chat may have switched on: pasting in brackets off, cursor shown, no colour.
_CALM: Final = b"\x1b[?2004l\x1b[?25h\x1b[0m\r\n"


class Terminal:
    """Standard input and output as a terminal. Use it in a `with` block."""

    def __init__(self) -> None:
        self._input = sys.stdin.fileno()
        self.output = sys.stdout.fileno()
        self._before = termios.tcgetattr(self._input)

    def __enter__(self) -> Self:
        # No echo, and no line buffering; but Ctrl+C is still a signal, as nothing handles it as a key yet.
        quiet = termios.tcgetattr(self._input)
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
            termios.tcsetattr(self._input, termios.TCSANOW, attributes)

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


class BufferedOutput(Vt100_Output):
    """Output that is collected while `is_held` is set, and then written in one piece."""

    def __init__(self, terminal: Terminal, on_gone: Callable[[], object]) -> None:
        super().__init__(sys.stdout, terminal.size, term=os.environ.get("TERM"), enable_cpr=False)
        self.is_held = False
        self._file = terminal.output
        self._on_gone = on_gone
        self._is_gone = False

    def flush(self) -> None:
        """Write what was collected; not through Python's own buffer, which would try again at exit."""
        if self.is_held or not self._buffer:
            return
        data, self._buffer = "".join(self._buffer).encode(self.encoding(), "replace"), []
        view = memoryview(data)
        try:
            while view and not self._is_gone:
                view = view[os.write(self._file, view) :]
        except OSError:
            self._is_gone = True
            self._on_gone()
