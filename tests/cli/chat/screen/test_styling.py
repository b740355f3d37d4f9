"""The colours of lines."""

from __future__ import annotations

import pytest

from halter.cli.chat.screen.styling import Styler


@pytest.mark.parametrize(
    ("tone", "line"),
    [
        ("good", "\x1b[32m✓ \x1b[0mread_file"),
        ("bad", "\x1b[31m✓ read_file\x1b[0m"),
        ("dim", "\x1b[2m✓ read_file\x1b[0m"),
    ],
)
def test_what_went_well_is_quiet(tone: str, line: str) -> None:
    """Of a call that went well only the mark is green, so that one that failed stands out as a whole."""
    assert Styler(80, color=True).say("read_file", tone, "✓ ") == [line]


def test_without_colour() -> None:
    """Without colour there are no sequences at all."""
    assert Styler(80, color=False).say("read_file", "good", "✓ ") == ["✓ read_file"]
