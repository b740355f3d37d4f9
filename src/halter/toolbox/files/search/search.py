"""A search for lines or for file names, in a workspace or on another machine.

Lines are matched by `rg`, wherever the files are. What is shown of a file in a workspace is read through the workspace,
so nothing from outside is shown, whatever happens to a link while `rg` runs. Links are not followed.

Matches are returned as they are found; a stop keeps those found so far.
"""

from __future__ import annotations

import bisect
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from halter.cancel.context import checkpoint, current_token
from halter.toolbox.files.search import ripgrep
from halter.toolbox.files.search.globs import compile_glob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["MAX_FILE", "Match", "Query", "SearchBackend", "matches_in", "search"]

MAX_FILE: Final = 8_000_000  # bytes of a file that has to be held in memory to be searched
_MAX_LINE: Final = 300  # characters of a line that are shown


class Match(NamedTuple):
    """One line of one file."""

    path: str
    number: int
    line: str

    def __str__(self) -> str:
        line = self.line.strip()
        cut = f"{line[:_MAX_LINE]} [...]" if len(line) > _MAX_LINE else line
        return f"{self.path}:{self.number}: {cut}"


@dataclass(frozen=True)
class Query:
    """What is searched for."""

    pattern: str
    glob: str | None = None
    kind: Literal["content", "name"] = "content"
    ignore_case: bool = False
    limit: int = 200

    def __post_init__(self) -> None:
        """Refuse a query that cannot be answered."""
        if not self.pattern:
            raise ValueError("the pattern is empty")


class SearchBackend(Protocol):
    """The files below one directory, or one file. Ignored files are left out."""

    @property
    def start(self) -> str:
        """The directory or the file, as paths begin with it; "" for the working directory."""
        ...

    @property
    def is_directory(self) -> bool: ...

    @property
    def notes(self) -> list[str]:
        """What was not searched, and why."""
        ...

    def names(self, is_wanted: Callable[[str], bool]) -> Iterator[str]:
        """The paths of all wanted files, in order."""
        ...

    def content(self) -> bytes:
        """The content of the one file, up to one byte more than MAX_FILE."""
        ...

    def matches(self, query: Query, is_wanted: Callable[[str], bool]) -> Iterator[list[Match]]:
        """The matching lines of all wanted files, in order, some at a time; not many more than the limit."""
        ...


def search(backend: SearchBackend, query: Query) -> Iterator[str]:
    """Search; yields the matches as text, and at the end notes."""
    found = 0
    names = query.kind == "name"
    for block in _blocks(backend, query):
        found += len(block)
        if block:
            yield "\n".join(block)
        if found >= query.limit:
            break
    checkpoint()  # "no match" is true only of a search that was not stopped
    notes = list(backend.notes)
    if found >= query.limit:
        notes.insert(0, f"the first {found:,} {'files' if names else 'matches'}; there may be more: narrow the search")
    elif not found:
        notes.insert(0, "no file name matches" if names else "no line matches")
    if notes:
        yield f"[{'; '.join(notes)}]"


def _blocks(backend: SearchBackend, query: Query) -> Iterator[list[str]]:
    left = query.limit
    is_wanted = _filter(backend.start, query)
    if not backend.is_directory:
        yield [str(match) for match in _matches_in_file(backend, query)]
    elif query.kind == "name":
        names: list[str] = []  # in one list: after a stop there is no second one
        for name in backend.names(is_wanted):
            names.append(name)
            if len(names) >= left or current_token().is_cancelled:
                break
        yield names
    else:
        for block in backend.matches(query, is_wanted):
            yield [str(match) for match in block[:left]]
            left -= len(block)


def _filter(start: str, query: Query) -> Callable[[str], bool]:
    """Whether a path matches the globs of the query; they are relative to where the search starts."""
    globs = [] if query.glob is None else [compile_glob(query.glob)]
    if query.kind == "name":
        globs.append(compile_glob(query.pattern, ignore_case=query.ignore_case))
    prefix = len(start) + 1 if start else 0
    return lambda path: all(glob.match(path[prefix:]) for glob in globs)


def _matches_in_file(backend: SearchBackend, query: Query) -> list[Match]:
    data = backend.content()
    if len(data) > MAX_FILE:
        raise ValueError(f"{backend.start} is larger than {MAX_FILE:,} bytes; search its directory instead")
    return matches_in([(backend.start, data)], query)


def matches_in(files: list[tuple[str, bytes]], query: Query) -> list[Match]:
    """The matching lines of these files, as many as the query wants."""
    parts = [data if data.endswith(b"\n") else data + b"\n" for _, data in files]
    joined = b"".join(parts)
    ends = list(itertools.accumulate(len(part) for part in parts))
    lines_before = list(itertools.accumulate((part.count(b"\n") for part in parts), initial=0))
    found: list[Match] = []
    for number, offset in ripgrep.lines_in(joined, query):
        at = bisect.bisect_right(ends, offset)  # the file that has this line
        line = joined[offset : joined.find(b"\n", offset)]
        found.append(Match(files[at][0], number - lines_before[at], line.decode("utf-8", "replace")))
    return found
