"""Unified diffs of single files, for people: what a write or a patch has changed.

At most 5,000 lines are compared, which takes about two seconds at worst.
"""

from __future__ import annotations

import difflib
import re
from typing import Final

from halter.toolbox.files.text_reader import is_binary

__all__ = ["MAX_COMPARED", "diff_text"]

MAX_COMPARED: Final = 1_000_000  # bytes of a file
_MAX_LINES: Final = 5_000  # between the first and the last line that differ; comparing more takes too long
_MAX_SHOWN: Final = 1_000
_CONTEXT: Final = 3


def diff_text(path: str, before: bytes | None, after: bytes | None, moved_from: str = "") -> str:
    r"""The diff of one file, None where it does not exist; empty if there is none, or it cannot be made.

    Only the first lines of a long one, and then a line such as `\ 200 more lines: +150 -50`.
    """
    datas = [before or b"", after or b""]
    if any(len(data) > MAX_COMPARED or is_binary(data) for data in datas):
        return ""
    old, new = ([f"{line}\n" for line in _lines(data)] for data in datas)
    old_name = "/dev/null" if before is None else f"a/{moved_from or path}"
    new_name = "/dev/null" if after is None else f"b/{path}"
    hunks = _hunks(old, new)
    if not hunks and not moved_from and (before is None) == (after is None):
        return ""
    shown, rest = hunks[:_MAX_SHOWN], hunks[_MAX_SHOWN:]
    lines = [f"--- {old_name}\n", f"+++ {new_name}\n", *shown]
    if rest:
        added, removed = (sum(line.startswith(mark) for line in rest) for mark in "+-")
        lines.append(f"\\ {len(rest)} more lines: +{added} -{removed}\n")
    return "".join(lines)


def _lines(data: bytes) -> list[str]:
    text = data.decode("utf-8", "replace")
    return text.removesuffix("\n").split("\n") if text else []


def _hunks(old: list[str], new: list[str]) -> list[str]:
    """The lines of all hunks. What is the same at both ends is not compared again."""
    start = _common_lines(old, new)
    end = _common_lines(old[start:][::-1], new[start:][::-1])
    if max(len(old), len(new)) - start - end > _MAX_LINES:
        removed, added = old[start : len(old) - end], new[start : len(new) - end]
        header = f"@@ -{start + 1},{len(removed)} +{start + 1},{len(added)} @@\n"
        return [header, *(f"-{line}" for line in removed), *(f"+{line}" for line in added)]
    skipped = max(start - _CONTEXT, 0)
    left = max(end - _CONTEXT, 0)
    compared = difflib.unified_diff(old[skipped : len(old) - left], new[skipped : len(new) - left], n=_CONTEXT)
    return [_shifted(line, skipped) if line.startswith("@@") else line for line in list(compared)[2:]]


def _shifted(header: str, lines: int) -> str:
    """The header of a hunk that begins so many lines later."""
    return re.sub(r"([-+])(\d+)", lambda found: f"{found[1]}{int(found[2]) + lines}", header, count=2)


def _common_lines(one: list[str], other: list[str]) -> int:
    """The number of equal lines at the beginning."""
    for number, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return number
    return min(len(one), len(other))
