"""A search in a workspace: `rg` finds the places, and lines are read through the workspace's descriptors."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING, Final

from halter.cancel.context import current_token
from halter.toolbox.files.search import ripgrep
from halter.toolbox.files.search.gitignore import Ignore
from halter.toolbox.files.search.search import MAX_FILE, Match

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halter.toolbox.files.search.search import Query
    from halter.toolbox.files.workspace import Workspace

_MAX_RULES: Final = 100_000  # bytes of one .gitignore
_MAX_SHOWN: Final = 4_000  # bytes of a line
_HIGH_DESCRIPTOR: Final = 600


class LocalSearch:
    """The files below one directory of a workspace, or one file."""

    def __init__(self, workspace: Workspace, path: str) -> None:
        self._workspace = workspace
        with workspace.find(path) as place:
            found = place.stat()
            self.start = "" if place.path == "." else place.path
        if found is None:
            raise FileNotFoundError(f"no such file or directory: {path}")
        self.is_directory = stat.S_ISDIR(found.st_mode)
        self.notes: list[str] = []
        self._prefix = f"{self.start}/" if self.start else ""

    def content(self) -> bytes:
        """Read the one file."""
        with os.fdopen(self._workspace.open(self.start), "rb") as file:
            return file.read(MAX_FILE + 1)

    def names(self, is_wanted: Callable[[str], bool]) -> Iterator[str]:
        """List all files that are wanted. Each is checked: one that is outside by now is left out."""
        found: list[str] = []
        is_kept = self._filter(is_wanted)

        def add(name: str) -> None:
            if is_kept(self._prefix + name):
                found.append(self._prefix + name)

        with self._directory() as directory:
            self._note(is_complete=ripgrep.files_below(directory, add))
        for path in found:
            if self._is_file(path):
                yield path

    def matches(self, query: Query, is_wanted: Callable[[str], bool]) -> Iterator[list[Match]]:
        """Yield all matches in one list: after a stop there is no second one."""
        found: list[Match] = []
        is_kept = self._filter(is_wanted)
        enough = current_token().child("rg")
        with contextlib.closing(_MatchedLineReader(self._workspace)) as reader, self._directory() as directory:

            def add(name: str, number: int, offset: int) -> None:
                path = self._prefix + name
                line = reader.line(path, offset) if is_kept(path) else None
                if line is not None:
                    found.append(Match(path, number, line))
                    if len(found) >= query.limit:
                        enough.cancel("enough")

            self._note(is_complete=ripgrep.lines_below(directory, query, add, enough))
        yield found

    def _note(self, *, is_complete: bool) -> None:
        if not is_complete:
            self.notes.append("some files or directories could not be read")

    def _is_file(self, path: str) -> bool:
        with contextlib.suppress(OSError), self._workspace.find(path) as place:
            found = place.stat()
            return found is not None and stat.S_ISREG(found.st_mode)
        return False

    @contextlib.contextmanager
    def _directory(self) -> Iterator[str]:
        """A path to the directory that was found, to start a process in, even if its name leads elsewhere by now."""
        with self._workspace.find(self.start or ".") as place:
            if place.directory is None:
                yield place.name
                return
            descriptor = _with_high_number(place.open_directory())
        try:
            # Of the child that changes to it: other processes may not look into ours (`PR_SET_DUMPABLE`).
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)

    def _filter(self, is_wanted: Callable[[str], bool]) -> Callable[[str], bool]:
        """Whether a path is wanted, and not ignored by a directory above the start. `rg` applies the rules below."""
        ignore = Ignore()
        parts = self.start.split("/") if self.start else []
        for count in range(len(parts)):
            base = "".join(f"{part}/" for part in parts[:count])
            with contextlib.suppress(OSError), os.fdopen(self._workspace.open(f"{base}.gitignore"), "rb") as file:
                ignore = ignore.plus(file.read(_MAX_RULES).decode("utf-8", "surrogateescape"), base)
        return lambda path: is_wanted(path) and not ignore.hides_below(path, self.start)


def _with_high_number(descriptor: int) -> int:
    """Duplicate a descriptor to a high number.

    After a stop it is closed while a thread may be about to start `rg` in its directory. A low number could be reused
    for another directory by then; a high one is not, and `rg` does not start.
    """
    import fcntl

    with contextlib.suppress(OSError):  # there are no such numbers here
        high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH_DESCRIPTOR)
        os.close(descriptor)
        return high
    return descriptor


class _MatchedLineReader:
    """Reads lines of files, many of one file after another."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._path = ""
        self._descriptor = -1

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def line(self, path: str, offset: int) -> str | None:
        """The line that begins there, as much as can be shown; None if the file was removed or changed."""
        if path != self._path:
            self.close()
            self._path = path
            with contextlib.suppress(OSError):
                self._descriptor = self._workspace.open(path)
        if self._descriptor < 0:
            return None
        start = max(offset - 1, 0)
        data = os.pread(self._descriptor, _MAX_SHOWN + 1, start)
        if offset and not data.startswith(b"\n"):
            return None
        return data[offset - start :].partition(b"\n")[0].decode("utf-8", "replace")
