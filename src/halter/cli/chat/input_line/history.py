"""The lines that were typed, over all sessions, for the arrow keys and Ctrl+R. A file that only its owner may read.

If the file cannot be read or written, the history covers this run only.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

import msgspec
from prompt_toolkit.history import History

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["InputHistory"]

_PRIVATE: Final = 0o600
_MAX_BYTES: Final = 500_000  # of the file that are read: its end
_MAX_LINE: Final = 20_000  # characters; a longer text is not kept for other runs


class InputHistory(History):
    """The lines, the newest first. Each is one line of JSON in the file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def load_history_strings(self) -> Iterable[str]:
        """Read the file; lines that cannot be read are left out, and so is what was typed twice in a row."""
        data = b""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            start = max(file.tell() - _MAX_BYTES, 0)
            file.seek(start)
            data = file.read()
            if start:
                data = data.partition(b"\n")[2]
        last = ""
        for line in reversed(data.splitlines()):
            with contextlib.suppress(msgspec.MsgspecError):
                text = msgspec.json.decode(line, type=str)
                if text != last:
                    yield text
                last = text

    def store_string(self, string: str) -> None:
        """Add a line to the file."""
        if len(string) > _MAX_LINE:
            return
        string = string.encode(errors="replace").decode()  # a byte that was not UTF-8 is a lone surrogate
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            file = os.open(self._path, flags, _PRIVATE)
            try:
                os.write(file, msgspec.json.encode(string) + b"\n")
            finally:
                os.close(file)
