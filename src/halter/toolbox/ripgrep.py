"""`rg` as a finder of places: it says in which line of which file, and we read that line ourselves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from typing import TYPE_CHECKING, Final

from halter.cancel.context import current_token
from halter.cancel.process import run_process
from halter.toolbox.matching import Match

if TYPE_CHECKING:
    from collections.abc import Callable

    from halter.cancel.process import ProcessResult
    from halter.toolbox.search import Query
    from halter.toolbox.tree import Tree
    from halter.toolbox.workspace import Workspace

__all__ = ["NotUnderstood", "Ripgrep"]

_MOST_FILE: Final = 8_000_000
_HIGH: Final = 600
_PLACE: Final = re.compile(rb"(?:\./)?([^\0]+)\0(\d+):")
_OPTIONS: Final = (
    "--no-config",
    "--no-messages",
    "--no-heading",
    "--hidden",
    "--no-require-git",
    "--no-ignore-dot",
    "--no-ignore-exclude",
    "--no-ignore-global",
    "--no-ignore-parent",
    "--glob=!.git",
    "--null",
    "--line-number",
    "--color=never",
    "--sort=path",
    "--max-columns=1",
    f"--max-filesize={_MOST_FILE}",
)
_FAILED: Final = 2  # as it says that it did not understand the expression; 1 is that nothing matches


class NotUnderstood(Exception):
    """`rg` cannot do it; nothing was found yet."""


class Ripgrep:
    """One run of it, in the directory where a tree starts."""

    def __init__(
        self, program: str, workspace: Workspace, query: Query, tree: Tree, is_wanted: Callable[[str], bool]
    ) -> None:
        self._program = program
        self._workspace = workspace
        self._query = query
        self._tree = tree
        self._is_wanted = is_wanted
        self._prefix = f"{tree.start}/" if tree.start else ""
        self._ignore = tree.rules_above()
        self._found: list[Match] = []
        self._rest = b""
        self._file = _Lines("", b"")
        self._enough = current_token().child("rg")

    def run(self) -> list[Match]:
        """Search to the end, or until there is enough, or until the stop; and give what was found by then."""
        result = asyncio.run(self._run())
        if result.returncode is not None and result.returncode >= _FAILED and not self._found:
            raise NotUnderstood
        return self._found

    async def _run(self) -> ProcessResult:
        query = self._query
        argv = [self._program, *_OPTIONS]
        if query.ignore_case:
            argv.append("--ignore-case")
        if query.glob is not None and "/" not in query.glob:
            argv += [f"--type-add=wanted:{query.glob}", "--type=wanted"]  # --glob would bring back what is ignored
        argv += ["--regexp", query.pattern, "."]
        with self._workspace.find(self._tree.start or ".") as place:
            if place.directory is None:
                return await run_process(argv, cwd=place.name, token=self._enough, on_output=self._take)
            descriptor = _raised(place.open_directory())
        try:
            # The very directory that we found, whatever its name leads to by now.
            where = f"/proc/{os.getpid()}/fd/{descriptor}"
            if not os.path.isdir(where):  # noqa: ASYNC240, PTH112  (/proc does not wait; a loop of our own)
                raise NotUnderstood
            return await run_process(argv, cwd=where, token=self._enough, on_output=self._take)
        finally:
            os.close(descriptor)

    def _take(self, piece: bytes) -> None:
        """Take some output. A loop of our own calls it, on the tool's thread."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            place = _PLACE.match(line)
            if place is None:
                continue  # what it says about a binary file
            path = self._prefix + os.fsdecode(place[1])
            if not self._is_wanted(path) or self._ignore.hides_below(path, self._tree.start):
                continue
            self._add(path, int(place[2]))
            if len(self._found) >= self._query.most:
                self._enough.cancel("enough")
                return

    def _add(self, path: str, number: int) -> None:
        """Read the line ourselves. A file that is not there any more has no match."""
        if self._file.path != path:
            try:
                with os.fdopen(self._workspace.open(path), "rb", buffering=0) as file:
                    self._file = _Lines(path, file.read(_MOST_FILE) or b"")
            except OSError:
                self._file = _Lines(path, b"")
        line = self._file.line(number)
        if line is not None:
            self._found.append(Match(path, number, line.decode("utf-8", "replace")))


def _raised(descriptor: int) -> int:
    """Give a descriptor a high number.

    After a stop we close it while a thread may be about to start `rg` where it leads. A low number would be somebody
    else's directory by then; a high one is nobody's, and `rg` does not start.
    """
    import fcntl  # noqa: PLC0415  (there are descriptors of directories only where there is this)

    with contextlib.suppress(OSError):  # no such numbers here
        high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH)
        os.close(descriptor)
        return high
    return descriptor


class _Lines:
    """A file whose lines are asked for from top to bottom."""

    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self._data = data
        self._number = 1
        self._at = 0

    def line(self, number: int) -> bytes | None:
        while self._number < number:
            end = self._data.find(b"\n", self._at)
            if end < 0:
                return None
            self._number, self._at = self._number + 1, end + 1
        end = self._data.find(b"\n", self._at)
        return self._data[self._at : end if end >= 0 else len(self._data)]
