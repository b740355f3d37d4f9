"""An answer, cut into blocks as it comes."""

from __future__ import annotations

import random

import pytest

from halter.cli.chat.markdown_blocks import Block, MarkdownBlocks
from halter.cli.chat.styling import cells, fold, short

PAGE = """# Title
First paragraph,
two lines.

1. one

   with more
2. two

Last paragraph.
~~~sh
echo "```"

~~~
- a
- b
"""
BLOCKS = [
    Block("heading", "Title"),
    Block("text", "First paragraph,\ntwo lines."),
    Block("text", "1. one\n\n   with more\n2. two"),
    Block("text", "Last paragraph."),
    Block("code", 'echo "```"\n', "sh"),
    Block("text", "- a\n- b"),
]


@pytest.mark.parametrize("seed", range(5))
def test_however_it_is_cut(seed: int) -> None:
    """The blocks are the same, whatever the pieces in which the answer comes."""
    chance = random.Random(seed)
    answer = MarkdownBlocks()
    found: list[Block] = []
    rest = PAGE
    while rest:
        size = chance.randint(1, 12)
        answer.add(rest[:size])
        rest = rest[size:]
        found += answer.take_finished()
    assert found + answer.end() == BLOCKS
    assert answer.tail is None


def test_a_block_is_finished_when_the_next_begins() -> None:
    """What is open is the tail; it is finished by the first line of what follows, and not before."""
    answer = MarkdownBlocks()
    answer.add("One\n\n")
    assert answer.take_finished() == []
    assert answer.tail == Block("text", "One\n")
    answer.add("Two\n")
    assert answer.take_finished() == [Block("text", "One")]
    answer.add("```\nx")
    assert answer.take_finished() == [Block("text", "Two")]
    assert answer.tail == Block("code", "x")
    answer.add("\n```\n")
    assert answer.take_finished() == [Block("code", "x")]


def test_nothing_is_too_long_to_be_drawn() -> None:
    """Code without an end is finished piece by piece, and so are a line and a paragraph without an end; no word is
    lost by it.
    """
    answer = MarkdownBlocks()
    answer.add("```py\n" + "".join(f"{number}\n" for number in range(100)))
    code = answer.take_finished()
    assert len(code) == 3
    assert [block.continues for block in code] == [False, True, True]
    rest = answer.end()
    assert "\n".join(block.text for block in code + rest).split() == [str(number) for number in range(100)]
    words = " ".join(str(number) for number in range(10_000))
    for text in (words, words.replace(" ", "\n"), "x" * 10_000):
        for at in range(0, len(text), 1000):
            answer.add(text[at : at + 1000])
        blocks = answer.end()
        assert max(len(block.text) for block in blocks) <= 10_000
        if " " in text:
            assert len(blocks) > 5
        assert " ".join(block.text for block in blocks).split() == text.split() or "x" in text


def test_folding() -> None:
    """Lines are broken between words, words that are too long inside, and wide characters are counted as two."""
    assert fold("one two three", 7) == ["one two", "three"]
    assert fold("", 7) == [""]
    assert fold("  indented text", 10) == ["  indented", "text"]
    assert fold("abcdefghij", 4) == ["abcd", "efgh", "ij"]
    assert fold("日本語日本語", 5) == ["日本", "語日", "本語"]
    assert cells("日本") == 4
    assert short("日本語日本語", 5) == "日本…"
    assert short("a\x1b[1m b\n c", 80) == "a[1m b c"
