"""What others print while the chat is on the screen: tools of the user's, warnings, tracebacks of threads.

Written where the picture is, it would be drawn over. Line by line it is said above the picture instead.
"""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["caught"]


class _Stray(io.TextIOBase):
    """A file that hands over what is written to it, as lines; from any thread."""

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
        """Hand over what has not ended in a line."""
        rest, self._rest = self._rest, ""
        if rest:
            self._say(rest)


@contextlib.contextmanager
def caught(say: Callable[[str], object]) -> Iterator[None]:
    """Have *say* called with what is printed in this block, on either stream."""
    out, err = _Stray(say), _Stray(say)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            yield
        finally:
            out.say_rest()
            err.say_rest()
