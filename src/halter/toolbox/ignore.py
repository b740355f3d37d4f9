"""Patterns for names of files, as shells and git write them, and the .gitignore files of a tree.

`*` and `?` do not match a slash, `**` does, `[...]` is a set. A pattern without a slash matches a name anywhere; one
with a slash matches a path from where the pattern stands. In .gitignore also: `#` comments, `!` takes back, a slash at
the end means directories only. What is in an ignored directory stays ignored. Not looked at: git's global excludes and
.git/info/exclude.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Ignore", "compile_glob"]


def compile_glob(pattern: str, *, ignore_case: bool = False) -> re.Pattern[str]:
    """Compile a pattern for paths that are relative to where it stands."""
    anchored = "/" in pattern.rstrip("/")
    body = _translated(pattern.strip("/"))
    return re.compile(f"(?s:{body if anchored else '(?:.*/)?' + body})\\Z", re.IGNORECASE if ignore_case else 0)


def _translated(pattern: str) -> str:
    out: list[str] = []
    at = 0
    while at < len(pattern):
        if pattern.startswith("**/", at) and (at == 0 or pattern[at - 1] == "/"):
            out.append("(?:.*/)?")
            at += 3
        elif pattern.startswith("**", at):
            out.append(".*")
            at += 2
            while pattern.startswith("*", at):
                at += 1
        else:
            piece, at = _one(pattern, at)
            out.append(piece)
    return "".join(out)


def _one(pattern: str, at: int) -> tuple[str, int]:
    char = pattern[at]
    if char == "*":
        return "[^/]*", at + 1
    if char == "?":
        return "[^/]", at + 1
    if char == "[":
        end = pattern.find("]", at + (3 if pattern[at + 1 : at + 2] in ("!", "^") else 2))
        if end > 0:
            return _set(pattern[at + 1 : end]), end + 1
    if char == "\\" and at + 1 < len(pattern):
        return re.escape(pattern[at + 1]), at + 2
    return re.escape(char), at + 1


def _set(inside: str) -> str:
    negated = inside[0] in "!^"
    members = re.sub(r"([\\\[\]^&~|])", r"\\\1", inside[1:] if negated else inside)
    text = f"(?!/)[{'^' if negated else ''}{members}]"
    try:
        re.compile(text)
    except re.error:  # such as a range that is the wrong way round: it matches nothing
        return "(?!)"
    return text


class _Rule(NamedTuple):
    base: str  # of which directory's file it is; "" or ends with a slash
    pattern: re.Pattern[str]
    takes_back: bool
    directories_only: bool


class Ignore:
    """The rules that hold in one directory: its own and those of the directories above."""

    def __init__(self, rules: tuple[_Rule, ...] = ()) -> None:
        self._rules = rules

    def plus(self, text: str, base: str) -> Ignore:
        """These, and those of the .gitignore file in the directory *base*."""
        rules = [rule for line in text.split("\n") if (rule := _rule(line.removesuffix("\r"), base)) is not None]
        return Ignore((*self._rules, *rules)) if rules else self

    def hides(self, path: str, *, is_directory: bool) -> bool:
        """Whether a path is ignored, given that its directory is not. The last rule that matches decides."""
        for rule in reversed(self._rules):
            if rule.directories_only and not is_directory:
                continue
            if path.startswith(rule.base) and rule.pattern.match(path[len(rule.base) :]):
                return not rule.takes_back
        return False

    def hides_below(self, path: str, start: str) -> bool:
        """Whether a file, or one of the directories between *start* and it, is ignored."""
        parts = path.split("/")
        first = len(start.split("/")) if start else 0
        return any(
            self.hides("/".join(parts[: count + 1]), is_directory=count + 1 < len(parts))
            for count in range(first, len(parts))
        )


def _rule(line: str, base: str) -> _Rule | None:
    text = line if line.endswith("\\ ") else line.rstrip(" ")
    if not text or text.startswith("#"):
        return None
    takes_back = text.startswith("!")
    text = text[1:] if takes_back else text
    if not text.strip("/"):
        return None
    directories_only = text.endswith("/")
    try:
        pattern = compile_glob(text)
    except re.error:  # pragma: no cover  (nothing is known that would)
        return None
    return _Rule(base, pattern, takes_back, directories_only)
