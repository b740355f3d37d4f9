"""Lines of files that match a regular expression. Runs in a process of its own when the expression could run wild."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from halter.cancel.context import checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Match", "is_plain", "match_files"]

_AT_ONCE: Final = 100_000  # bytes


class Match(NamedTuple):
    """One line of one file."""

    path: str
    number: int
    line: str


def is_plain(pattern: str) -> bool:
    """Whether a pattern is only a text to be found, so that matching takes no longer than reading."""
    return not set(pattern) & set(r"\.^$*+?{}[]|()")


def _lines(data: bytes) -> Iterator[str]:
    """The lines of a text, some at a time: a large one must not keep the interpreter to itself."""
    at = 0
    while at <= len(data):
        checkpoint()
        end = data.find(b"\n", at + _AT_ONCE)
        end = len(data) if end < 0 else end
        yield from data[at:end].decode("utf-8", "replace").split("\n")
        at = end + 1


def match_files(pattern: str, files: list[tuple[str, bytes]], most: int, *, ignore_case: bool) -> list[Match]:
    """The first *most* matching lines of these files. Lines are cut to what can be shown."""
    search = re.compile(pattern, re.IGNORECASE if ignore_case else 0).search
    found: list[Match] = []
    for path, data in files:
        for number, line in enumerate(_lines(data), 1):
            if search(line.removesuffix("\r")):
                found.append(Match(path, number, line))
                if len(found) >= most:
                    return found
    return found
