"""The files of a workspace, directory by directory, through descriptors.

No link is followed, and what is ignored is left out.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

from halter.cancel.context import checkpoint
from halter.toolbox.ignore import Ignore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halter.toolbox.workspace import Place, Workspace

__all__ = ["FoundFile", "Tree"]

_MOST_DEPTH: Final = 100
_LISTED: Final = 1_000  # entries between two looks at the token
_MOST_RULES: Final = 100_000  # bytes of one .gitignore
_READ: Final = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_LIST: Final = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_DIRECTORY", 0)


class _Directory:
    """An open directory: a descriptor, or where there are none, a path."""

    def __init__(self, handle: int | str) -> None:
        self._handle = handle

    def entries(self) -> list[os.DirEntry[str]]:
        found: list[os.DirEntry[str]] = []
        with os.scandir(self._handle) as entries:
            for entry in entries:
                if len(found) % _LISTED == 0:
                    checkpoint()
                found.append(entry)
        return sorted(found, key=lambda entry: entry.name)

    def open(self, name: str, flags: int) -> int:
        if isinstance(self._handle, int):
            return os.open(name, flags, dir_fd=self._handle)
        return os.open(os.path.join(self._handle, name), flags)  # noqa: PTH118  (a name is joined, nothing is resolved)

    def below(self, name: str) -> _Directory:
        if isinstance(self._handle, int):
            return _Directory(self.open(name, _LIST))
        return _Directory(os.path.join(self._handle, name))  # noqa: PTH118  (as above)

    def close(self) -> None:
        if isinstance(self._handle, int):
            os.close(self._handle)


class FoundFile:
    """A regular file that was listed. It can be opened only while the tree has not gone on."""

    def __init__(self, path: str, name: str, directory: _Directory) -> None:
        self.path = path
        self._name = name
        self._directory = directory

    def read(self, most: int) -> bytes | None:
        """All of it; None if it has more than *most* bytes."""
        descriptor = self._directory.open(self._name, _READ)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            if os.fstat(descriptor).st_size > most:
                return None
            data = file.read(most + 1) or b""
            return None if len(data) > most else data


class Tree:
    """A walk over the files below one directory of a workspace, in order of their names."""

    def __init__(self, workspace: Workspace, path: str) -> None:
        self._workspace = workspace
        self.start = path  # as it was found, from the root: "" for the root itself
        self.skipped: list[str] = []  # directories that could not be listed

    def rules_above(self) -> Ignore:
        """The rules of the directories above the start."""
        ignore = Ignore()
        parts = self.start.split("/") if self.start else []
        for count in range(len(parts)):
            base = "/".join(parts[:count])
            with (
                contextlib.suppress(OSError),
                self._workspace.find(f"{base}/.gitignore" if base else ".gitignore") as place,
            ):
                ignore = ignore.plus(_rules(place.open()), f"{base}/" if base else "")
        return ignore

    def files(self) -> Iterator[FoundFile]:
        """Every file that is not ignored."""
        with self._workspace.find(self.start or ".") as place:
            top = _opened(place)
        try:
            yield from self._below(top, f"{self.start}/" if self.start else "", self.rules_above(), 0)
        finally:
            top.close()

    def _below(self, directory: _Directory, prefix: str, ignore: Ignore, depth: int) -> Iterator[FoundFile]:
        entries = directory.entries()
        if any(entry.name == ".gitignore" for entry in entries):
            with contextlib.suppress(OSError):
                ignore = ignore.plus(_rules(directory.open(".gitignore", _READ)), prefix)
        for entry in entries:
            checkpoint()
            path = prefix + entry.name
            if entry.is_file(follow_symlinks=False):
                if not ignore.hides(path, is_directory=False):
                    yield FoundFile(path, entry.name, directory)
            elif (
                entry.is_dir(follow_symlinks=False)
                and entry.name != ".git"
                and not ignore.hides(path, is_directory=True)
            ):
                yield from self._inside(directory, entry.name, path, ignore, depth + 1)

    def _inside(self, above: _Directory, name: str, path: str, ignore: Ignore, depth: int) -> Iterator[FoundFile]:
        directory: _Directory | None = None
        if depth <= _MOST_DEPTH:
            with contextlib.suppress(OSError):
                directory = above.below(name)
        if directory is None:
            self.skipped.append(path)
            return
        try:
            yield from self._below(directory, f"{path}/", ignore, depth)
        except PermissionError:
            self.skipped.append(path)
        finally:
            directory.close()


def _opened(place: Place) -> _Directory:
    return _Directory(place.name) if place.directory is None else _Directory(place.open_directory())


def _rules(descriptor: int) -> str:
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        return (file.read(_MOST_RULES) or b"").decode("utf-8", "surrogateescape")
