"""What other code prints while the chat is open: tools, warnings, tracebacks of threads.

On the screen it would be overdrawn, so it is shown line by line above the live area instead.
"""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["capture_output"]


class _CapturedOutput(io.TextIOBase):
    """A file that passes on what is written to it, line by line. Any thread may write."""

    def __init__(self, on_line: Callable[[str], object]) -> None:
        super().__init__()
        self._on_line = on_line
        self._rest = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        whole, line_end, rest = (self._rest + text).rpartition("\n")
        self._rest = rest
        if line_end:
            self._on_line(whole)
        return len(text)

    def flush_rest(self) -> None:
        """Pass on an unfinished last line."""
        rest, self._rest = self._rest, ""
        if rest:
            self._on_line(rest)


@contextlib.contextmanager
def capture_output(on_line: Callable[[str], object]) -> Iterator[None]:
    """Call *on_line* with what is printed in this block, on either stream."""
    out, err = _CapturedOutput(on_line), _CapturedOutput(on_line)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            yield
        finally:
            out.flush_rest()
            err.flush_rest()
