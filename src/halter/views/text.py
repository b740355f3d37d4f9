"""Text that is safe to show: models and file names may contain control characters that a terminal would obey."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from halter.views.items import RetryItem

__all__ = ["retry_text", "shorten", "single_line", "strip_controls"]

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


def retry_text(retry: RetryItem) -> str:
    """Why a request is made again."""
    again = "the answer starts again" if retry.had_text else "trying again"
    return f"{retry.error}; {again} ({retry.model}, attempt {retry.attempt})"
