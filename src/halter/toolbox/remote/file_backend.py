"""Files of another machine: read in pieces, and replaced there, several at once, all of them or none.

Paths are relative to the machine's working directory, or lead wherever that user may go. New content is first sent
completely, then put in place by the machine itself: a lost connection leaves nothing half done.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Final

from halter.cancel.context import current_token
from halter.cancel.token import Cancelled
from halter.toolbox.files.backend import FileSnapshot, NotReplaced, Replaced, Written
from halter.toolbox.remote.file_scripts import LINES, PIECE, REPLACE
from halter.toolbox.remote.machine import MachineError
from halter.toolbox.remote.search import RemoteSearch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halter.toolbox.files.backend import FileChange
    from halter.toolbox.remote.machine import MachineConnection, ScriptResult

__all__ = ["RemoteBackend", "RemoteFile", "normalized"]

_TIMEOUT: Final = 60.0  # seconds
_PIECE: Final = 1 << 18  # bytes
_NOT_FOUND: Final = 2  # exit code of the scripts


class RemoteBackend:
    """The files of a machine, through the connection of one session. Every call ends at the current token's stop."""

    def __init__(self, connection: MachineConnection, directory: str) -> None:
        self._connection = connection
        self._directory = directory

    def run(self, script: str, path: str, *args: str, data: bytes = b"") -> ScriptResult:
        """Run a script of `file_scripts.py`."""
        if "\0" in path:
            raise ValueError(f"{path!r} is not a valid path: it contains a null character")
        given = (self._directory, path, *args)
        return self._connection.run(script, *given, token=current_token(), data=data, timeout=_TIMEOUT)

    def lock_key(self, path: str) -> str:
        """The normalized path; links on the machine are not resolved."""
        return normalized(self._directory, path)

    def open(self, path: str) -> RemoteFile:
        """Open a regular file for reading."""
        return RemoteFile(self, path)

    def read(self, path: str, limit: int) -> FileSnapshot | None:
        """Read a file, with a checksum that tells whether it has changed."""
        result = self.run(PIECE, path, "0", str(limit), "sum")
        if result.code == _NOT_FOUND:
            return None
        if result.code:
            raise NotReplaced(result.error or f"cannot read {path}")
        size, stamp = result.error.split("\n")[-1].split(" ", 1)
        return FileSnapshot(result.output, int(size), stamp)

    def replace(self, changes: Sequence[FileChange]) -> Replaced:
        """Make all the changes on the machine."""
        args: list[str] = []
        data = b""
        for change in changes:
            before = change.before
            stamp = "*" if before == "any" else "-" if before is None else str(before.stamp)
            length = "-" if change.data is None else str(len(change.data))
            args += [change.path, stamp, length, "" if change.like is None else change.like[0]]
            data += change.data or b""
        try:
            result = self.run(REPLACE, "", str(len(data)), *args, data=data)
        except Cancelled:
            return Replaced([], "[stopped: either nothing was changed or everything was; check before you continue]")
        if result.code:
            raise NotReplaced(result.error or "the files could not be replaced")
        made = [line == b"made" for line in result.output.split()]
        return Replaced([Written(change.path, is_new) for change, is_new in zip(changes, made, strict=True)])

    def search(self, path: str) -> RemoteSearch:
        """Search below a directory of the machine."""
        return RemoteSearch(self, path)


class RemoteFile:
    """A regular file there. It is read in pieces, each by its path: one that changes meanwhile shows both contents."""

    def __init__(self, backend: RemoteBackend, path: str) -> None:
        self._backend = backend
        self._path = path
        self.size = 0
        self._at = 0
        self._piece_at = 0
        self._piece = b""
        self._fetch()

    def close(self) -> None:
        """Nothing is kept open there."""

    @property
    def line_index(self) -> RemoteFile:
        return self

    def _fetch(self) -> None:
        result = self._backend.run(PIECE, self._path, str(self._at), str(_PIECE), "")
        if result.code:
            raise MachineError(result.error or f"cannot read {self._path}")
        self.size = int(result.error.split("\n")[-1])
        self._piece, self._piece_at = result.output, self._at

    def seek(self, offset: int) -> None:
        """Continue reading there."""
        self._at = offset

    def read(self, size: int) -> bytes:
        """Up to *size* bytes; none at the end."""
        parts: list[bytes] = []
        while size > 0 and self._at < self.size:
            inside = self._at - self._piece_at
            if not 0 <= inside < len(self._piece):
                self._fetch()
                inside = 0
            part = self._piece[inside : inside + size]
            if not part:  # it has become shorter
                break
            parts.append(part)
            size -= len(part)
            self._at += len(part)
        return b"".join(parts)

    def count(self) -> int:
        """The number of lines."""
        return self._lines(1)[0]

    def offset(self, line: int) -> int:
        """Where a line begins, or the end of the file."""
        return self._lines(line)[1]

    def _lines(self, line: int) -> tuple[int, int]:
        result = self._backend.run(LINES, self._path, str(line))
        if result.code:
            raise MachineError(result.error or f"cannot read {self._path}")
        total, offset = result.output.split()
        return int(total), int(offset)


def normalized(directory: str, path: str) -> str:
    """The same text for the same file, if there are no links on the way."""
    return posixpath.normpath(path if path.startswith("~") else posixpath.join(directory, path))
