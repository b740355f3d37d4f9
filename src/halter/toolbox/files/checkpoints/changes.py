"""Files in checkpoints: an entry is a kind and the hash of a content, a change is two entries of one path."""

from __future__ import annotations

import difflib
import hashlib
import os
import stat
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halter.toolbox.files.workspace import Place

__all__ = [
    "FILE",
    "LINK",
    "PROGRAM",
    "Content",
    "Entry",
    "TurnChange",
    "blob_id",
    "content_at",
    "display_path",
    "entry_at",
    "text_diff",
]

# The kinds of entries, as Git writes them. Of a file's permissions only the executable bit is kept.
FILE: Final = "100644"
PROGRAM: Final = "100755"
LINK: Final = "120000"
_MAX_LINES: Final = 2_000  # of one file in a diff: comparing takes quadratic time
_NOT_TEXT: Final = b"\0"


class Entry(NamedTuple):
    """The content of a path: a file, a program or a link."""

    kind: str
    blob: str  # the hash of the content, as Git computes it; empty if the content was not kept


class TurnChange(NamedTuple):
    """One path before a turn and at its end. None: there was nothing, or nothing that checkpoints keep."""

    path: str  # below the workspace, as `os.fsdecode` returns it
    before: Entry | None
    after: Entry | None

    @property
    def name(self) -> Literal["created", "changed", "deleted"]:
        """What the turn did."""
        if self.before is None:
            return "created"
        return "deleted" if self.after is None else "changed"


def blob_id(data: bytes) -> str:
    """The hash of a content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


class Content(NamedTuple):
    """The full content of a path."""

    kind: str
    data: bytes  # of a link, where it leads

    @property
    def entry(self) -> Entry:
        """Its kind and the hash of its data."""
        return Entry(self.kind, blob_id(self.data))


def content_at(place: Place, max_size: int) -> Content | Literal["other"] | None:
    """What is at a place; "other" for what checkpoints do not keep: directories, pipes, large and unreadable files."""
    found = place.stat()
    if found is None:
        return None
    if stat.S_ISLNK(found.st_mode):
        return Content(LINK, os.fsencode(os.readlink(place.name, dir_fd=place.directory)))
    if not stat.S_ISREG(found.st_mode) or found.st_size > max_size:
        return "other"
    try:
        with os.fdopen(place.open(), "rb") as file:
            data = file.read(max_size + 1)
    except OSError:
        return "other"
    return Content(PROGRAM if found.st_mode & stat.S_IXUSR else FILE, data)


def entry_at(place: Place, max_size: int) -> Entry | Literal["other"] | None:
    """The entry of what is at a place, as `content_at()` reads it."""
    found = content_at(place, max_size)
    return found.entry if isinstance(found, Content) else found


def display_path(path: str) -> str:
    """A path for people and for JSON, whatever its bytes are."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def text_diff(change: TurnChange, before: bytes, after: bytes) -> str:
    """The change of one file as a unified diff; a line of text if it is too large, or not text."""
    name = display_path(change.path)
    if _NOT_TEXT in before or _NOT_TEXT in after:
        return f"Binary file {name} was {change.name}\n"
    old, new = (data.decode("utf-8", "replace").splitlines(keepends=True) for data in (before, after))
    if len(old) > _MAX_LINES or len(new) > _MAX_LINES:
        return f"Large file {name} was {change.name}: {len(old)} lines before, {len(new)} after\n"
    names = (
        "/dev/null" if change.before is None else f"a/{name}",
        "/dev/null" if change.after is None else f"b/{name}",
    )
    lines = difflib.unified_diff(old, new, *names)
    text = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return text or f"{_kind_change(change)} {name}\n"


def _kind_change(change: TurnChange) -> str:
    kinds: Sequence[str] = [each.kind for each in (change.before, change.after) if each is not None]
    return f"Mode changed ({' → '.join(kinds)}):" if len(kinds) > 1 else f"Empty file {change.name}:"
