"""An answer, cut into blocks as it comes."""

from __future__ import annotations

import random

import pytest

from halter.cli.chat.screen.markdown_blocks import Block, MarkdownBlocks
from halter.cli.chat.screen.styling import cells, fold, short

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
    Block("text", "1. one\n\n   with more"),
    Block("text", "2. two", "", continues=True),
    Block("text", "Last paragraph."),
    Block("code", 'echo "```"\n', "sh"),
    Block("text", "- a"),
    Block("text", "- b", "", continues=True),
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


NESTED = """Title
=====
1. First

   ```py
   a = 1

   b = 2
   ```
2. Second\r
\r
> quoted
> - and listed

| a | b |
|---|---|
| 1 | 2 |
[link]: https://example.org
## Last ##
---
    indented
"""


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_the_blocks_of_commonmark(size: int) -> None:
    """Code in an item belongs to the item, an underlined title is a heading, and carriage returns do not count."""
    answer = MarkdownBlocks()
    found: list[Block] = []
    for at in range(0, len(NESTED), size):
        answer.add(NESTED[at : at + size])
        found += answer.take_finished()
    assert found + answer.end() == [
        Block("heading", "Title"),
        Block("text", "1. First\n\n   ```py\n   a = 1\n\n   b = 2\n   ```"),
        Block("text", "2. Second", "", continues=True),
        Block("text", "> quoted\n> - and listed"),
        Block("text", "| a | b |\n|---|---|\n| 1 | 2 |\n[link]: https://example.org"),
        Block("heading", "Last"),
        Block("text", "---"),
        Block("text", "    indented"),
    ]


def test_a_long_item_is_not_cut_in_its_code() -> None:
    """An item that is too long for one block is cut where a part of it begins; code in it remains code."""
    code = "  ```py\n  x = 1\n\n  y = 2\n  ```\n"
    text = "- item\n\n" + "  words\n\n".join([code] * 300)
    answer = MarkdownBlocks()
    found: list[Block] = []
    for at in range(0, len(text), 1000):
        answer.add(text[at : at + 1000])
        found += answer.take_finished()
    found += answer.end()
    assert len(found) > 3
    assert max(len(block.text) for block in found) < 5000
    assert all(block.text.count("```") % 2 == 0 for block in found)
    assert sum(block.text.count("x = 1") for block in found) == 300
