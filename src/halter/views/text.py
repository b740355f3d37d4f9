"""Texts, numbers and durations for people.

Models and file names may contain control characters, which a terminal would obey: they are removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from halter.views.items import RetryItem

__all__ = ["count", "elapsed", "retry_text", "seconds", "shorten", "single_line", "strip_controls"]

_MINUTE: Final = 60
_MANY: Final = 100  # of a unit: then the next one is used
_CONTROLS: Final = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def strip_controls(text: str) -> str:
    """Remove control characters; keep line ends and tabs."""
    return text.translate(_CONTROLS)


def single_line(text: str) -> str:
    """Replace everything that is not printable, line ends included, by a space."""
    return "".join(each if each.isprintable() else " " for each in text)


def shorten(text: str, max_length: int) -> str:
    """The beginning of a text on one line, with an ellipsis if it is longer than *max_length*."""
    line = " ".join(text[: 4 * max_length].split())  # a text may be very long, and mostly is not white space
    return line if len(line) <= max_length else f"{line[: max_length - 1]}…"


def count(number: int, what: str, many: str = "") -> str:
    """A number and its noun: "2 tools"."""
    return f"{number:,} {what if number == 1 else many or what + 's'}"


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
