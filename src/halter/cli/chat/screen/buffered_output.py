"""The output of prompt_toolkit, written in whole frames."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from prompt_toolkit.data_structures import Size
from prompt_toolkit.output.vt100 import Vt100_Output

from halter.cli.output import write_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from halter.cli.chat.screen.terminal import TerminalDevice

__all__ = ["BufferedOutput"]


class BufferedOutput(Vt100_Output):
    """Output that is collected while `is_held` is set, and then written in one piece."""

    def __init__(self, terminal: TerminalDevice, on_closed: Callable[[], object]) -> None:
        super().__init__(sys.stdout, lambda: Size(*terminal.size()), term=os.environ.get("TERM"), enable_cpr=False)
        self.is_held = False
        self._file = terminal.output
        self._on_closed = on_closed
        self._is_closed = False

    def erase_down(self) -> None:
        """Erase from the beginning of this row down.

        In two steps: if all of the screen is erased in one, tmux first copies it to what can be scrolled back to.
        """
        self.write_raw("\x1b[C\x1b[J\r\x1b[K")

    def flush(self) -> None:
        """Write what was collected; not through Python's own buffer, which would try again at exit."""
        if self.is_held or not self._buffer:
            return
        data, self._buffer = "".join(self._buffer).encode(self.encoding(), "replace"), []
        if self._is_closed:
            return
        try:
            write_all(self._file, data)
        except OSError:
            self._is_closed = True
            self._on_closed()
