"""Reads docstrings: the description of a tool, and of each parameter.

The description is all text before the first section. Parameters are read from the three common styles:
Google (``Args:``), NumPy (``Parameters`` underlined) and Sphinx (``:param x:``).
"""

from __future__ import annotations

import inspect
import re
from typing import Final, NamedTuple

_GOOGLE: Final = re.compile(
    r"(?P<args>Args|Arguments|Params|Parameters|Keyword Args|Keyword Arguments)\s*:\s*$"
    r"|(Returns?|Yields?|Raises|Examples?|Attributes|See Also|References|Todo)\s*:\s*$"
)
_GOOGLE_ENTRY: Final = re.compile(r"(?P<indent>\s+)\*{0,2}(?P<name>\w+)\s*(\(.*?\))?\s*:(?P<text>.*)")
_NUMPY: Final = re.compile(r"-{3,}\s*$")
_NUMPY_ENTRY: Final = re.compile(r"(?P<names>\*{0,2}\w+(\s*,\s*\*{0,2}\w+)*)\s*(:.*)?$")
_SPHINX: Final = re.compile(r":[a-z]+(\s[^:]*)?:")
_SPHINX_ENTRY: Final = re.compile(
    r":(param|parameter|arg|argument|key|keyword)\s+([^:]*\s)?\*{0,2}(?P<name>\w+)\s*:(?P<text>.*)"
)


class Doc(NamedTuple):
    """A parsed docstring."""

    description: str
    parameters: dict[str, str]


def read_docstring(text: str | None) -> Doc:
    """Parse a docstring; without a known section, all of it is description."""
    lines = inspect.cleandoc(text or "").splitlines()
    start = next((at for at in range(len(lines)) if _is_heading(lines, at)), len(lines))
    found: dict[str, list[str]] = {}
    for at in range(start, len(lines)):
        if (heading := _GOOGLE.match(lines[at])) is not None and heading["args"]:
            _read_google(lines[at + 1 :], found)
        elif lines[at].strip() in ("Parameters", "Other Parameters") and _is_underlined(lines, at):
            _read_numpy(lines[at + 2 :], found)
        elif (entry := _SPHINX_ENTRY.match(lines[at])) is not None:
            found[entry["name"]] = [entry["text"], *_indented(lines[at + 1 :], 0)]
    documented = {name: " ".join(" ".join(words).split()) for name, words in found.items()}
    return Doc("\n".join(lines[:start]).strip(), {name: words for name, words in documented.items() if words})


def _is_heading(lines: list[str], at: int) -> bool:
    line = lines[at]
    return bool(_GOOGLE.match(line) or _SPHINX.match(line) or _is_underlined(lines, at))


def _is_underlined(lines: list[str], at: int) -> bool:
    return at + 1 < len(lines) and lines[at][:1].isalpha() and _NUMPY.match(lines[at + 1]) is not None


def _read_google(lines: list[str], found: dict[str, list[str]]) -> None:
    indent: int | None = None
    for at, line in enumerate(lines):
        if line and not line[0].isspace():
            return
        entry = _GOOGLE_ENTRY.match(line)
        if entry is not None and (indent is None or len(entry["indent"]) == indent):
            indent = len(entry["indent"])
            found[entry["name"]] = [entry["text"], *_indented(lines[at + 1 :], indent)]


def _read_numpy(lines: list[str], found: dict[str, list[str]]) -> None:
    for at, line in enumerate(lines):
        if _is_underlined(lines, at):
            return
        entry = _NUMPY_ENTRY.match(line)
        if entry is not None:
            words = _indented(lines[at + 1 :], 0)
            for name in entry["names"].split(","):
                found[name.strip().lstrip("*")] = words


def _indented(lines: list[str], indent: int) -> list[str]:
    """The lines that belong to an entry: blank ones, and those indented deeper than it."""
    taken = []
    for line in lines:
        if line.strip() and len(line) - len(line.lstrip()) <= indent:
            break
        taken.append(line)
    return taken
