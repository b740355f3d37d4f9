"""Applies hunks to a text: where each belongs, how exactly it has to match, and the error if it does not.

Lines are compared exactly first; then without the white space at their ends (line endings too); then with all lines
indented more or less by one and the same amount. The first way that finds a place is used. Lines of context stay as
they are in the file; added lines get the file's line endings and, in the third way, its indentation.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final, NamedTuple

from halter.cancel.context import checkpoint
from halter.toolbox.files.patch.parser import PatchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from halter.toolbox.files.patch.parser import Hunk

__all__ = ["Applied", "apply_hunks"]

_WAYS: Final = ("", "white space at the ends of lines was ignored", "the indentation was adapted")
_NEAR: Final = 3  # lines shown around the nearest place
_MAX_COMPARED: Final = 2_000  # lines
_MAX_SHOWN: Final = 20  # lines
_CHECK_INTERVAL: Final = 50_000  # characters, or lines, between two checks of the token


class Applied(NamedTuple):
    """The new text, the counts, and notes for the model."""

    text: str
    added: int
    removed: int
    notes: list[str]


def apply_hunks(text: str, hunks: list[Hunk], path: str) -> Applied:
    """Apply all hunks, in order. Raises PatchError, with the nearest lines, if one has no place or more than one."""
    target = _Target(split_lines(text), path)
    for number, hunk in enumerate(hunks, 1):
        checkpoint()
        target.apply(hunk, f"{path}, change {number} of {len(hunks)}" if len(hunks) > 1 else path)
    added = sum(mark == "+" for hunk in hunks for mark, _ in hunk.lines)
    removed = sum(mark == "-" for hunk in hunks for mark, _ in hunk.lines)
    return Applied("".join(target.lines), added, removed, target.notes)


def split_lines(text: str) -> list[str]:
    """The lines of a text with their line feeds; nothing else ends a line."""
    lines: list[str] = []
    at = 0
    while at < len(text):
        checkpoint()
        end = text.find("\n", at + _CHECK_INTERVAL) + 1 or len(text)
        lines += [line + "\n" for line in text[at:end].removesuffix("\n").split("\n")]
        at = end
    if lines and not text.endswith("\n"):
        lines[-1] = lines[-1][:-1]
    return lines


class _Target:
    """The lines of a file while hunks are applied to them."""

    def __init__(self, lines: list[str], path: str) -> None:
        self.lines = lines
        self.notes: list[str] = []
        self._path = path
        self._floor = 0  # diffs go from top to bottom
        self._shift = 0  # by how much the lines are elsewhere than the diff says
        some = lines[:_MAX_COMPARED]
        endings = sum(line.endswith("\r\n") for line in some)
        self._newline = "\r\n" if endings * 2 > len(some) else "\n"

    def apply(self, hunk: Hunk, where: str) -> None:
        old = hunk.old
        if not old:
            self._insert(hunk, where)
            return
        for way, note in enumerate(_WAYS):
            places = _places(self.lines, old, way)
            if not hunk.is_block:
                places = [place for place in places if place >= self._floor]
            place = self._choose(places, hunk, where)
            if place is not None:
                self._replace(hunk, place, way)
                if note and note not in self.notes:
                    self.notes.append(note)
                return
        raise PatchError(_mismatch(self.lines, old, where))

    def _choose(self, places: list[int], hunk: Hunk, where: str) -> int | None:
        if len(places) <= 1:
            return places[0] if places else None
        if hunk.at is not None and hunk.at + self._shift in places:
            return hunk.at + self._shift
        shown = ", ".join(str(place + 1) for place in places[:_MAX_SHOWN])
        raise PatchError(f"{where}: these lines occur {len(places)} times, at lines {shown}; add more lines of context")

    def _insert(self, hunk: Hunk, where: str) -> None:
        """Insert lines for which no context is given."""
        new = [line for _, line in hunk.lines]
        if hunk.is_block or hunk.at is None:
            if self.lines:
                raise PatchError(f"{where}: the file is not empty; add context lines that say where this belongs")
            place = 0
        else:
            place = hunk.at + self._shift
            if not self._floor <= place <= len(self.lines):
                raise PatchError(f"{where}: the file has {len(self.lines)} lines; there is no line {hunk.at}")
        self._put(place, place, new)
        self._shift += len(new)

    def _replace(self, hunk: Hunk, place: int, way: int) -> None:
        old = hunk.old
        found = self.lines[place : place + len(old)]
        indent = _indentation(old, found) if way == len(_WAYS) - 1 else None
        new: list[str] = []
        at = 0
        for mark, line in hunk.lines:
            if mark == "+":
                new.append(self._fitted(line, indent) if way else line)
                continue
            if mark == " ":
                new.append(found[at])
            at += 1
        end = place + len(old)
        if way and end == len(self.lines) and new and not self.lines[-1].endswith("\n"):
            new[-1] = new[-1].removesuffix("\n").removesuffix("\r")
        self._put(place, end, new)
        if hunk.at is not None:
            self._shift = place - hunk.at + len(new) - len(old)

    def _put(self, start: int, end: int, new: list[str]) -> None:
        if start and new and not self.lines[start - 1].endswith("\n"):
            self.lines[start - 1] += self._newline
        self.lines[start:end] = new
        for at in range(start, min(start + len(new), len(self.lines) - 1)):
            if not self.lines[at].endswith("\n"):
                self.lines[at] += self._newline
        self._floor = start + len(new)

    def _fitted(self, line: str, indent: tuple[str, str] | None) -> str:
        body = line.removesuffix("\n").removesuffix("\r")
        ending = self._newline if line.endswith("\n") else ""
        if indent is not None and body.strip():
            patch_indent, file_indent = indent
            body = file_indent + body.removeprefix(patch_indent)
        return body + ending


def _places(lines: list[str], old: list[str], way: int) -> list[int]:
    if way == 0:
        return _find_runs(lines, old)
    if way == 1:
        return _find_runs(_mapped(str.rstrip, lines), _mapped(str.rstrip, old))
    candidates = _find_runs(_mapped(str.strip, lines), _mapped(str.strip, old))
    return [place for place in candidates if _indentation(old, lines[place : place + len(old)]) is not None]


def _mapped(change: Callable[[str], str], lines: list[str]) -> list[str]:
    found: list[str] = []
    for at in range(0, len(lines), _CHECK_INTERVAL // 10):
        checkpoint()
        found += map(change, lines[at : at + _CHECK_INTERVAL // 10])
    return found


def _find_runs(lines: list[str], wanted: list[str]) -> list[int]:
    """The places where the wanted lines follow each other."""
    found: list[int] = []
    first, count, at = wanted[0], len(wanted), -1
    while True:
        try:
            at = lines.index(first, at + 1)
        except ValueError:
            return found
        if lines[at : at + count] == wanted:
            found.append(at)


def _indent_of(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _indentation(old: list[str], found: list[str]) -> tuple[str, str] | None:
    """The indentation that replaces another in all lines; None if it differs from line to line."""
    pairs = [(_indent_of(given), _indent_of(line)) for given, line in zip(old, found, strict=True) if given.strip()]
    if not pairs:
        return None
    patch_indent, file_indent = min(pairs, key=lambda pair: len(pair[0]))
    fits = all(
        given.startswith(patch_indent) and actual == file_indent + given[len(patch_indent) :] for given, actual in pairs
    )
    return (patch_indent, file_indent) if fits else None


def _mismatch(lines: list[str], old: list[str], where: str) -> str:
    wanted = "".join(f"  | {line.rstrip()}\n" for line in old[:_MAX_SHOWN])
    place = _nearest(lines, old)
    if place is None:
        near = "There is nothing similar." if lines else "The file is empty."
    else:
        first, last = max(place - _NEAR, 0), min(place + min(len(old), _MAX_SHOWN) + _NEAR, len(lines))
        shown = "".join(f"{at + 1:>6}\t{lines[at].rstrip()}\n" for at in range(first, last))
        near = f"The nearest lines are:\n{shown}"
    return f"{where}: these lines do not occur:\n{wanted}{near}".rstrip()


def _nearest(lines: list[str], old: list[str]) -> int | None:
    """Where most of the wanted lines are, or a line that is like the first of them."""
    wanted: dict[str, int] = {}
    for at, line in enumerate(old):
        if line.strip():
            wanted.setdefault(line.strip(), at)
    votes: dict[int, int] = {}
    for at, line in enumerate(_mapped(str.strip, lines)):
        if at % _CHECK_INTERVAL == 0:
            checkpoint()
        offset = wanted.get(line)
        if offset is not None:
            start = max(at - offset, 0)
            votes[start] = votes.get(start, 0) + 1
    if votes:
        return max(votes, key=lambda start: votes[start])
    return _most_alike(lines, next(iter(wanted), ""))


def _most_alike(lines: list[str], wanted: str) -> int | None:
    best, found = 0.5, None
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted[:200])
    for at, line in enumerate(lines[:_MAX_COMPARED]):
        checkpoint()
        matcher.set_seq1(line.strip()[:200])
        if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best and (ratio := matcher.ratio()) > best:
            best, found = ratio, at
    return found
