"""A patch over several files: all of it is done, or nothing.

Every file is read and changed in memory, then every new content is written out under no name, and only when all are on
disk do they take their places, one rename each. Until then a stop or an error leaves nothing; from then on a stop comes
too late, and an error takes back what was done. The death of the process between two of these renames is the one thing
that leaves some files new and some old.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from halter.cancel.context import checkpoint, current_token
from halter.toolbox.atomic import Draft, sync_directory, write_whole
from halter.toolbox.diff import PatchError, parse
from halter.toolbox.hunks import apply_hunks
from halter.toolbox.reading import is_binary

if TYPE_CHECKING:
    from halter.toolbox.diff import Change
    from halter.toolbox.workspace import Place, Workspace

__all__ = ["apply", "paths_in"]

_MOST: Final = 4_000_000


def paths_in(changes: str, path: str | None = None) -> list[str]:
    """The files that a patch is about; none if it cannot be read."""
    try:
        return [each for change in parse(changes, path) for each in change.paths]
    except PatchError:
        return []


def apply(workspace: Workspace, changes: str, path: str | None = None) -> str:
    """Make all the changes, and say what was done."""
    work = _Work(workspace)
    for change in parse(changes, path):
        checkpoint()
        work.add(change)
    return work.finish()


@dataclass
class _File:
    """One file of the patch: as it was, and as it shall be."""

    path: str
    seen: os.stat_result | None  # None: it was not there
    old: bytes
    text: str | None  # None: it shall not be there
    said: list[str] = field(default_factory=list)
    mode: int | None = None  # of the file that it was before it moved
    place: Place | None = None
    draft: Draft | None = None
    is_done: bool = False

    @property
    def is_changed(self) -> bool:
        return (self.text is None) != (self.seen is None) or (self.text is not None and self.data != self.old)

    @property
    def data(self) -> bytes:
        return (self.text or "").encode("utf-8", "surrogateescape")


class _Work:
    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._files: dict[str, _File] = {}

    def add(self, change: Change) -> None:
        """Make one change, in memory."""
        if change.old is None:
            self._add_new(change)
            return
        source = self._file(change.old)
        if source.text is None:
            msg = f"{change.old}: there is no such file"
            raise PatchError(msg)
        done = apply_hunks(source.text, change.hunks, change.old)
        notes = "".join(f"; {note}" for note in done.notes)
        said = f"+{done.added} -{done.removed}{notes}"
        if change.new is None:
            if done.text:
                msg = f"{change.old}: it is to be deleted, but the diff does not name all of its lines"
                raise PatchError(msg)
            source.text = None
            source.said.append("deleted")
            return
        target = self._file(change.new)
        if target is not source:
            self._check_free(target)
            source.text = None
            target.mode = None if source.seen is None else stat.S_IMODE(source.seen.st_mode)
            source.said.append(f"moved to {change.new}")
        target.text = done.text
        target.said.append(said)

    def _add_new(self, change: Change) -> None:
        assert change.new is not None
        target = self._file(change.new)
        self._check_free(target)
        target.text = apply_hunks("", change.hunks, change.new).text
        target.said.append("made")

    def _check_free(self, file: _File) -> None:
        if file.text:
            msg = f"{file.path}: it is to be made, but is there already; change it, or delete it first"
            raise PatchError(msg)

    def _file(self, path: str) -> _File:
        key = self._workspace.claim(path)
        if key not in self._files:
            self._files[key] = self._read(path)
        return self._files[key]

    def _read(self, path: str) -> _File:
        try:
            descriptor = self._workspace.open(path)
        except FileNotFoundError:
            return _File(path, None, b"", None)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            seen = os.fstat(file.fileno())
            data = file.read(_MOST + 1) or b""
            while len(data) <= _MOST and (more := file.read(_MOST)):
                data += more
        if len(data) > _MOST:
            msg = f"{path}: it has {seen.st_size:,} bytes; at most {_MOST:,} can be patched"
            raise PatchError(msg)
        if is_binary(data):
            msg = f"{path}: it is a binary file"
            raise PatchError(msg)
        # Bytes that are not UTF-8 pass through unchanged.
        return _File(path, seen, data, data.decode("utf-8", "surrogateescape"))

    def finish(self) -> str:
        """Write everything out, and then put it in place."""
        changed = [file for file in self._files.values() if file.is_changed]
        if not changed:
            return "Nothing to change: the files are like that already."
        with contextlib.ExitStack() as stack:
            try:
                for file in changed:
                    self._prepare(file, stack)
                if not current_token().is_cancelled:
                    _commit(changed)
                    return "\n".join(f"{file.path}: {', '.join(file.said)}" for file in changed)
            except OSError as error:
                msg = f"{error.filename or 'a file'}: {error.strerror or error}"
                raise PatchError(msg) from error
            finally:
                for file in reversed(changed):
                    _tidy(file)
        return "Nothing was changed: the stop came first."

    def _prepare(self, file: _File, stack: contextlib.ExitStack) -> None:
        file.place = stack.enter_context(self._workspace.find(file.path, make_parents=file.text is not None))
        if not _is_same(file.seen, file.place.stat()):
            msg = f"{file.path}: somebody else has changed it meanwhile; read it again"
            raise PatchError(msg)
        if file.text is not None:
            file.draft = Draft(file.place, file.data, file.mode)


def _commit(files: list[_File]) -> None:
    """Put all in place; if one cannot be, take back the others."""
    try:
        for file in files:
            assert file.place is not None
            if file.draft is not None:
                file.draft.commit()
            else:
                os.unlink(file.place.name, dir_fd=file.place.directory)
                sync_directory(file.place)
            file.is_done = True
    except BaseException:
        for file in reversed(files):
            if file.is_done:
                _take_back(file)
        raise


def _take_back(file: _File) -> None:
    assert file.place is not None
    file.is_done = False
    if file.seen is None:
        os.unlink(file.place.name, dir_fd=file.place.directory)
    else:
        write_whole(file.place, file.old, stat.S_IMODE(file.seen.st_mode))


def _tidy(file: _File) -> None:
    if file.draft is not None:
        file.draft.discard()
    if file.place is not None and not file.is_done:
        file.place.undo_parents()


def _is_same(one: os.stat_result | None, other: os.stat_result | None) -> bool:
    if one is None or other is None:
        return one is other
    return (one.st_ino, one.st_mtime_ns, one.st_size) == (other.st_ino, other.st_mtime_ns, other.st_size)
