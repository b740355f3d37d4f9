"""Server-sent events, decoded as the bytes come in.

Any split of the bytes gives the same events, and each event comes out with the byte that completes it. What the
standard says holds: LF, CR and CRLF end a line, a byte order mark may come first, comments are skipped, data lines are
joined by LF, an event without data is no event, and an event that is not complete at the end is dropped.
Lines stay bytes: the JSON decoder checks their UTF-8, so a character split between chunks needs no care here.
"""

from __future__ import annotations

from typing import NamedTuple

from halter.models.errors import StreamBroken

__all__ = ["MAX_EVENT_BYTES", "ServerSentEvent", "ServerSentEvents"]

MAX_EVENT_BYTES = 32 * 1024 * 1024
"""A larger event means that the other side does not speak this protocol."""

_BOM = b"\xef\xbb\xbf"


class ServerSentEvent(NamedTuple):
    """One event: its name, empty if it has none, and its data."""

    name: str
    data: bytes


class ServerSentEvents:
    """Decodes one stream."""

    __slots__ = ("_data", "_limit", "_name", "_pieces", "_size", "_skip_lf", "_started")

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self._limit = limit
        self._started = False
        # The incomplete line, in the pieces in which it came: joined once, so that a long line that comes byte by byte
        # takes linear time and not quadratic.
        self._pieces: list[bytes] = []
        self._data: list[bytes] = []
        self._name = b""
        # Size of the incomplete event, data and line together.
        self._size = 0
        # The last byte was CR, which has ended its line already: a following LF belongs to it.
        self._skip_lf = False

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Take the next bytes and return the events that they complete."""
        if (
            self._started
            and chunk[-2:] == b"\n\n"
            and chunk[:6] == b"data: "
            and chunk.find(b"\n") == len(chunk) - 2
            and not self._size
            and not self._name
            and not self._skip_lf
            and b"\r" not in chunk
        ):
            # Fast path: nearly every chunk of a streamed answer is one complete event on one line.
            return [ServerSentEvent("", chunk[6:-2])]
        return self._feed(chunk)

    def _feed(self, chunk: bytes) -> list[ServerSentEvent]:
        if not self._started:
            chunk = self._start(chunk)
        if self._skip_lf and chunk:
            self._skip_lf = False
            if chunk.startswith(b"\n"):
                chunk = chunk[1:]
        if b"\r" in chunk:
            self._skip_lf = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = chunk.split(b"\n")
        rest = lines.pop()
        events: list[ServerSentEvent] = []
        if lines and self._pieces:
            self._pieces.append(lines[0])
            lines[0] = b"".join(self._pieces)
            self._size -= len(lines[0]) - len(self._pieces[-1])
            self._pieces.clear()
        for line in lines:
            if line:
                self._line(line)
                continue
            if self._data:
                data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                events.append(ServerSentEvent(self._name.decode("utf-8", "replace") if self._name else "", data))
            self._reset()
        if rest:
            self._pieces.append(rest)
            self._grow(len(rest))
        return events

    def _start(self, chunk: bytes) -> bytes:
        """Remove a byte order mark, once enough bytes have come to know whether there is one."""
        held = b"".join(self._pieces) + chunk
        self._pieces.clear()
        self._size = 0
        if len(held) < len(_BOM) and _BOM.startswith(held):
            self._pieces.append(held)
            self._size = len(held)
            return b""
        self._started = True
        return held.removeprefix(_BOM)

    def _line(self, line: bytes) -> None:
        if line[:6] == b"data: ":
            name, value = b"data", line[6:]
        else:
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            # At least 1, so that empty data lines count too.
            self._grow(len(value) + 1)
        elif name == b"event":
            self._name = value

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > self._limit:
            raise StreamBroken(f"the provider sent an event of more than {self._limit} bytes")

    def _reset(self) -> None:
        self._data.clear()
        self._name = b""
        self._size = 0
