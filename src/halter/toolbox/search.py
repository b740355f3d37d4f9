"""A search through files, of a workspace or of another machine: for names, or for lines by a regular expression.

`rg` is used when it is there: it finds places. What is shown of a place is read by us, through the workspace, so
nothing from outside of it can be shown, whatever happens to a link while `rg` reads. Otherwise, and for expressions
that `rg` does not know, Python searches; an expression that could take for ever is matched in a process that can be
killed. Links are not followed.

Matches are given as they are found; a stop keeps those that there are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from halter.cancel.context import checkpoint
from halter.toolbox.ground import MOST_FILE
from halter.toolbox.ignore import compile_glob
from halter.toolbox.matching import Match, is_plain, match_files
from halter.toolbox.reading import is_binary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halter.toolbox.ground import Ground

__all__ = ["Query", "search"]

_MOST_LINE: Final = 300  # characters of a line that is shown
_BATCH_FILES: Final = 64
_BATCH_BYTES: Final = 512_000
_NEWS: Final = 1_000  # files between two reports


@dataclass(frozen=True)
class Query:
    """What is searched for, and where."""

    pattern: str
    path: str = "."
    glob: str | None = None
    kind: Literal["content", "name"] = "content"
    ignore_case: bool = False
    most: int = 200

    def __post_init__(self) -> None:
        """Refuse what cannot be searched for."""
        if not self.pattern:
            msg = "the pattern is empty"
            raise ValueError(msg)
        if self.kind == "content":
            try:
                re.compile(self.pattern)
            except re.error as error:
                cure = "to find it as it is, put a \\ before special characters"
                msg = f"{self.pattern!r} is no regular expression: {error}; {cure}"
                raise ValueError(msg) from error


def search(ground: Ground, query: Query, report: Callable[[str], object]) -> Iterator[str]:
    """Search, and give the matches as lines of text, and at the end what there is to say about them."""
    run = _Search(ground, query, report)
    if not ground.is_directory:
        yield from run.one_file()
    elif query.kind == "name":
        yield from run.names()
    else:
        yield from run.content()


class _Search:
    def __init__(self, ground: Ground, query: Query, report: Callable[[str], object]) -> None:
        self._ground = ground
        self._start = ground.start
        self._query = query
        self._report = report
        self._glob = None if query.glob is None else compile_glob(query.glob)
        self._found = 0
        self._searched = 0
        self._too_large: list[str] = []
        self._unreadable: list[str] = []

    # -- what is searched -----------------------------------------------------------------------

    def names(self) -> Iterator[str]:
        wanted = compile_glob(self._query.pattern, ignore_case=self._query.ignore_case)
        prefix = len(self._start) + 1 if self._start else 0
        for path in self._ground.names():
            self._count()
            if wanted.match(path[prefix:]) and self._is_wanted(path):
                self._found += 1
                yield path
                if self._is_full:
                    break
        yield from self._summary("files", "No file has such a name")

    def one_file(self) -> Iterator[str]:
        data = self._ground.only()
        if len(data) > MOST_FILE:
            msg = f"{self._start} is larger than {MOST_FILE:,} bytes, and is not searched"
            raise ValueError(msg)
        self._count()
        yield from self._matched([(self._start, data)])
        yield from self._summary("matches", "No line matches")

    def content(self) -> Iterator[str]:
        found = self._ground.found(self._query, self._is_wanted)
        if found is not None:
            self._found = len(found)
            if found:  # in one piece: after a stop there is no second one
                yield "\n".join(_shown(match) for match in found)
            checkpoint()  # "no line matches" is for a search that was made
            yield from self._summary("matches", "No line matches", counted=False)
            return
        for batch in self._batches():
            yield from self._matched(batch)
            if self._is_full:
                break
        yield from self._summary("matches", "No line matches")

    def _batches(self) -> Iterator[list[tuple[str, bytes]]]:
        batch: list[tuple[str, bytes]] = []
        size = 0
        for file in self._ground.contents(self._query, self._is_wanted):
            self._count()
            if file.is_unreadable:
                self._unreadable.append(file.path)
            elif file.is_too_large:
                self._too_large.append(file.path)
            elif not is_binary(file.data):
                batch.append((file.path, file.data))
                size += len(file.data)
            if len(batch) >= _BATCH_FILES or size >= _BATCH_BYTES:
                yield batch
                batch, size = [], 0
        yield batch

    def _matched(self, batch: list[tuple[str, bytes]]) -> Iterator[str]:
        query = self._query
        left = query.most - self._found
        if not batch:
            return
        if is_plain(query.pattern):
            found = match_files(query.pattern, batch, left, ignore_case=query.ignore_case)
        else:
            from halter.cancel.isolate import run_isolated  # noqa: PLC0415  (a process, only if it is needed)

            found = run_isolated(match_files, query.pattern, batch, left, ignore_case=query.ignore_case)
        self._found += len(found)
        if found:
            yield "\n".join(_shown(match) for match in found)

    # -- what is told ---------------------------------------------------------------------------

    def _is_wanted(self, path: str) -> bool:
        prefix = len(self._start) + 1 if self._start else 0
        return self._glob is None or self._glob.match(path[prefix:]) is not None

    @property
    def _is_full(self) -> bool:
        return self._found >= self._query.most

    def _count(self) -> None:
        self._searched += 1
        if self._searched % _NEWS == 0:
            self._report(f"{self._searched:,} files searched, {self._found:,} found")

    def _summary(self, what: str, nothing: str, *, counted: bool = True) -> Iterator[str]:
        notes = []
        if self._is_full:
            notes.append(f"the first {self._found:,} {what}; there may be more: narrow the search")
        elif not self._found:
            notes.append(nothing + (f"; {self._searched:,} files searched" if counted else ""))
        for count, why in (
            (len(self._too_large), f"larger than {MOST_FILE:,} bytes"),
            (len(self._unreadable), "could not be read"),
        ):
            if count:
                notes.append(f"{count:,} files not searched: {why}")
        if self._ground.skipped:
            notes.append(f"directories not searched: {', '.join(self._ground.skipped[:5])}")
        if notes:
            yield f"[{'; '.join(notes)}]"


def _shown(match: Match) -> str:
    line = match.line.strip()
    cut = f"{line[:_MOST_LINE]} [...]" if len(line) > _MOST_LINE else line
    return f"{match.path}:{match.number}: {cut}"
