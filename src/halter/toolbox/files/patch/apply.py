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

_MAX_SIZE: Final = 4_000_000  # bytes


def paths_in(changes: str, path: str | None = None) -> list[str]:
    """The files that a patch is about; none if it cannot be read."""
    try:
        return [each for change in parse(changes, path) for each in change.paths]
    except PatchError:
        return []


def apply_patch(
    backend: FileBackend, changes: str, path: str | None = None, report: Callable[[str], object] = lambda _diff: None
) -> str:
    """Make all the changes, and return a summary; *report* is called with the diff."""
    run = _PatchRun(backend, report)
    try:
        for change in parse(changes, path):
            checkpoint()
            run.add(change)
        return run.finish()
    except PatchError as error:
        raise PatchError(f"{error}\nNothing was changed.") from error.__cause__


@dataclass
class _PatchedFile:
    """One file of the patch: as it was, and as it will be."""

    path: str
    before: FileSnapshot | None  # None: it did not exist
    text: str | None  # None: it is deleted
    notes: list[str] = field(default_factory=list)
    like: tuple[str, FileSnapshot] | None = None  # the file that it was before it moved

    @property
    def is_changed(self) -> bool:
        return self.data != (None if self.before is None else self.before.data)

    @property
    def data(self) -> bytes | None:
        return None if self.text is None else self.text.encode("utf-8", "surrogateescape")


class _PatchRun:
    def __init__(self, backend: FileBackend, report: Callable[[str], object]) -> None:
        self._backend = backend
        self._report = report
        self._files: dict[str, _PatchedFile] = {}

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
        counts = f"+{done.added} -{done.removed}{notes}"
        if change.new is None:
            if done.text:
                raise PatchError(f"{change.old}: the diff deletes it but does not contain all of its lines")
            source.text = None
            source.notes.append("deleted")
            return
        target = self._file(change.new)
        if target is not source:
            self._check_free(target)
            source.text = None
            target.like = None if source.before is None else (source.path, source.before)
            source.notes.append(f"moved to {change.new}")
        target.text = done.text
        target.notes.append(counts)

    def _add_new(self, change: Change) -> None:
        assert change.new is not None
        target = self._file(change.new)
        self._check_free(target)
        target.text = apply_hunks("", change.hunks, change.new).text
        target.notes.append("created")

    def _check_free(self, file: _PatchedFile) -> None:
        if file.text:
            raise PatchError(f"{file.path}: the patch creates it, but it already exists; change it, or delete it first")

    def _file(self, path: str) -> _PatchedFile:
        key = self._backend.lock_key(path)
        if key not in self._files:
            self._files[key] = self._read(path)
        return self._files[key]

    def _read(self, path: str) -> _PatchedFile:
        before = self._backend.read(path, _MAX_SIZE + 1)
        if before is None:
            return _PatchedFile(path, None, None)
        if len(before.data) > _MAX_SIZE:
            raise PatchError(f"{path}: it has {before.size:,} bytes; the limit for patches is {_MAX_SIZE:,}")
        if is_binary(before.data):
            raise PatchError(f"{path}: binary file")
        # Bytes that are not UTF-8 pass through unchanged.
        return _PatchedFile(path, before, before.data.decode("utf-8", "surrogateescape"))

    def finish(self) -> str:
        """Put all of it in place."""
        changed = [file for file in self._files.values() if file.is_changed]
        if not changed:
            return "Nothing to change: the files already have this content."
        try:
            result = self._backend.replace(
                [FileChange(file.path, file.data, file.before, file.like) for file in changed]
            )
        except NotReplaced as error:
            raise PatchError(str(error)) from error
        except OSError as error:
            raise PatchError(f"{error.filename or 'a file'}: {error.strerror or error}") from error
        if result.stopped:
            return result.stopped
        self._report("".join(self._diffs(changed)))
        return "\n".join(f"{file.path}: {', '.join(file.notes)}" for file in changed)

    @staticmethod
    def _diffs(changed: list[_PatchedFile]) -> Iterator[str]:
        moved = {file.like[0] for file in changed if file.like is not None}
        for file in changed:
            if file.text is None and file.path in moved:
                continue
            source, before = file.like or ("", file.before)
            yield diff_text(file.path, None if before is None else before.data, file.data, source)
