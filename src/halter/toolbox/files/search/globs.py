"""Globs for file names: `*` and `?` do not match a slash, `**` does, `[...]` is a set, `{a,b}` is either.

A glob without a slash matches a name in any directory; one with a slash matches a path from where the search starts.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["compile_glob", "translate"]

_MAX_ALTERNATIVES: Final = 1_000
_SET: Final = re.compile(r"\[([!^]?)(\]?(?:\[:\w+:\]|\\.|[^\]\\])*)\]")
_MEMBER: Final = re.compile(r"\[:(\w+):\]|\\(.)|(.)", re.DOTALL)
_CLASSES: Final = {
    "alpha": "a-zA-Z",
    "digit": "0-9",
    "alnum": "a-zA-Z0-9",
    "upper": "A-Z",
    "lower": "a-z",
    "space": r"\s",
    "punct": r"!-/:-@\[-`{-~",
    "xdigit": "0-9a-fA-F",
}
_NOTHING: Final = "(?!)"
_STAR: Final = "[^/]*"


def compile_glob(glob: str, *, ignore_case: bool = False) -> re.Pattern[str]:
    """Compile a glob, which may have braces, for relative paths."""
    alternatives = "|".join(f"(?:{translate(each)})" for each in _expand(glob))
    return re.compile(f"(?s:{alternatives})\\Z", re.IGNORECASE if ignore_case else 0)


def _expand(glob: str) -> list[str]:
    """The globs without braces that a glob with braces means. Unmatched braces are plain characters."""
    pending, done = [glob], []
    while pending:
        each = pending.pop()
        inner = re.search(r"\{([^{}]*,[^{}]*)\}", each)
        if inner is None:
            done.append(each)
        else:
            pending += [each[: inner.start()] + choice + each[inner.end() :] for choice in inner[1].split(",")]
        if len(pending) + len(done) > _MAX_ALTERNATIVES:
            raise ValueError(f"the braces of {glob!r} expand to more than {_MAX_ALTERNATIVES:,} globs")
    return done


def translate(glob: str) -> str:
    """The regular expression for a glob without braces.

    It takes quadratic time at most. All but the last `*` of a name match as little as they can, and then are not tried
    again; so do all but the last `**`. That finds the same: the next `*` can match whatever an earlier one could have.
    """
    anchored = "/" in glob.rstrip("/")
    glob = glob.strip("/")
    out = [] if anchored else ["(?:.*/)?"]
    at = 0
    star: int | None = None  # where in *out* the last `*` of this name is
    folders: int | None = None  # and the last `**`
    while at < len(glob):
        is_start = at == 0 or glob[at - 1] == "/"
        if is_start and glob.startswith("**/", at):
            if folders is not None:
                out[folders:] = [f"(?>(?:[^/]*/)*?{''.join(out[folders + 1 :])})"]
            folders = len(out)
            out.append("(?:.*/)?")
            at += 3
        elif is_start and glob[at:] == "**":
            out.append(".*")
            at += 2
        else:
            piece, at = _one(glob, at)
            if piece == "/":
                star = None
            elif piece == _STAR:
                if star is not None:
                    out[star:] = [f"(?>[^/]*?{''.join(out[star + 1 :])})"]
                star = len(out)
            out.append(piece)
    return "".join(out)


def _one(glob: str, at: int) -> tuple[str, int]:
    char = glob[at]
    if char == "*":
        return _STAR, at + 1 + len(glob[at + 1 :]) - len(glob[at + 1 :].lstrip("*"))
    if char == "?":
        return "[^/]", at + 1
    if char == "[":
        found = _SET.match(glob, at)
        return (_NOTHING, len(glob)) if found is None else (_set(found), found.end())
    if char == "\\" and at + 1 < len(glob):
        return re.escape(glob[at + 1]), at + 2
    return re.escape(char), at + 1


def _set(found: re.Match[str]) -> str:
    members = ""
    for each in _MEMBER.finditer(found[2]):
        if each[1] is not None:
            members += _CLASSES.get(each[1], "")
        elif each[2] is not None:
            members += re.escape(each[2])
        else:
            members += each[3] if each[3] == "-" else re.escape(each[3])
    text = f"(?!/)[{'^' if found[1] else ''}{members}]"
    try:
        re.compile(text)
    except re.error:  # such as a range that ends before it begins
        return _NOTHING
    return text
