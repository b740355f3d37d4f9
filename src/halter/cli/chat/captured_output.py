"""Output that other code prints while the chat is open: tools, warnings, tracebacks of threads.

It would be drawn over on the screen, so it is shown line by line above the live area instead.
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

    def __init__(self, say: Callable[[str], object]) -> None:
        super().__init__()
        self._say = say
        self._rest = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        whole, line_end, rest = (self._rest + text).rpartition("\n")
        self._rest = rest
        if line_end:
            self._say(whole)
        return len(text)

    def say_rest(self) -> None:
        """Pass on an unfinished last line."""
        rest, self._rest = self._rest, ""
        if rest:
            self._say(rest)


@contextlib.contextmanager
def capture_output(say: Callable[[str], object]) -> Iterator[None]:
    """Call *say* with what is printed in this block, on either stream."""
    out, err = _CapturedOutput(say), _CapturedOutput(say)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            yield
        finally:
            out.say_rest()
            err.say_rest()
