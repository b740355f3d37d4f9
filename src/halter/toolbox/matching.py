"""Lines of files that match a regular expression. Runs in a process of its own when the expression could run wild."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Match", "is_plain", "match_files"]


class Match(NamedTuple):
    """One line of one file."""

    path: str
    number: int
    line: str


def is_plain(pattern: str) -> bool:
    """Whether a pattern is only a text to be found, so that matching takes no longer than reading."""
    return not set(pattern) & set(r"\.^$*+?{}[]|()")


def match_files(pattern: str, files: list[tuple[str, bytes]], most: int, *, ignore_case: bool) -> list[Match]:
    """The first *most* matching lines of these files. Lines are cut to what can be shown."""
    search = re.compile(pattern, re.IGNORECASE if ignore_case else 0).search
    found: list[Match] = []
    for path, data in files:
        for number, line in enumerate(data.decode("utf-8", "replace").split("\n"), 1):
            if search(line.removesuffix("\r")):
                found.append(Match(path, number, line))
                if len(found) >= most:
                    return found
    return found
