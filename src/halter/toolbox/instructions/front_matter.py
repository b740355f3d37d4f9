"""The front matter of a Markdown file: the fields between two lines of three dashes.

Only what skills need of YAML: fields at the top level whose values are texts, plain, quoted, or as a block after `>` or
`|`. Nested values are skipped. A parser for all of YAML would be a dependency for two fields, and it would reject what
people do write, such as a plain text with a colon in it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["read_front_matter"]

_FENCE: Final = "---"
_FIELD: Final = re.compile(r"""(?P<key>[A-Za-z0-9_-]+|"[^"]*"|'[^']*')\s*:(?:\s+(?P<value>.*))?$""")
_BLOCK: Final = re.compile(r"(?P<style>[>|])[-+0-9]*(?:\s+#.*)?$")
_COMMENT: Final = re.compile(r"\s+#.*$")
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}


def read_front_matter(text: str) -> tuple[dict[str, str], str]:
    """The fields of *text*, and the text after them. Without front matter there are no fields."""
    lines = text.splitlines()
    if not lines or lines[0].rstrip() != _FENCE:
        return {}, text
    end = next((at for at, line in enumerate(lines[1:], 1) if line.rstrip() == _FENCE), None)
    if end is None:
        return {}, text
    return _fields(lines[1:end]), "\n".join(lines[end + 1 :]).lstrip("\n")


def _fields(lines: Sequence[str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    at = 0
    while at < len(lines):
        field = _FIELD.match(lines[at])
        at += 1
        if field is None:
            continue
        start = at
        while at < len(lines) and (not lines[at].strip() or lines[at][0] in " \t"):
            at += 1
        fields.setdefault(field["key"].strip("\"'"), _value((field["value"] or "").strip(), lines[start:at]))
    return fields


def _value(first: str, further: Sequence[str]) -> str:
    """A value that begins on the line of its key and goes on in indented lines."""
    block = _BLOCK.match(first)
    if block is not None:
        return _block(block["style"], further)
    joined = " ".join(part for line in (first, *further) if (part := line.strip()))
    if joined.startswith('"') and (end := _closing_quote(joined)):
        return _ESCAPE.sub(_unescaped, joined[1:end])
    if joined.startswith("'"):
        return joined[1:].replace("''", "\0").partition("'")[0].replace("\0", "'")
    return "" if joined.startswith("#") else _COMMENT.sub("", joined)


def _block(style: str, lines: Sequence[str]) -> str:
    """A block after `|` keeps its line ends; after `>` an empty line is one, and others are spaces."""
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    texts = [line[margin:].rstrip() for line in lines]
    if style == "|":
        return "\n".join(texts).strip("\n")
    paragraphs = "\n".join(texts).strip("\n").split("\n\n")
    return "\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _closing_quote(text: str) -> int:
    """Where the double quote that opens *text* is closed; 0 if it is not."""
    at = 1
    while at < len(text):
        if text[at] == '"':
            return at
        at += 2 if text[at] == "\\" else 1
    return 0


def _unescaped(found: re.Match[str]) -> str:
    code = found[1]
    return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPES.get(code, code)
