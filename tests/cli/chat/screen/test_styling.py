"""The colours of lines."""

from __future__ import annotations

import pytest

from halter.cli.chat.screen.markdown_blocks import MarkdownBlocks
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


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (
            "Use List<String>, and run `halter login` <PROVIDER>.",
            ["Use List<String>, and run halter login <PROVIDER>."],
        ),
        ("<think>\nplan\n</think>\n\nanswer", ["<think> plan </think>", "answer"]),
        ("text\n\n<details>\n- a\n</details>", ["text", "<details>", " • a </details>"]),
        ("# The type <T>", ["The type <T>"]),
        ("| a |\n|---|\n| <T> |", [" a", " ───", " <T>"]),
        ("See [1].\n\n[1]: https://example.org/a", ["See [1].", "[1]: https://example.org/a"]),
        ("![a cat](https://example.org/cat.png)", ["!a cat (https://example.org/cat.png)"]),
        ("~~old~~ **new**", ["old new"]),
    ],
)
def test_all_of_an_answer_is_shown(answer: str, shown: list[str]) -> None:
    """Users never saw the parts of an answer that look like HTML, footnotes, or the addresses of images."""
    blocks = MarkdownBlocks()
    blocks.add(answer)
    styler = Styler(80, color=False)
    lines = [line for block in blocks.end() for line in styler.block(block)]
    assert [line for line in lines if line] == shown
