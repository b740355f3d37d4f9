"""Texts, numbers and durations for people.

The texts of models and servers, and file names, may contain control sequences of terminals. Everything that is written
to a terminal goes through `strip_controls()` or a stricter function here, where it is written: in `halter.cli.output`
and `halter.cli.chat.screen.styling`. JSON goes through `escape_controls()`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from halter.views.items import CompactionItem, RetryItem

__all__ = [
    "CANNOT_ASK",
    "compaction_text",
    "count",
    "elapsed",
    "escape_controls",
    "make_visible",
    "path_text",
    "retry_text",
    "seconds",
    "shorten",
    "single_line",
    "strip_controls",
]

CANNOT_ASK: Final = "[nobody can be asked here: decide yourself, or ask in your answer]"
"""The answer to a tool's question where no person is present, as in scripts."""
_MINUTE: Final = 60
_MANY: Final = 100  # of a unit: then the next one is used
_CONTROLS: Final = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
_RAW_CONTROLS: Final = re.compile(rb"\x7f|\xc2[\x80-\x9f]")  # in UTF-8, 0xc2 is never the second byte of a character


def path_text(path: Path) -> str:
    """A path for people: with `~` for the home folder."""
    try:
        home = Path.home()
    except RuntimeError:  # a user without one, as in a container
        return str(path)
    return f"~/{path.relative_to(home)}" if path != home and path.is_relative_to(home) else str(path)


def strip_controls(text: str) -> str:
    """Remove control characters; keep line ends and tabs."""
    return text.translate(_CONTROLS)


def escape_controls(json: bytes) -> bytes:
    """JSON with its control characters as escapes: the encoder leaves those above 126 as they are."""
    return _RAW_CONTROLS.sub(lambda found: b"\\u%04x" % ord(found[0].decode()), json)


def make_visible(text: str) -> str:
    """Show invisible characters, and those that change the order of others, as Python's escapes."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def single_line(text: str) -> str:
    """Replace everything that is not printable, line ends included, by a space."""
    return "".join(each if each.isprintable() else " " for each in text)


def shorten(text: str, max_length: int) -> str:
    """The beginning of a text on one line, with an ellipsis if it is longer than *max_length*."""
    line = " ".join(text[: 4 * max_length].split())  # a text may be very long, and mostly is not white space
    return line if len(line) <= max_length else f"{line[: max_length - 1]}…"


def count(number: int, noun: str, plural: str = "") -> str:
    """A number and its noun: "2 tools"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def seconds(value: float) -> str:
    """A duration in the unit that fits it."""
    if abs(value) < 1:
        return f"{value * 1000:.1f} ms"
    for unit, size in (("s", 1), ("min", 60), ("h", 3600)):
        if abs(value) < _MANY * size:
            return f"{value / size:.{2 if unit == 's' else 1}f} {unit}"
    return f"{value / 86400:.1f} days"


def elapsed(value: float) -> str:
    """A duration as a running clock shows it."""
    value = max(value, 0.0)
    if value < _MINUTE:
        return f"{value:.1f} s"
    return f"{int(value) // _MINUTE}:{int(value) % _MINUTE:02} min"


def retry_text(retry: RetryItem) -> str:
    """Why a request is made again."""
    again = "the answer starts again" if retry.had_text else "trying again"
    return f"{retry.error}; {again} ({retry.model}, attempt {retry.attempt})"


def compaction_text(item: CompactionItem) -> str:
    """What a compaction did."""
    how = {
        "shortened": "old results were shortened",
        "summarised": "older messages were summarised",
        "dropped": "older messages were left out, because they could not be summarised",
    }[item.how]
    return f"context compacted from about {item.before:,} to {item.after:,} tokens: {how}"
