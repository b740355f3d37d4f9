"""The decoder of server-sent events, against the standard."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halter.models import StreamBroken
from halter.models.http.sse import ServerSentEvent, ServerSentEvents


def decode(*chunks: bytes) -> list[tuple[str, bytes]]:
    decoder = ServerSentEvents()
    return [(event.name, event.data) for chunk in chunks for event in decoder.feed(chunk)]


def by_the_standard(data: bytes) -> list[tuple[str, bytes]]:
    """Decode a whole stream in the plainest way, as a second opinion."""
    data = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    events: list[tuple[str, bytes]] = []
    lines: list[bytes] = []
    name = ""
    for line in data.split(b"\n")[:-1]:
        if not line:
            if lines:
                events.append((name, b"\n".join(lines)))
            lines, name = [], ""
            continue
        key, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if key == b"data":
            lines.append(value)
        elif key == b"event":
            name = value.decode("utf-8", "replace")
    return events


@pytest.mark.parametrize(
    ("data", "events"),
    [
        (b"data: a\n\n", [("", b"a")]),
        (b"data:a\n\n", [("", b"a")]),
        (b"data:  a\n\n", [("", b" a")]),
        (b"data: a\r\n\r\n", [("", b"a")]),
        (b"data: a\r\r", [("", b"a")]),
        (b"data: a\ndata: b\n\n", [("", b"a\nb")]),
        (b"data\n\n", [("", b"")]),
        (b"data\ndata\n\n", [("", b"\n")]),
        (b"event: x\ndata: a\n\ndata: b\n\n", [("x", b"a"), ("", b"b")]),
        (b"event: x\n\ndata: b\n\n", [("", b"b")]),
        (b": comment\n\n:\ndata: a\n\n", [("", b"a")]),
        (b"id: 1\nretry: 5\nother: x\nnonsense\ndata: a\n\n", [("", b"a")]),
        (b"\xef\xbb\xbfdata: a\n\n", [("", b"a")]),
        (b"data: \xef\xbb\xbf\n\n", [("", b"\xef\xbb\xbf")]),
        (b"data: a:b: c\n\n", [("", b"a:b: c")]),
        (b"data: a\n", []),
        (b"data: a\n\ndata: b", [("", b"a")]),
        (b"\n\n\ndata: a\n\n\n\n", [("", b"a")]),
        (b"data: a\rdata: b\n\r\n", [("", b"a\nb")]),
        (b"", []),
    ],
)
def test_as_the_standard_says(data: bytes, events: list[tuple[str, bytes]]) -> None:
    """Each stream gives its events, whole, byte by byte, and cut in two anywhere."""
    assert decode(data) == events
    assert decode(*(bytes([byte]) for byte in data)) == events
    for at in range(len(data)):
        assert decode(data[:at], data[at:]) == events


LINES = [
    b"data: x",
    b"data:",
    b"data: \xc3\xa9\xf0\x9f\x90\x8e",
    b"event: e",
    b": c",
    b"",
    b"",
    b"id: 1",
    b"\xef\xbb\xbf",
]


@settings(max_examples=1000, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(LINES), st.sampled_from([b"\n", b"\r", b"\r\n"])), max_size=20),
    st.lists(st.integers(0, 200), max_size=12),
)
def test_any_lines_split_anywhere(lines: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    """Any mixture of lines and line ends, split anywhere, gives what the plainest decoder gives for the whole."""
    data = b"".join(line + end for line, end in lines)
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    chunks = [data[start:end] for start, end in pairwise(places)]
    assert decode(*chunks) == by_the_standard(data)


def test_an_event_comes_with_the_byte_that_completes_it() -> None:
    """A CR that completes an event is not waited upon for the LF that may follow."""
    decoder = ServerSentEvents()
    assert decoder.feed(b"data: a\r\n") == []
    assert decoder.feed(b"\r") == [ServerSentEvent("", b"a")]
    assert decoder.feed(b"\ndata: b\n\n") == [ServerSentEvent("", b"b")]


@pytest.mark.parametrize(
    "chunks", [[b"data: " + b"x" * 2000], [b"data: xxxxxxxxx\n"] * 200, [b"x"] * 2000, [b"data:\n"] * 2000]
)
def test_size_is_bounded(chunks: list[bytes]) -> None:
    """A line or an event that does not end raises instead of filling the memory."""
    decoder = ServerSentEvents(limit=1000)
    with pytest.raises(StreamBroken, match="more than 1000 bytes"):
        deque(map(decoder.feed, chunks))


def test_the_bound_is_on_one_event_not_on_the_stream() -> None:
    """A stream may be as long as it likes, in pieces of any size."""
    decoder = ServerSentEvents(limit=100)
    piece = b"data: 0123456789\n: comment that is not kept\n\n"
    assert sum(len(decoder.feed(piece)) for _ in range(1000)) == 1000
    for _ in range(300):
        for byte in piece:
            decoder.feed(bytes([byte]))
