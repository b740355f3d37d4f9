"""The .gitignore files of a tree.

Not considered: git's global excludes and .git/info/exclude. Files in an ignored directory are ignored, whatever other
rules say.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from halter.toolbox.files.search.globs import translate

__all__ = ["Ignore"]


class _Rule(NamedTuple):
    base: str  # the directory of its .gitignore; "" or ends with a slash
    pattern: re.Pattern[str]
    is_negated: bool
    directories_only: bool


class Ignore:
    """The rules that apply in one directory: its own and those of the directories above."""

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
                return not rule.is_negated
        return False

    def hides_below(self, path: str, start: str) -> bool:
        """Whether a file, or one of the directories between *start* and it, is ignored."""
        if not self._rules:
            return False
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
    is_negated = text.startswith("!")
    text = text[1:] if is_negated else text
    if not text.strip("/"):
        return None
    return _Rule(base, re.compile(f"(?s:{translate(text)})\\Z"), is_negated, text.endswith("/"))
