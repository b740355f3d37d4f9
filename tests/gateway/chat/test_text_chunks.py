"""Long texts in pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from halter.gateway.chat.text_chunks import size, split

TEXTS = st.text(st.sampled_from("ab 🐎\nü"), max_size=300)


@given(TEXTS, st.integers(2, 40))
def test_nothing_is_lost_and_all_fits(text: str, max_length: int) -> None:
    """Each piece fits and is not empty, and together they have every letter, in order."""
    pieces = split(text, max_length)
    assert all(piece.strip() and size(piece) <= max_length for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(text.split())


@given(TEXTS, TEXTS, st.integers(2, 40))
def test_a_text_that_grows_keeps_its_pieces(text: str, more: str, max_length: int) -> None:
    """What is behind does not change how the beginning is cut, but for the last piece."""
    before, after = split(text, max_length), split(text + more, max_length)
    assert after[: len(before[:-1])] == before[:-1]


def test_cuts_are_between_lines_or_words() -> None:
    """A line's end is better than a word's, and that is better than none."""
    assert split("one two\nthree four", 14) == ["one two", "three four"]
    assert split("one two three", 9) == ["one two", "three"]
    assert split("onetwothree", 4) == ["onet", "woth", "ree"]


@given(TEXTS)
def test_a_size_is_that_of_utf_16(text: str) -> None:
    """It counts as platforms do."""
    assert size(text) == len(text.encode("utf-16-le")) // 2
