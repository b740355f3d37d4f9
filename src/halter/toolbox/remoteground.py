"""A search on another machine. It lists its files; what is ignored is left out here, and the rest is read from there.

Lines are matched here, by the same rules as in a workspace. If the pattern is a plain text the machine says first which
files have it; else all of them are sent, as archives of some megabytes each.
"""

from __future__ import annotations

import io
import posixpath
import re
import tarfile
from typing import TYPE_CHECKING, Final

from halter.cancel.context import checkpoint
from halter.toolbox.filescript import ARCHIVE, LIST, WITH_TEXT
from halter.toolbox.ground import MOST_FILE, Content
from halter.toolbox.ignore import Ignore
from halter.toolbox.machine import MachineError
from halter.toolbox.matching import is_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from halter.toolbox.matching import Match
    from halter.toolbox.remoteshelf import RemoteShelf
    from halter.toolbox.search import Query

__all__ = ["RemoteGround"]

_MOST_LISTED: Final = 10_000_000  # bytes of names
_MOST_ARCHIVE: Final = 10_000_000  # more than the largest file that is searched
_MOST_FILES: Final = 500  # of one archive
_DENIED: Final = re.compile(r"find: [\"'`]?(?:\./)?(.+?)[\"']?: Permission denied")


class RemoteGround:
    """Files below a directory there, or one file."""

    def __init__(self, shelf: RemoteShelf, path: str) -> None:
        self._shelf = shelf
        self._path = path
        said = shelf.ask(LIST, path, str(MOST_FILE), str(_MOST_LISTED))
        if said.code:
            raise MachineError(said.error or f"{path} could not be searched")
        kind, _, listing = said.output.partition(b"\0")
        self.is_directory = kind == b"directory"
        self.start = "" if posixpath.normpath(path) == "." else posixpath.normpath(path)
        self.skipped = _DENIED.findall(said.error)
        self._prefix = f"{self.start.rstrip('/')}/" if self.start else ""
        if len(said.output) >= _MOST_LISTED:
            self.skipped.append(f"all behind the first {_MOST_LISTED:,} bytes of names")
            listing = listing.rpartition(b"\0")[0] + b"\0"
        names, _, large = listing.partition(b"\0\0") if not listing.startswith(b"\0") else (b"", b"", listing[1:])
        self._large = set(_names(large))
        self._names = sorted([*_names(names), *self._large], key=lambda name: name.split("/"))
        self._rules: dict[str, Ignore | None] = {}  # of each directory; None if it is ignored itself
        self._texts: dict[str, str] = {}

    def names(self) -> Iterator[str]:
        """The paths of all files."""
        for name in self._kept():
            yield self._prefix + name

    def contents(self, query: Query, is_wanted: Callable[[str], bool]) -> Iterator[Content]:
        """All that are wanted, in their order."""
        names = [name for name in self._kept() if is_wanted(self._prefix + name)]
        for at in range(0, len(names), _MOST_FILES):
            yield from self._read(names[at : at + _MOST_FILES], query)

    def only(self) -> bytes:
        """What the one file has."""
        file = self._shelf.open(self._path)
        return file.read(MOST_FILE + 1)

    def found(self, query: Query, is_wanted: Callable[[str], bool]) -> list[Match] | None:  # noqa: ARG002
        """No program there is asked for lines: what it would call a match need not be one here."""
        return None

    # -- what is ignored ----------------------------------------------------------------------------------------------

    def _kept(self) -> Iterator[str]:
        """The names that no .gitignore hides."""
        own = [name for name in self._names if posixpath.basename(name) == ".gitignore"]
        self._texts = {name: data.decode("utf-8", "surrogateescape") for name, data in self._archived(own, self._path)}
        self._rules = {"": self._rules_at("", self._rules_above())}
        for name in self._names:
            checkpoint()
            rules = self._rules_in(posixpath.dirname(name))
            if rules is not None and not rules.hides(self._prefix + name, is_directory=False):
                yield name

    def _rules_above(self) -> Ignore:
        """The rules of the directories between where paths begin and where the search does."""
        ignore = Ignore()
        parts = self.start.split("/") if self.start else []
        if not parts or parts[0] in ("", "..", "~"):
            return ignore
        bases = ["".join(f"{part}/" for part in parts[:count]) for count in range(len(parts))]
        texts = dict(self._archived([f"{base}.gitignore" for base in bases], "."))
        for base in bases:
            ignore = ignore.plus(texts.get(f"{base}.gitignore", b"").decode("utf-8", "surrogateescape"), base)
        return ignore

    def _rules_in(self, directory: str) -> Ignore | None:
        if directory not in self._rules:
            above = self._rules_in(posixpath.dirname(directory))
            is_hidden = above is None or above.hides(self._prefix + directory, is_directory=True)
            self._rules[directory] = None if above is None or is_hidden else self._rules_at(f"{directory}/", above)
        return self._rules[directory]

    def _rules_at(self, directory: str, above: Ignore) -> Ignore:
        return above.plus(self._texts.get(f"{directory}.gitignore", ""), self._prefix + directory)

    # -- what is read -------------------------------------------------------------------------------------------------

    def _with_text(self, names: Sequence[str], query: Query) -> set[str] | None:
        """The files that have a plain text; None if that is not known."""
        if not names or query.ignore_case or not is_plain(query.pattern) or "\ufffd" in query.pattern:
            return None
        said = self._shelf.ask(WITH_TEXT, self._path, query.pattern, data=_list(names))
        if said.code:
            return None
        found = said.output.decode("utf-8", "surrogateescape").split("\n")
        return {name.removeprefix("./") for name in found}

    def _read(self, names: Sequence[str], query: Query) -> Iterator[Content]:
        wanted = [name for name in names if name not in self._large]
        interesting = self._with_text(wanted, query)
        if interesting is not None:
            wanted = [name for name in wanted if name in interesting or not _can_be_listed(name)]
        found = dict(self._archived(wanted, self._path))
        for name in names:
            path = self._prefix + name
            if name in self._large:
                yield Content(path, is_too_large=True)
            elif name in found:
                yield Content(path, found[name])
            else:
                yield Content(path, is_unreadable=name in wanted)

    def _archived(self, names: Sequence[str], where: str) -> Iterator[tuple[str, bytes]]:
        """Give what files have, as far as they can be read. As many archives as it takes."""
        left = [name for name in names if _can_be_listed(name)]
        while left:
            said = self._shelf.ask(ARCHIVE, where, str(_MOST_ARCHIVE), data=_list(left))
            if said.code:
                raise MachineError(said.error or "the files could not be read")
            last = ""
            for name, data in _members(said.output):
                yield name, data
                last = name
            if len(said.output) < _MOST_ARCHIVE:
                return
            left = left[left.index(last) + 1 if last in left else 1 :]


def _names(listing: bytes) -> list[str]:
    texts = listing.decode("utf-8", "surrogateescape").split("\0")
    return [text.removeprefix("./") for text in texts if text]


def _can_be_listed(name: str) -> bool:
    """Whether the machine can be told of it on a line."""
    return "\n" not in name


def _list(names: Sequence[str]) -> bytes:
    return "".join(f"./{name}\n" for name in names).encode("utf-8", "surrogateescape")


def _members(archive: bytes) -> Iterator[tuple[str, bytes]]:
    """The files of an archive, or of several in a row, up to the first that is not whole."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:", encoding="utf-8", ignore_zeros=True) as file:
            for member in file:
                content = file.extractfile(member)
                if content is not None:
                    yield member.name.removeprefix("./"), content.read()
    except (tarfile.TarError, KeyError, EOFError):
        return
