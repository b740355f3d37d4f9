"""Where a search is made: below a directory of a workspace, or on another machine.

In a workspace no link is followed, and whatever is read is read through the workspace's own descriptors.
"""

from __future__ import annotations

import os
import shutil
import stat
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from halter.toolbox.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halter.toolbox.matching import Match
    from halter.toolbox.search import Query
    from halter.toolbox.workspace import Workspace

__all__ = ["MOST_FILE", "Content", "Ground", "WorkspaceGround"]

MOST_FILE: Final = 8_000_000  # bytes of a file that is searched


class Content(NamedTuple):
    """A file, and what is in it; empty if it is known that nothing of interest is."""

    path: str
    data: bytes = b""
    is_too_large: bool = False
    is_unreadable: bool = False


class Ground(Protocol):
    """Files below one directory, or one file. What is ignored is left out."""

    @property
    def start(self) -> str:
        """The directory or the file, as paths begin with it; "" for where paths begin."""
        ...

    @property
    def is_directory(self) -> bool: ...

    @property
    def skipped(self) -> list[str]:
        """Directories that could not be listed."""
        ...

    def names(self) -> Iterator[str]:
        """The paths of all files, in order."""
        ...

    def contents(self, query: Query, is_wanted: Callable[[str], bool]) -> Iterator[Content]:
        """All files that are wanted, in order."""
        ...

    def only(self) -> bytes:
        """What the one file has; one byte more than is searched, if it has more."""
        ...

    def found(self, query: Query, is_wanted: Callable[[str], bool]) -> list[Match] | None:
        """What a program that is made for it finds; None if there is none, or if it cannot do it."""
        ...


class WorkspaceGround:
    """Files of a workspace."""

    def __init__(self, workspace: Workspace, path: str) -> None:
        self._workspace = workspace
        with workspace.find(path) as place:
            found = place.stat()
            self.start = "" if place.path == "." else place.path
        if found is None:
            msg = f"there is no {path!r} to search in"
            raise FileNotFoundError(msg)
        self.is_directory = stat.S_ISDIR(found.st_mode)
        self._tree = Tree(workspace, self.start)

    @property
    def skipped(self) -> list[str]:
        return self._tree.skipped

    def names(self) -> Iterator[str]:
        """Walk through all of it."""
        for file in self._tree.files():
            yield file.path

    def contents(self, query: Query, is_wanted: Callable[[str], bool]) -> Iterator[Content]:  # noqa: ARG002
        """Walk, and read each file while its directory is open."""
        for file in self._tree.files():
            if not is_wanted(file.path):
                continue
            try:
                data = file.read(MOST_FILE)
            except OSError:
                yield Content(file.path, is_unreadable=True)
            else:
                yield Content(file.path, data or b"", is_too_large=data is None)

    def only(self) -> bytes:
        """Read the file."""
        with os.fdopen(self._workspace.open(self.start), "rb", buffering=0) as file:
            return file.read(MOST_FILE + 1) or b""

    def found(self, query: Query, is_wanted: Callable[[str], bool]) -> list[Match] | None:
        """What `rg` finds, if it is there and understands the expression."""
        program = shutil.which("rg")
        if program is None:
            return None
        from halter.toolbox.ripgrep import NotUnderstood, Ripgrep  # noqa: PLC0415  (it needs asyncio)

        try:
            return Ripgrep(program, self._workspace, query, self._tree, is_wanted).run()
        except NotUnderstood:
            return None  # an expression of Python's own
