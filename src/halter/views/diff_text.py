"""Unified diffs for people: per file a name and counts, and lines with their numbers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["DiffLine", "DiffTone", "FileChanges", "counts_text", "patch_counts", "patch_tones", "read_diff"]

DiffTone: TypeAlias = Literal["", "added", "removed", "dim"]
_HUNK: Final = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")
_REST: Final = re.compile(r"\\ \d+ more lines: \+(\d+) -(\d+)")
_BLOCK_MARKS: Final[dict[str, DiffTone]] = {"<<<<<<< SEARCH": "removed", "=======": "added", ">>>>>>> REPLACE": ""}
_NOWHERE: Final = "/dev/null"


class DiffLine(NamedTuple):
    """One line, as it is shown: its number, then +, - or a blank, then the text."""

    text: str
    tone: DiffTone


class FileChanges(NamedTuple):
    """What has changed in one file."""

    path: str
    added: int
    removed: int
    lines: list[DiffLine]
    change: Literal["created", "changed", "deleted", "moved"] = "changed"

    @property
    def title(self) -> str:
        """The name and the counts."""
        change = "" if self.change == "changed" else f" ({self.change})"
        return f"{self.path}{change} {counts_text([self])}".rstrip()


def counts_text(files: list[FileChanges]) -> str:
    """How many lines were added and removed: "+3 -1"."""
    added, removed = sum(each.added for each in files), sum(each.removed for each in files)
    return " ".join(text for number, text in ((added, f"+{added:,}"), (removed, f"-{removed:,}")) if number)


def patch_tones(lines: Iterable[str]) -> Iterator[DiffTone]:
    """How the lines of a patch look as it was written: a unified diff, or SEARCH and REPLACE blocks."""
    block: DiffTone = ""
    for line in lines:
        word = line.strip().rpartition(": ")[2]  # the first line may have the name of the argument before it
        if word in _BLOCK_MARKS:
            block = _BLOCK_MARKS[word]
            yield "dim"
        elif block:
            yield block
        elif line.startswith(("+++ ", "--- ", "@@")):
            yield "dim"
        else:
            yield "added" if line.startswith("+") else "removed" if line.startswith("-") else ""


def patch_counts(lines: Iterable[str]) -> str:
    """How many lines a patch adds and removes: "+3 -1"."""
    tones = list(patch_tones(lines))
    return counts_text([FileChanges("", tones.count("added"), tones.count("removed"), [])])


def read_diff(diff: str) -> list[FileChanges]:
    """The files of a unified diff; none if the text is not a diff."""
    found: list[FileChanges] = []
    lines = diff.removesuffix("\n").split("\n")
    at = 0
    while at < len(lines):
        if lines[at].startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ "):
            end = at + 2
            while end < len(lines) and not _is_header(lines, end):
                end += 1
            found.append(_read_file(lines[at][4:], lines[at + 1][4:], lines[at + 2 : end]))
            at = end
        else:
            at += 1
    return found


def _is_header(lines: list[str], at: int) -> bool:
    """Whether another file begins. A removed line may look like the first line of a header; then no hunk follows."""
    if not lines[at].startswith("--- ") or at + 1 >= len(lines) or not lines[at + 1].startswith("+++ "):
        return False
    return at + 2 >= len(lines) or lines[at + 2].startswith(("@@ ", "--- "))


def _read_file(old: str, new: str, lines: list[str]) -> FileChanges:
    old_path, new_path = old.partition("\t")[0].removeprefix("a/"), new.partition("\t")[0].removeprefix("b/")
    reader = _LineReader(lines)
    for line in lines:
        reader.add(line)
    counts = (reader.added, reader.removed, reader.shown)
    if old_path == _NOWHERE:
        return FileChanges(new_path, *counts, "created")
    if new_path == _NOWHERE:
        return FileChanges(old_path, *counts, "deleted")
    if old_path != new_path:
        return FileChanges(f"{old_path} → {new_path}", *counts, "moved")
    return FileChanges(new_path, *counts)


class _LineReader:
    """Reads the hunks of one file, and numbers their lines."""

    def __init__(self, lines: list[str]) -> None:
        self.shown: list[DiffLine] = []
        self.added = self.removed = 0
        self._width = len(str(max((int(n) for line in lines for n in _numbers(line)), default=0) + len(lines)))
        self._old = self._new = 0

    def add(self, line: str) -> None:
        """Add the next line."""
        if found := _HUNK.match(line):
            self._old, self._new = int(found[1]), int(found[2])
            if self.shown:
                self.shown.append(DiffLine(f"{'':{self._width}} ⋮", "dim"))
        elif rest := _REST.match(line):
            self.added, self.removed = self.added + int(rest[1]), self.removed + int(rest[2])
            self.shown.append(DiffLine(line.removeprefix("\\ ").partition(":")[0], "dim"))
        elif line.startswith("+"):
            self._show(self._new, f"+ {line[1:]}", "added")
            self._new, self.added = self._new + 1, self.added + 1
        elif line.startswith("-"):
            self._show(self._old, f"- {line[1:]}", "removed")
            self._old, self.removed = self._old + 1, self.removed + 1
        elif line.startswith(" ") or not line:
            self._show(self._new, f"  {line[1:]}", "dim")
            self._old, self._new = self._old + 1, self._new + 1

    def _show(self, number: int, text: str, tone: DiffTone) -> None:
        self.shown.append(DiffLine(f"{number:{self._width}} {text}".rstrip(), tone))


def _numbers(line: str) -> tuple[str, ...]:
    found = _HUNK.match(line)
    return found.groups() if found else ()
