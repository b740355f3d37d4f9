"""A patch over several files: all of it is done, or nothing.

Every file is read and changed in memory; then the backend replaces them all at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from halter.cancel.context import checkpoint
from halter.toolbox.files.backend import FileChange, NotReplaced
from halter.toolbox.files.diff import diff_text
from halter.toolbox.files.patch.hunks import apply_hunks
from halter.toolbox.files.patch.parser import PatchError, parse
from halter.toolbox.files.text_reader import is_binary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halter.toolbox.files.backend import FileBackend, FileSnapshot
    from halter.toolbox.files.patch.parser import Change

__all__ = ["apply_patch", "paths_in"]

_MAX_SIZE: Final = 4_000_000


def paths_in(changes: str, path: str | None = None) -> list[str]:
    """The files that a patch is about; none if it cannot be read."""
    try:
        return [each for change in parse(changes, path) for each in change.paths]
    except PatchError:
        return []


def apply_patch(
    backend: FileBackend, changes: str, path: str | None = None, report: Callable[[str], object] = lambda _diff: None
) -> str:
    """Make all the changes, and say what was done; *report* is called with the diff of it."""
    work = _Work(backend, report)
    try:
        for change in parse(changes, path):
            checkpoint()
            work.add(change)
        return work.finish()
    except PatchError as error:
        raise PatchError(f"{error}\nNothing was changed.") from error.__cause__


@dataclass
class _File:
    """One file of the patch: as it was, and as it shall be."""

    path: str
    seen: FileSnapshot | None  # None: it was not there
    text: str | None  # None: it shall not be there
    said: list[str] = field(default_factory=list)
    like: tuple[str, FileSnapshot] | None = None  # the file that it was before it moved

    @property
    def is_changed(self) -> bool:
        return self.data != (None if self.seen is None else self.seen.data)

    @property
    def data(self) -> bytes | None:
        return None if self.text is None else self.text.encode("utf-8", "surrogateescape")


class _Work:
    def __init__(self, backend: FileBackend, report: Callable[[str], object]) -> None:
        self._backend = backend
        self._report = report
        self._files: dict[str, _File] = {}

    def add(self, change: Change) -> None:
        """Make one change, in memory."""
        if change.old is None:
            self._add_new(change)
            return
        source = self._file(change.old)
        if source.text is None:
            raise PatchError(f"{change.old}: no such file")
        done = apply_hunks(source.text, change.hunks, change.old)
        notes = "".join(f"; {note}" for note in done.notes)
        said = f"+{done.added} -{done.removed}{notes}"
        if change.new is None:
            if done.text:
                raise PatchError(f"{change.old}: the diff deletes it but does not contain all of its lines")
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
        target.said.append("created")

    def _check_free(self, file: _File) -> None:
        if file.text:
            raise PatchError(f"{file.path}: the patch creates it, but it already exists; change it, or delete it first")

    def _file(self, path: str) -> _File:
        key = self._backend.lock_key(path)
        if key not in self._files:
            self._files[key] = self._read(path)
        return self._files[key]

    def _read(self, path: str) -> _File:
        seen = self._backend.read(path, _MAX_SIZE + 1)
        if seen is None:
            return _File(path, None, None)
        if len(seen.data) > _MAX_SIZE:
            raise PatchError(f"{path}: it has {seen.size:,} bytes; the limit for patches is {_MAX_SIZE:,}")
        if is_binary(seen.data):
            raise PatchError(f"{path}: binary file")
        # Bytes that are not UTF-8 pass through unchanged.
        return _File(path, seen, seen.data.decode("utf-8", "surrogateescape"))

    def finish(self) -> str:
        """Put all of it in place."""
        changed = [file for file in self._files.values() if file.is_changed]
        if not changed:
            return "Nothing to change: the files already have this content."
        try:
            result = self._backend.replace([FileChange(file.path, file.data, file.seen, file.like) for file in changed])
        except NotReplaced as error:
            raise PatchError(str(error)) from error
        except OSError as error:
            raise PatchError(f"{error.filename or 'a file'}: {error.strerror or error}") from error
        if result.stopped:
            return result.stopped
        self._report("".join(self._diffs(changed)))
        return "\n".join(f"{file.path}: {', '.join(file.said)}" for file in changed)

    @staticmethod
    def _diffs(changed: list[_File]) -> Iterator[str]:
        moved = {file.like[0] for file in changed if file.like is not None}
        for file in changed:
            if file.text is None and file.path in moved:
                continue
            source, seen = file.like or ("", file.seen)
            yield diff_text(file.path, None if seen is None else seen.data, file.data, source)
