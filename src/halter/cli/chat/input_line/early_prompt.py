"""The input line while the chat is still being imported: it shows what is typed, and does nothing with it.

The imports take most of the start. They run in the main thread, which handles signals; this line has a thread of its
own, and imports next to nothing. Every key is kept and goes to the chat once that is up, as if it was typed then: so a
message that is sent at once neither gets lost nor runs without its tools.
"""

from __future__ import annotations

import codecs
import os
import re
import select
import threading
import unicodedata
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from halter.cli.chat.screen.terminal import TerminalDevice

__all__ = ["EarlyPrompt", "visible_lines"]

_READ_SIZE: Final = 65_536  # bytes
_PROMPT: Final = "> "
_JOIN_TIMEOUT: Final = 1.0  # seconds: the thread may wait for a terminal that accepts no output
_CHARACTER_TIMEOUT: Final = 0.05  # seconds for the remaining bytes of a character
_PASTE_IN_BRACKETS: Final = "\x1b[?2004h"
_PASTE_PLAIN: Final = "\x1b[?2004l"
# In two steps: if all of the screen is erased in one, tmux first copies it to what can be scrolled back to.
_ERASE: Final = "\r\x1b[C\x1b[J\r\x1b[K"
_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|[^\[O]|\[?$)", re.DOTALL)


def visible_lines(typed: str) -> list[str]:
    """The lines that these keys make; the last one is still being typed."""
    lines = [""]
    for key in _SEQUENCE.sub("", typed):
        if key in "\r\n":
            lines.append("")
        elif key in "\x7f\b":
            lines[-1] = lines[-1][:-1]
        elif key.isprintable():
            lines[-1] += key
    return lines


class EarlyPrompt:
    """The line, in a `with` block; `take()` returns what was typed."""

    def __init__(self, terminal: TerminalDevice) -> None:
        self._terminal = terminal
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._typed = ""
        self._lock = threading.Lock()  # around what is written
        self._is_shown = False
        self._wake_reader, self._wake_writer = os.pipe()
        self._thread = threading.Thread(target=self._read, name="halter-chat-early", daemon=True)

    def __enter__(self) -> Self:
        self._is_shown = True
        self._terminal.write(_PASTE_IN_BRACKETS.encode())
        self._draw()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        for line in filter(str.strip, visible_lines(self.take())):
            self._terminal.write(f"Not sent: {line}\r\n".encode(errors="replace"))

    def stop(self) -> None:
        """Stop reading, and erase the line."""
        if self._wake_writer >= 0:
            wake_writer, self._wake_writer = self._wake_writer, -1
            os.close(wake_writer)
            self._thread.join(_JOIN_TIMEOUT)
            self.erase()

    def take(self) -> str:
        """Take all keys that were typed. What nobody takes is shown at the end of the block."""
        typed, self._typed = self._typed, ""
        return typed

    def erase(self) -> None:
        """Erase the line, and draw it no more. From any thread."""
        with self._lock:
            if self._is_shown:
                self._is_shown = False
                self._terminal.write(f"{_ERASE}{_PASTE_PLAIN}".encode())

    def _read(self) -> None:
        """Read keys until `stop()`; then only the remaining bytes of a character, if there are any."""
        keys = self._terminal.input
        while self._wake_reader not in select.select([keys, self._wake_reader], [], [])[0] and self._read_keys():
            pass
        while self._decoder.getstate()[0] and select.select([keys], [], [], _CHARACTER_TIMEOUT)[0]:
            if not self._read_keys():
                break
        os.close(self._wake_reader)

    def _read_keys(self) -> bool:
        """Read the keys that are available; False if the terminal was closed."""
        try:
            piece = os.read(self._terminal.input, _READ_SIZE)
        except OSError:
            piece = b""
        self._typed += self._decoder.decode(piece)
        self._draw()
        return bool(piece)

    def _draw(self) -> None:
        """Draw the input line, and the state below it; the cursor stays behind the text."""
        *sent, line = visible_lines(self._typed)
        waiting = sum(bool(each.strip()) for each in sent)
        state = f"  starting · {waiting} to be sent" if waiting else "  starting"
        columns = self._terminal.size().columns
        shown = _PROMPT + _last_columns(line, columns - len(_PROMPT) - 1)
        with self._lock:
            if self._is_shown:
                self._terminal.write(f"{_ERASE}\n\r{state[: columns - 1]}\x1b[A\r{shown}".encode(errors="replace"))


def _last_columns(text: str, columns: int) -> str:
    """The end of a text, as far as it fits."""
    width = 0
    for number, each in enumerate(reversed(text)):
        width += 2 if unicodedata.east_asian_width(each) in "WF" else 1
        if width > columns:
            return text[len(text) - number :]
    return text
