"""What tools return, as content."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import pathlib
import re
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halter.models import Audio, Image, Text
from halter.tools import MAX_CHARACTERS, Pieces, bound, render

NOTICE = re.compile(r"\n\[\.\.\. ([\d,]+) characters left out \.\.\.\]\n")


class Color(enum.StrEnum):
    RED = "red"


class OldColor(str, enum.Enum):  # noqa: UP042  (the old way is what is tested)
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    where: pathlib.Path


class Model(pydantic.BaseModel):
    a: int


class Odd:
    def __str__(self) -> str:
        return "odd one"


class Broken:
    def __str__(self) -> str:
        raise KeyError("no")


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("text", "text"),
        (None, ""),
        (True, "true"),
        (1.5, "1.5"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        (Point(1, pathlib.Path("/x")), '{"x":1,"where":"/x"}'),
        (Model(a=1), '{"a":1}'),
        ([Model(a=1), Odd()], '[{"a":1},"odd one"]'),
        (pathlib.Path("/x"), "/x"),
        (Color.RED, "red"),
        (OldColor.RED, "red"),
        (datetime.date(2024, 1, 2), "2024-01-02"),
        ({(1, 2): 3}, "{(1, 2): 3}"),
        (Odd(), "odd one"),
        (Broken(), "(a Broken that cannot be shown: KeyError)"),
        (b"text", "text"),
        (b"\xff\xfe", "(2 bytes that are not text)"),
        ("half \ud800 a pair", "half \\ud800 a pair"),
        (["\ud800"], "['\\ud800']"),
        (Image(b"x"), [Image(b"x")]),
        (
            ["see", Image(b"x"), Text("and"), "hear", Audio(b"y")],
            [Text("see"), Image(b"x"), Text("and\nhear"), Audio(b"y")],
        ),
        (["a", "b"], '["a","b"]'),
    ],
)
def test_every_value_becomes_content(value: object, content: object) -> None:
    """Text stays, data is JSON, parts stay parts, and what cannot be shown is described."""
    assert render(value) == content
    msgspec.json.encode(render(value))


def test_endless_nesting_is_told_of() -> None:
    """A value that holds itself does not fail the call."""
    value: list[Any] = []
    value.append(value)
    assert "[[...]]" in str(render(value)) or "cannot be shown" in str(render(value))


def test_a_long_text_keeps_both_ends() -> None:
    """The middle is left out, and the text says how much is missing."""
    text = "start" + "x" * MAX_CHARACTERS + "end"
    cut = render(text)
    assert isinstance(cut, str)
    assert cut.startswith("startx")
    assert cut.endswith("xend")
    assert len(cut) <= MAX_CHARACTERS


def test_a_limit_has_room_for_the_notice() -> None:
    """A limit that leaves no room for the note about what was left out is refused."""
    with pytest.raises(ValueError, match="no room"):
        bound("x", 10)


def check_honest(text: str, cut: str, limit: int) -> None:
    assert len(cut) <= limit
    if len(text) <= limit:
        assert cut == text
        return
    notices = [found for found in NOTICE.finditer(cut) if found[1] != "0"]
    assert any(
        text.startswith(head := cut[: notice.start()])
        and text.endswith(tail := cut[notice.end() :])
        and int(notice[1].replace(",", "")) == len(text) - len(head) - len(tail)
        for notice in notices
    )


@given(st.text(max_size=30), st.integers(1, 40), st.integers(100, 300))
def test_a_cut_never_lies(piece: str, times: int, limit: int) -> None:
    """A cut text is within its limit, its ends are the text's own, and the number is the number of what is missing."""
    text = piece * times
    check_honest(text, bound(text, limit), limit)


@given(st.lists(st.text(alphabet="ab\n", min_size=1, max_size=80), max_size=20), st.integers(100, 300))
def test_pieces_are_lines(texts: list[str], limit: int) -> None:
    """Each yielded text stands on lines of its own, and all of them together are bounded as one text."""
    pieces = Pieces(limit)
    whole = ""
    for text in texts:
        pieces.add(text)
        whole += "" if not whole or whole.endswith("\n") else "\n"
        whole += text
    content = pieces.content()
    assert isinstance(content, str)
    check_honest(whole, content, limit)


@given(st.lists(st.one_of(st.text(alphabet="ab", max_size=80), st.just(Image(b"x"))), max_size=12))
def test_media_among_pieces(values: list[str | Image]) -> None:
    """Pictures are never dropped, and the texts around them are bounded together."""
    pieces = Pieces(200)
    for value in values:
        pieces.add(value)
    content = pieces.content()
    pictures = [value for value in values if isinstance(value, Image)]
    if isinstance(content, str):
        assert not pictures
        return
    assert [part for part in content if isinstance(part, Image)] == pictures
    texts = [part.text for part in content if isinstance(part, Text)]
    given_texts = [value for value in values if isinstance(value, str) and value]
    if sum(map(len, given_texts)) + len(given_texts) <= 200:
        assert "\n".join(texts) == "\n".join(given_texts)
    assert sum(map(len, texts)) <= 200


def test_partial_content_grows() -> None:
    """The content can be taken at any moment: it is the partial result."""
    pieces = Pieces()
    assert pieces.content() == ""
    pieces.add("one")
    assert pieces.content() == "one"
    pieces.add({"two": 2})
    assert pieces.content() == 'one\n{"two":2}'
