"""A patch over several files: all of it is done, or nothing.

Every file is read and changed in memory; then the shelf that they are on replaces them all at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from halter.cancel.context import checkpoint
from halter.toolbox.diff import PatchError, parse
from halter.toolbox.hunks import apply_hunks
from halter.toolbox.reading import is_binary
from halter.toolbox.shelf import New

if TYPE_CHECKING:
    from halter.toolbox.diff import Change
    from halter.toolbox.shelf import Seen, Shelf

__all__ = ["apply", "paths_in"]

_MOST: Final = 4_000_000


def paths_in(changes: str, path: str | None = None) -> list[str]:
    """The files that a patch is about; none if it cannot be read."""
    try:
        return [each for change in parse(changes, path) for each in change.paths]
    except PatchError:
        return []


def apply(shelf: Shelf, changes: str, path: str | None = None) -> str:
    """Make all the changes, and say what was done."""
    work = _Work(shelf)
    try:
        for change in parse(changes, path):
            checkpoint()
            work.add(change)
        return work.finish()
    except PatchError as error:
        msg = f"{error}\nNothing was changed."
        raise PatchError(msg) from error.__cause__


@dataclass
class _File:
    """One file of the patch: as it was, and as it shall be."""

    path: str
    seen: Seen | None  # None: it was not there
    text: str | None  # None: it shall not be there
    said: list[str] = field(default_factory=list)
    like: tuple[str, Seen] | None = None  # the file that it was before it moved

    @property
    def is_changed(self) -> bool:
        return self.data != (None if self.seen is None else self.seen.data)

    @property
    def data(self) -> bytes | None:
        return None if self.text is None else self.text.encode("utf-8", "surrogateescape")


class _Work:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
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
            target.like = None if source.seen is None else (source.path, source.seen)
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
        key = self._shelf.claim(path)
        if key not in self._files:
            self._files[key] = self._read(path)
        return self._files[key]

    def _read(self, path: str) -> _File:
        seen = self._shelf.read(path, _MOST + 1)
        if seen is None:
            return _File(path, None, None)
        if len(seen.data) > _MOST:
            msg = f"{path}: it has {seen.size:,} bytes; at most {_MOST:,} can be patched"
            raise PatchError(msg)
        if is_binary(seen.data):
            msg = f"{path}: it is a binary file"
            raise PatchError(msg)
        # Bytes that are not UTF-8 pass through unchanged.
        return _File(path, seen, seen.data.decode("utf-8", "surrogateescape"))

    def finish(self) -> str:
        """Put all of it in place."""
        changed = [file for file in self._files.values() if file.is_changed]
        if not changed:
            return "Nothing to change: the files are like that already."
        try:
            stopped = self._shelf.replace([New(file.path, file.seen, file.data, file.like) for file in changed])
        except OSError as error:
            msg = f"{error.filename or 'a file'}: {error.strerror or error}"
            raise PatchError(msg) from error
        return stopped or "\n".join(f"{file.path}: {', '.join(file.said)}" for file in changed)
