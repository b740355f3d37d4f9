"""Parses the patch of a model: a unified diff, or search/replace blocks.

Models miscount. The numbers in a hunk's header are used if they fit the hunk; else the hunk extends to the next header.
An empty line that lost the blank in front of it is a blank line of context.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

__all__ = ["Change", "Hunk", "PatchError", "parse"]

_HUNK: Final = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_SEARCH, _MIDDLE, _REPLACE = "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE"
_NONE: Final = "/dev/null"


class PatchError(ValueError):
    """A patch that cannot be read, or does not fit; its text tells the model what to do."""


@dataclass
class Hunk:
    """A change at one place. Lines end with a line feed, unless they are the last of a file without one."""

    lines: list[tuple[str, str]]  # " ", "-" or "+", and the line
    at: int | None = None  # the line of the old file at which it starts, from 0; None if unknown
    is_block: bool = False  # must be there exactly once

    @property
    def old(self) -> list[str]:
        return [line for mark, line in self.lines if mark != "+"]


@dataclass
class Change:
    """What happens to one file. No old path: it is new. No new path: it is deleted."""

    old: str | None
    new: str | None
    hunks: list[Hunk] = field(default_factory=list)

    @property
    def paths(self) -> list[str]:
        return [path for path in (self.old, self.new) if path is not None]


def parse(text: str, path: str | None = None) -> list[Change]:
    """Read a patch; *path* is the file it is about, if it names none itself."""
    lines = [line + "\n" for line in text.removesuffix("\n").split("\n")]
    if lines[0].startswith("```"):
        lines = lines[1:-1] if lines[-1].startswith("```") else lines[1:]
    if any(line.rstrip() == _SEARCH for line in lines):
        return _Blocks(lines, path).changes
    changes = _Unified(lines, path).changes
    if not changes:
        raise PatchError(
            "This is neither a unified diff (---, +++ and @@ lines) nor blocks of "
            f"{_SEARCH!r}, {_MIDDLE!r} and {_REPLACE!r}. Pass one of these"
        )
    return changes


class _Blocks:
    """Search/replace blocks; the line before a block may name its file."""

    def __init__(self, lines: list[str], path: str | None) -> None:
        self.changes: list[Change] = []
        at = 0
        before = ""
        while at < len(lines):
            word = lines[at].strip()
            if word == _SEARCH:
                name = _block_name(before) or path
                if name is None:
                    raise PatchError(
                        f"line {at + 1}: this block does not name its file; write the name on the line before it"
                    )
                hunk, at = self._hunk(lines, at + 1)
                self._add(name, hunk)
                path, before = name, ""
                continue
            before = word or before
            at += 1

    def _hunk(self, lines: list[str], start: int) -> tuple[Hunk, int]:
        end = next((at for at in range(start, len(lines)) if lines[at].rstrip() == _REPLACE), None)
        if end is None:
            raise PatchError(f"line {start}: the block that begins here has no {_REPLACE!r}")
        middles = [at for at in range(start, end) if lines[at].rstrip() == _MIDDLE]
        if len(middles) != 1:
            msg = f"line {start}: the block that begins here has {len(middles)} lines {_MIDDLE!r}, and must have one"
            if len(middles) > 1:
                msg += "; if the text itself contains such lines, pass a unified diff"
            raise PatchError(msg)
        old = [("-", line) for line in lines[start : middles[0]]]
        new = [("+", line) for line in lines[middles[0] + 1 : end]]
        return Hunk(old + new, is_block=True), end + 1

    def _add(self, name: str, hunk: Hunk) -> None:
        is_new = not hunk.old
        if not is_new and self.changes and self.changes[-1].new == name:
            self.changes[-1].hunks.append(hunk)
        else:
            self.changes.append(Change(None if is_new else name, name, [hunk]))


def _block_name(line: str) -> str:
    """The name of a file as models write it before a block: bare, in backquotes, or after a hash or a star."""
    return "" if line.startswith("```") else line.removesuffix(":").strip("`#* ")


class _Unified:
    """A unified diff, of one file or several, with git's extensions or without."""

    def __init__(self, lines: list[str], path: str | None) -> None:
        self.changes: list[Change] = []
        self._lines = lines
        self._path = path
        self._is_open = False  # whether hunks belong to the newest change
        at = 0
        while at < len(lines):
            at = self._read(at)
        if path is not None and len(self.changes) == 1:
            only = self.changes[0]
            only.old, only.new = (path if only.old else None), (path if only.new else None)

    def _read(self, at: int) -> int:
        line = self._lines[at]
        if self._is_header(at):
            self._open(_name(line[4:]), _name(self._lines[at + 1][4:]))
            return at + 2
        if line.startswith("@@"):
            if not self._is_open:
                self._open_unnamed(at)
            return self._hunk(at)
        if line.startswith("diff --git "):
            return self._git(at)
        if line.startswith(("GIT binary patch", "Binary files ")):
            raise PatchError(f"line {at + 1}: binary changes are not supported")
        if self._is_open and line[0] in "+-" and line.rstrip() != "--":
            raise PatchError(
                f"line {at + 1}: {line.rstrip()!r} belongs to no hunk; each begins with a line such as @@ -1,3 +1,4 @@"
            )
        return at + 1

    def _is_header(self, at: int) -> bool:
        lines = self._lines
        return lines[at].startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ ")

    def _open(self, old: str, new: str) -> None:
        if (old == _NONE or old.startswith("a/")) and (new == _NONE or new.startswith("b/")):
            old, new = old.removeprefix("a/"), new.removeprefix("b/")
        self.changes.append(Change(None if old == _NONE else old, None if new == _NONE else new))
        self._is_open = True

    def _open_unnamed(self, at: int) -> None:
        if self._path is None:
            why = "put --- and +++ lines before it, or pass path"
            raise PatchError(f"line {at + 1}: this hunk does not name its file; {why}")
        self.changes.append(Change(self._path, self._path))
        self._is_open = True

    def _git(self, at: int) -> int:
        """A file's header as git writes it. It matters when no --- and +++ follow: a rename, an empty file."""
        self._is_open = False
        words: dict[str, str] = {}
        first = at
        at += 1
        while at < len(self._lines) and re.match(
            r"(old|new|deleted|similarity|dissimilarity|rename|copy|index)\b", self._lines[at]
        ):
            for key in ("rename from ", "rename to ", "copy from ", "new file", "deleted file"):
                if self._lines[at].startswith(key):
                    words[key] = self._lines[at][len(key) :]
            at += 1
        if "copy from " in words:
            raise PatchError(f"line {first + 1}: copies are not supported; write the new file")
        if at < len(self._lines) and self._is_header(at):
            return at
        if "rename from " in words and "rename to " in words:
            self.changes.append(Change(_name(words["rename from "]), _name(words["rename to "])))
            self._is_open = True
        elif "new file" in words or "deleted file" in words:
            names = self._lines[first][len("diff --git ") :].strip()
            name = names[: len(names) // 2].removeprefix("a/")
            self.changes.append(Change(None, name) if "new file" in words else Change(name, None))
        return at

    def _hunk(self, at: int) -> int:
        numbers = _HUNK.match(self._lines[at])
        start: int | None = None
        read: tuple[list[tuple[str, str]], int] | None = None
        if numbers is not None:
            first, old, _, new = (int(each) if each is not None else 1 for each in numbers.groups())
            start = first if old == 0 else max(first - 1, 0)
            read = self._counted(at + 1, old, new)
        lines, end = read or self._uncounted(at + 1)
        if not lines:
            raise PatchError(f"line {at + 1}: this hunk is empty")
        self.changes[-1].hunks.append(Hunk(lines, start))
        return end

    def _counted(self, at: int, old: int, new: int) -> tuple[list[tuple[str, str]], int] | None:
        """The lines of a hunk by its numbers; None if they do not fit."""
        found: list[tuple[str, str]] = []
        while at < len(self._lines) and (old > 0 or new > 0 or self._lines[at].startswith("\\")):
            entry = _entry(self._lines[at])
            if entry is None:
                return None
            at += 1
            if entry[0] == "\\":
                _cut_newline(found)
                continue
            found.append(entry)
            old -= entry[0] != "+"
            new -= entry[0] != "-"
        if old or new or self._goes_on(at):
            return None
        return found, at

    def _goes_on(self, at: int) -> bool:
        """Whether the line looks like one more of a hunk that should have ended."""
        if at >= len(self._lines) or self._is_header(at) or self._lines[at].rstrip() == "--":
            return False
        return self._lines[at][0] in "+- "

    def _uncounted(self, at: int) -> tuple[list[tuple[str, str]], int]:
        found: list[tuple[str, str]] = []
        bare = 0  # empty lines at the end belong to the text around the diff
        while at < len(self._lines) and not self._is_header(at):
            entry = _entry(self._lines[at])
            if entry is None:
                break
            at += 1
            if entry[0] == "\\":
                _cut_newline(found)
                continue
            found.append(entry)
            bare = bare + 1 if self._lines[at - 1] == "\n" else 0
        return found[: len(found) - bare], at


def _entry(line: str) -> tuple[str, str] | None:
    if line[0] in "+- \\":
        return line[0], line[1:]
    return (" ", line) if line in ("\n", "\r\n") else None


def _cut_newline(found: list[tuple[str, str]]) -> None:
    if found:
        mark, line = found[-1]
        found[-1] = (mark, line.removesuffix("\n"))


def _name(text: str) -> str:
    """The name in a header, without its time; git quotes unusual ones."""
    name = text.rstrip("\r\n").partition("\t")[0].rstrip()
    if len(name) > 1 and name[0] == name[-1] == '"':
        raw = name[1:-1].encode("latin-1", "backslashreplace").decode("unicode_escape")
        return raw.encode("latin-1", "replace").decode("utf-8", "surrogateescape")
    return name
