"""A search on another machine.

The machine lists its files; the ignored ones are left out here, and the content of the others is sent here, as archives
of some megabytes each, and searched as in a workspace. If the pattern is plain text, the machine first selects the
files that contain it.
"""

from __future__ import annotations

import io
import posixpath
import re
import tarfile
from typing import TYPE_CHECKING, Final

from halter.toolbox.files.search.gitignore import Ignore
from halter.toolbox.files.search.search import MAX_FILE, matches_in
from halter.toolbox.files.text_reader import is_binary
from halter.toolbox.remote.file_scripts import ARCHIVE, LIST, WITH_TEXT
from halter.toolbox.remote.machine import MachineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from halter.toolbox.files.search.search import Match, Query
    from halter.toolbox.remote.file_backend import RemoteBackend

__all__ = ["RemoteSearch"]

_MAX_LISTING: Final = 10_000_000  # bytes of names
_MAX_ARCHIVE: Final = 10_000_000  # more than the largest file that is searched
_MAX_FILES: Final = 500  # of one archive
_DENIED: Final = re.compile(r"find: [\"'`]?(?:\./)?(.+?)[\"']?: Permission denied")
_SPECIAL: Final = frozenset(r"\.^$*+?{}[]|()")


class RemoteSearch:
    """The files below a directory there, or one file."""

    def __init__(self, backend: RemoteBackend, path: str) -> None:
        self._backend = backend
        self._path = path
        result = backend.run(LIST, path, str(MAX_FILE), str(_MAX_LISTING))
        if result.code:
            raise MachineError(result.error or f"cannot search {path}")
        kind, _, listing = result.output.partition(b"\0")
        self.is_directory = kind == b"directory"
        self.start = "" if posixpath.normpath(path) == "." else posixpath.normpath(path)
        self.notes: list[str] = []
        if denied := _DENIED.findall(result.error):
            self.notes.append(f"directories that could not be read: {', '.join(denied[:5])}")
        if len(result.output) >= _MAX_LISTING:
            self.notes.append(f"only files in the first {_MAX_LISTING:,} bytes of names were searched")
            listing = listing.rpartition(b"\0")[0] + b"\0"
        self._prefix = f"{self.start.rstrip('/')}/" if self.start else ""
        names, _, large = listing.partition(b"\0\0") if not listing.startswith(b"\0") else (b"", b"", listing[1:])
        self._large = set(_names(large))
        self._names = sorted([*_names(names), *self._large], key=lambda name: name.split("/"))
        self._rules: dict[str, Ignore | None] = {}  # of each directory; None if it is ignored itself
        self._texts: dict[str, str] = {}

    def content(self) -> bytes:
        """The content of the one file."""
        return self._backend.open(self._path).read(MAX_FILE + 1)

    def names(self, is_wanted: Callable[[str], bool]) -> Iterator[str]:
        """The paths of all wanted files."""
        return (path for name in self._kept() if is_wanted(path := self._prefix + name))

    def matches(self, query: Query, is_wanted: Callable[[str], bool]) -> Iterator[list[Match]]:
        """The matching lines, archive by archive."""
        names = [name for name in self._kept() if is_wanted(self._prefix + name)]
        large = [name for name in names if name in self._large]
        names = [name for name in names if name not in self._large]
        if large:
            self.notes.append(f"{len(large):,} files not searched: larger than {MAX_FILE:,} bytes")
        unread = 0
        for at in range(0, len(names), _MAX_FILES):
            wanted = self._with_text(names[at : at + _MAX_FILES], query)
            files = [(self._prefix + name, data) for name, data in self._archived(wanted, self._path)]
            unread += len(wanted) - len(files)
            yield matches_in([(path, data) for path, data in files if not is_binary(data)], query)
        if unread:
            self.notes.append(f"{unread:,} files not searched: could not be read")

    # -- what is ignored ----------------------------------------------------------------------------------------------

    def _kept(self) -> Iterator[str]:
        """The names that no .gitignore hides."""
        own = [name for name in self._names if posixpath.basename(name) == ".gitignore"]
        self._texts = {name: data.decode("utf-8", "surrogateescape") for name, data in self._archived(own, self._path)}
        self._rules = {"": self._rules_at("", self._rules_above())}
        for name in self._names:
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

    def _with_text(self, names: Sequence[str], query: Query) -> list[str]:
        """The files that may contain the pattern."""
        if query.ignore_case or set(query.pattern) & _SPECIAL or "\ufffd" in query.pattern:
            return list(names)
        result = self._backend.run(WITH_TEXT, self._path, query.pattern, data=_list(names))
        if result.code:
            return list(names)
        found = {name.removeprefix("./") for name in result.output.decode("utf-8", "surrogateescape").split("\n")}
        return [name for name in names if name in found or not _can_be_listed(name)]

    def _archived(self, names: Sequence[str], where: str) -> Iterator[tuple[str, bytes]]:
        """The content of files, as far as they can be read, from as many archives as needed."""
        left = [name for name in names if _can_be_listed(name)]
        while left:
            result = self._backend.run(ARCHIVE, where, str(_MAX_ARCHIVE), data=_list(left))
            if result.code:
                raise MachineError(result.error or "the files could not be read")
            last = ""
            for name, data in _members(result.output):
                yield name, data
                last = name
            if len(result.output) < _MAX_ARCHIVE:
                return
            left = left[left.index(last) + 1 if last in left else 1 :]


def _names(listing: bytes) -> list[str]:
    texts = listing.decode("utf-8", "surrogateescape").split("\0")
    return [text.removeprefix("./") for text in texts if text]


def _can_be_listed(name: str) -> bool:
    """Whether the name can be sent on one line."""
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
