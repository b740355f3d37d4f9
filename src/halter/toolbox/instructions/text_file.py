"""Reads the beginning of a text file in a workspace. A problem is one line, never more."""

from __future__ import annotations

import codecs
import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from halter.toolbox.files.workspace import Workspace

__all__ = ["TextFile", "UnreadableFile", "one_line", "read_text"]


class UnreadableFile(Exception):
    """A file cannot be read. The text is one line that says why."""


class TextFile(NamedTuple):
    """The text of a file, or its beginning."""

    text: str
    size: int  # of the whole file, in bytes
    is_cut: bool

    def shown(self) -> str:
        """The text, with a last line about what is missing."""
        if not self.is_cut:
            return self.text.strip()
        return f"{self.text.strip()}\n[The rest of this file, which has {self.size:,} bytes, is left out.]"


def one_line(error: OSError) -> str:
    """What went wrong, without the path, which the caller names."""
    return " ".join((error.strerror or str(error)).split())


def read_text(workspace: Workspace, path: str, limit: int) -> TextFile | None:
    """Read at most *limit* bytes of a file; None if there is no such file. Raises `UnreadableFile`.

    No link that leads out of *workspace* is followed, and no pipe or device is opened.
    """
    try:
        with os.fdopen(workspace.open(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read(limit + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadableFile(one_line(error)) from error
    is_cut = len(data) > limit
    try:
        # A cut may be in the middle of a character, whose first bytes the decoder then drops.
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(data[:limit], final=not is_cut)
    except UnicodeDecodeError as error:
        raise UnreadableFile("it is not UTF-8") from error
    return TextFile(text, max(size, len(data)), is_cut)
