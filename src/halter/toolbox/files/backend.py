"""Where files are: in a workspace on this machine, or on another machine.

A backend replaces several files at once: all of them, or none. In a workspace every new content is first written to a
file without a name, and only when all of them are on disk do they take their places, one rename each. Until then a stop
or an error leaves nothing behind; from then on a stop is too late, and an error undoes what was done. If that
fails too, the error names the files that are new. The death of the process between two of these renames leaves some
files new and some old.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from halter.cancel.context import current_token
from halter.toolbox.files.atomic import Draft, sync_directory, write_whole
from halter.toolbox.files.search.local import LocalSearch

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from halter.toolbox.files.search.search import SearchBackend
    from halter.toolbox.files.text_reader import OpenFile
    from halter.toolbox.files.workspace import Place, Workspace

__all__ = [
    "FileBackend",
    "FileChange",
    "FileSnapshot",
    "LocalBackend",
    "NotReplaced",
    "PartlyReplaced",
    "Replaced",
    "Written",
]


class NotReplaced(Exception):
    """The files could not be replaced; none was changed."""


class PartlyReplaced(Exception):
    """The files could not be replaced, and some were changed and could not be put back."""


class FileSnapshot(NamedTuple):
    """A file as it was read."""

    data: bytes  # up to the requested limit
    size: int
    stamp: Hashable  # tells whether the file has changed since
    mode: int | None = None  # if the backend needs it


class FileChange(NamedTuple):
    """One file to be replaced, created or deleted."""

    path: str
    data: bytes | None  # None: delete it
    before: FileSnapshot | Literal["any"] | None  # what has to be there; None: nothing
    like: tuple[str, FileSnapshot] | None = None  # the file that it is moved from, whose permissions it keeps


class Written(NamedTuple):
    """One file that was replaced."""

    path: str
    is_new: bool


class Replaced(NamedTuple):
    """The result of the changes: the files, or why nothing was changed."""

    files: list[Written]
    stopped: str = ""


class FileBackend(Protocol):
    """Files of one machine."""

    def lock_key(self, path: str) -> str:
        """The same text for the same file, however its path is written."""
        ...

    def open(self, path: str) -> OpenFile:
        """Open a regular file for reading."""
        ...

    def read(self, path: str, limit: int) -> FileSnapshot | None:
        """Up to *limit* bytes of a file; None if there is none."""
        ...

    def replace(self, changes: Sequence[FileChange]) -> Replaced:
        """Make all the changes, or none. Raises NotReplaced or an OSError if none was made, else PartlyReplaced."""
        ...

    def search(self, path: str) -> SearchBackend:
        """The backend for a search below *path*, or in that file."""
        ...


class LocalFile(io.FileIO):
    """An open file of this machine."""

    line_index: Final = None

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "rb")
        self.size = os.fstat(descriptor).st_size


class LocalBackend:
    """The files of a workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def lock_key(self, path: str) -> str:
        """The path that *path* leads to."""
        return self._workspace.lock_key(path)

    def open(self, path: str) -> LocalFile:
        """Open a regular file inside."""
        return LocalFile(self._workspace.open(path))

    def read(self, path: str, limit: int) -> FileSnapshot | None:
        """Read a regular file inside."""
        try:
            file = self.open(path)
        except FileNotFoundError:
            return None
        with file:
            found = os.fstat(file.fileno())
            data = file.read(limit) or b""
            while len(data) < limit and (more := file.read(limit - len(data))):
                data += more
        return FileSnapshot(data, found.st_size, _stamp(found), stat.S_IMODE(found.st_mode))

    def replace(self, changes: Sequence[FileChange]) -> Replaced:
        """Write everything to the disk, then put it in place."""
        replacements = [_Replacement(change) for change in changes]
        with contextlib.ExitStack() as stack:
            try:
                for replacement in replacements:
                    replacement.prepare(self._workspace, stack)
                if current_token().is_cancelled:
                    return Replaced([], "Nothing was changed: the stop came first.")
                _commit(replacements)
            finally:
                for replacement in reversed(replacements):
                    replacement.clean_up()
        return Replaced([Written(replacement.path, replacement.is_new) for replacement in replacements])

    def search(self, path: str) -> LocalSearch:
        """Search below a directory of the workspace."""
        return LocalSearch(self._workspace, path)


def _stamp(found: os.stat_result | None) -> Hashable:
    return None if found is None else (found.st_ino, found.st_mtime_ns, found.st_size)


@dataclass
class _Replacement:
    """One change that is being made."""

    change: FileChange
    path: str = ""
    is_new: bool = False
    place: Place | None = None
    draft: Draft | None = None
    is_done: bool = False

    def prepare(self, workspace: Workspace, stack: contextlib.ExitStack) -> None:
        change, before = self.change, self.change.before
        self.place = stack.enter_context(workspace.find(change.path, make_parents=change.data is not None))
        self.path = self.place.path
        stamp = _stamp(self.place.stat())
        self.is_new = stamp is None
        if before != "any" and stamp != (None if before is None else before.stamp):
            raise NotReplaced(f"{change.path} was changed in the meantime; read it again")
        if change.data is not None:
            self.draft = Draft(self.place, change.data, None if change.like is None else change.like[1].mode)

    def commit(self) -> None:
        assert self.place is not None
        if self.draft is not None:
            self.draft.commit()
        else:
            os.unlink(self.place.name, dir_fd=self.place.directory)
            sync_directory(self.place)
        self.is_done = True

    def undo(self) -> None:
        assert self.place is not None
        before = self.change.before
        assert before != "any"  # such a change comes alone
        if before is None:
            os.unlink(self.place.name, dir_fd=self.place.directory)
        else:
            write_whole(self.place, before.data, before.mode)
        self.is_done = False

    def clean_up(self) -> None:
        if self.draft is not None:
            self.draft.discard()
        if self.place is not None and not self.is_done:
            self.place.undo_parents()


def _commit(replacements: Sequence[_Replacement]) -> None:
    """Put all of them in place; if one fails, undo the others."""
    try:
        for replacement in replacements:
            replacement.commit()
    except BaseException as error:
        for replacement in reversed(replacements):
            if replacement.is_done:
                with contextlib.suppress(OSError, ValueError):  # it is named below
                    replacement.undo()
        if changed := [replacement.path for replacement in replacements if replacement.is_done]:
            paths = ", ".join(changed)
            raise PartlyReplaced(f"{error}\nThese files were changed and could not be put back: {paths}") from error
        raise
