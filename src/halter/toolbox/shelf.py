"""Where the files are that a patch is about: in a workspace here, or on another machine.

A shelf replaces several files at once: all of them, or none. In a workspace every new content is written out under no
name first, and only when all are on disk do they take their places, one rename each. Until then a stop or an error
leaves nothing; from then on a stop comes too late, and an error takes back what was done. The death of the process
between two of these renames is the one thing that leaves some files new and some old.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from halter.cancel.context import current_token
from halter.toolbox.atomic import Draft, sync_directory, write_whole
from halter.toolbox.diff import PatchError

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from halter.toolbox.workspace import Place, Workspace

__all__ = ["New", "Seen", "Shelf", "WorkspaceShelf"]


class Seen(NamedTuple):
    """A file as it was read."""

    data: bytes  # not more than was asked for
    size: int
    stamp: Hashable  # tells whether it has changed since
    mode: int | None = None  # if the shelf needs to know


class New(NamedTuple):
    """A file as it shall be."""

    path: str
    seen: Seen | None  # as it was; None: it was not there
    data: bytes | None  # None: it shall not be there
    like: tuple[str, Seen] | None = None  # the file that it was before it moved: whose rights it keeps


class Shelf(Protocol):
    """Where files are."""

    def claim(self, path: str) -> str:
        """The same text for the same file, however it is spelled."""
        ...

    def read(self, path: str, most: int) -> Seen | None:
        """Up to *most* bytes of a file; None if there is none."""
        ...

    def replace(self, files: Sequence[New]) -> str:
        """Make all of them as they shall be, or none; then why. Raises PatchError or an OSError, with nothing done."""
        ...


class WorkspaceShelf:
    """The files of a workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def claim(self, path: str) -> str:
        """What a call on that file has to have for itself."""
        return self._workspace.claim(path)

    def read(self, path: str, most: int) -> Seen | None:
        """Read a regular file inside."""
        try:
            descriptor = self._workspace.open(path)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            found = os.fstat(file.fileno())
            data = file.read(most) or b""
            while len(data) < most and (more := file.read(most - len(data))):
                data += more
        return Seen(data, found.st_size, _stamp(found), stat.S_IMODE(found.st_mode))

    def replace(self, files: Sequence[New]) -> str:
        """Write everything out, and then put it in place."""
        works = [_Work(file) for file in files]
        with contextlib.ExitStack() as stack:
            try:
                for work in works:
                    work.prepare(self._workspace, stack)
                if current_token().is_cancelled:
                    return "Nothing was changed: the stop came first."
                _commit(works)
            finally:
                for work in reversed(works):
                    work.tidy()
        return ""


def _stamp(found: os.stat_result | None) -> Hashable:
    return None if found is None else (found.st_ino, found.st_mtime_ns, found.st_size)


@dataclass
class _Work:
    """One file on its way to its place."""

    file: New
    place: Place | None = None
    draft: Draft | None = None
    is_done: bool = False

    def prepare(self, workspace: Workspace, stack: contextlib.ExitStack) -> None:
        file = self.file
        self.place = stack.enter_context(workspace.find(file.path, make_parents=file.data is not None))
        if _stamp(self.place.stat()) != (None if file.seen is None else file.seen.stamp):
            msg = f"{file.path}: somebody else has changed it meanwhile; read it again"
            raise PatchError(msg)
        if file.data is not None:
            self.draft = Draft(self.place, file.data, None if file.like is None else file.like[1].mode)

    def commit(self) -> None:
        assert self.place is not None
        if self.draft is not None:
            self.draft.commit()
        else:
            os.unlink(self.place.name, dir_fd=self.place.directory)
            sync_directory(self.place)
        self.is_done = True

    def take_back(self) -> None:
        assert self.place is not None
        self.is_done = False
        if self.file.seen is None:
            os.unlink(self.place.name, dir_fd=self.place.directory)
        else:
            write_whole(self.place, self.file.seen.data, self.file.seen.mode)

    def tidy(self) -> None:
        if self.draft is not None:
            self.draft.discard()
        if self.place is not None and not self.is_done:
            self.place.undo_parents()


def _commit(works: Sequence[_Work]) -> None:
    """Put all in place; if one cannot be, take back the others."""
    try:
        for work in works:
            work.commit()
    except BaseException:
        for work in reversed(works):
            if work.is_done:
                work.take_back()
        raise
