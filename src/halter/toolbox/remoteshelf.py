"""Files of another machine: read in pieces, and replaced there, several at once, all of them or none.

Paths begin at the directory where the machine is worked in; others lead wherever that user may go there. What is
replaced is first sent whole, then put in place by the machine itself: a lost connection leaves nothing half done.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Final

from halter.cancel.context import current_token
from halter.cancel.token import Cancelled
from halter.toolbox.diff import PatchError
from halter.toolbox.filescript import LINES, PIECE, REPLACE
from halter.toolbox.machine import MachineError
from halter.toolbox.shelf import Seen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halter.toolbox.machine import Link, Said
    from halter.toolbox.shelf import New

__all__ = ["RemoteFile", "RemoteShelf", "claim"]

_PATIENCE: Final = 60.0
_PIECE: Final = 1 << 18
_NOT_THERE: Final = 2  # as the scripts say it


class RemoteShelf:
    """The files of a machine, through the link of one session. Everything here ends at the current token's stop."""

    def __init__(self, link: Link, directory: str) -> None:
        self._link = link
        self._directory = directory

    def ask(self, script: str, path: str, *args: str, data: bytes = b"") -> Said:
        """Run a script of `filescript.py`."""
        if "\0" in path:
            msg = f"{path!r} cannot be a path: it has a null character"
            raise ValueError(msg)
        given = (self._directory, path, *args)
        return self._link.run(script, *given, token=current_token(), data=data, timeout=_PATIENCE)

    def claim(self, path: str) -> str:
        """The path as it is written, tidied; the machine is not asked where its links lead."""
        return claim(self._directory, path)

    def open(self, path: str) -> RemoteFile:
        """Open an ordinary file for reading."""
        return RemoteFile(self, path)

    def read(self, path: str, most: int) -> Seen | None:
        """Read a file, with a sum that tells whether it has changed."""
        said = self.ask(PIECE, path, "0", str(most), "sum")
        if said.code == _NOT_THERE:
            return None
        if said.code:
            raise PatchError(said.error or f"{path} could not be read")
        size, stamp = said.error.split("\n")[-1].split(" ", 1)
        return Seen(said.output, int(size), stamp)

    def replace(self, files: Sequence[New]) -> str:
        """Have the machine replace all of them."""
        try:
            said = self._replace(files)
        except Cancelled:
            return "[stopped: nothing was changed, or all of it was; look before you go on]"
        if said.code:
            raise PatchError(said.error or "the files could not be replaced")
        return ""

    def write(self, path: str, data: bytes) -> bool:
        """Write one file, whatever is there; True if nothing was."""
        said = self._replace([], ("*", path, data))
        if said.code:
            raise MachineError(said.error or f"{path} could not be written, and is as it was")
        return said.output.strip() == b"made"

    def _replace(self, files: Sequence[New], *others: tuple[str, str, bytes]) -> Said:
        args: list[str] = []
        data = b""
        for stamp, path, content in others:
            args += [path, stamp, str(len(content)), ""]
            data += content
        for file in files:
            stamp = "-" if file.seen is None else str(file.seen.stamp)
            length = "-" if file.data is None else str(len(file.data))
            args += [file.path, stamp, length, "" if file.like is None else file.like[0]]
            data += file.data or b""
        return self.ask(REPLACE, "", str(len(data)), *args, data=data)


class RemoteFile:
    """An ordinary file there. It is read in pieces, each by its own path: one that changes meanwhile shows both."""

    def __init__(self, shelf: RemoteShelf, path: str) -> None:
        self._shelf = shelf
        self._path = path
        self.size = 0
        self._at = 0
        self._piece_at = 0
        self._piece = b""
        self._fetch(_PIECE)

    def _fetch(self, most: int) -> None:
        said = self._shelf.ask(PIECE, self._path, str(self._at), str(most), "")
        if said.code:
            raise MachineError(said.error or f"{self._path} could not be read")
        self.size = int(said.error.split("\n")[-1])
        self._piece, self._piece_at = said.output, self._at

    def seek(self, offset: int) -> None:
        """Go on reading there."""
        self._at = offset

    def read(self, size: int) -> bytes:
        """Up to *size* bytes; none at the end."""
        parts: list[bytes] = []
        while size > 0 and self._at < self.size:
            inside = self._at - self._piece_at
            if not 0 <= inside < len(self._piece):
                self._fetch(_PIECE)
                inside = 0
            part = self._piece[inside : inside + size]
            if not part:  # it has become shorter
                break
            parts.append(part)
            size -= len(part)
            self._at += len(part)
        return b"".join(parts)

    def count(self) -> int:
        """How many lines it has."""
        return self._lines(1)[0]

    def offset(self, line: int) -> int:
        """Where a line begins, or the end of the file."""
        return self._lines(line)[1]

    def _lines(self, line: int) -> tuple[int, int]:
        said = self._shelf.ask(LINES, self._path, str(line))
        if said.code:
            raise MachineError(said.error or f"{self._path} could not be read")
        total, offset = said.output.split()
        return int(total), int(offset)


def claim(directory: str, path: str) -> str:
    """A path as it is written, tidied: the same for the same file, if no links are in the way."""
    return posixpath.normpath(path if path.startswith("~") else posixpath.join(directory, path))
