"""What a process has said, in bounded memory: the beginning and the end are kept, and the gap is told."""

from __future__ import annotations

import collections
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT: Final = 40_000  # bytes that are kept of one command, half of them from its beginning
_MOST_REPORTED: Final = 4000
_BETWEEN_REPORTS: Final = 0.1  # seconds


class Output:
    """Bytes as they come, from any thread; text for whoever asks."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._most_head = limit // 2
        self._most_tail = limit - self._most_head
        self._lock = threading.Lock()
        self._head = bytearray()
        self._tail: collections.deque[bytes] = collections.deque()
        self._tail_size = 0
        self.size = 0  # of all that came

    def add(self, piece: bytes) -> None:
        with self._lock:
            self.size += len(piece)
            room = self._most_head - len(self._head)
            self._head += piece[:room]
            piece = piece[room:] if room > 0 else piece
            if not piece:
                return
            self._tail.append(piece[-self._most_tail :])
            self._tail_size += len(self._tail[-1])
            while self._tail_size - len(self._tail[0]) >= self._most_tail:
                self._tail_size -= len(self._tail.popleft())

    def text(self, since: int = 0) -> str:
        """All that came after the first *since* bytes, or as much of it as is kept, and then how much is missing."""
        with self._lock:
            size, head, tail = self.size, bytes(self._head), b"".join(self._tail)
        tail_at = size - len(tail)
        if tail_at <= len(head):  # nothing is missing
            return _decoded((head + tail)[since:], is_cut=False)
        tail = tail[-self._most_tail :]
        tail_at = max(size - len(tail), since)
        first, last = head[since:], tail[len(tail) - (size - tail_at) :]
        missing = size - since - len(first) - len(last)
        if not missing:
            return _decoded(first + last, is_cut=False)
        return f"{_decoded(first, is_cut=True)}\n[... {missing:,} bytes left out ...]\n{_decoded(last, is_cut=True)}"


class Progress:
    """Reports what a process says while it says it; not more often than anybody can read."""

    def __init__(self, report: Callable[[str], object]) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._pending = b""
        self._next = 0.0

    def add(self, piece: bytes) -> None:
        with self._lock:
            self._pending = (self._pending + piece)[-_MOST_REPORTED:]

    def tell_if_due(self) -> float | None:
        """Report, if it is time to. The seconds until it is; None if there is nothing to be told."""
        now = time.monotonic()
        with self._lock:
            if not self._pending:
                return None
            if now < self._next:
                return self._next - now
            pending, self._pending = self._pending, b""
            self._next = now + _BETWEEN_REPORTS
        self._report(_decoded(pending, is_cut=True))
        return None


def _decoded(data: bytes, *, is_cut: bool) -> str:
    """As text; halves of characters at a cut are dropped, and what is no UTF-8 is marked."""
    if is_cut:
        data = data.lstrip(bytes(range(0x80, 0xC0))) if _starts_inside(data) else data
        for back in range(1, 4):
            if len(data) >= back and data[-back] >= 0xC0:  # noqa: PLR2004  (begins a character of several bytes)
                length = 2 if data[-back] < 0xE0 else 3 if data[-back] < 0xF0 else 4  # noqa: PLR2004
                data = data[:-back] if length > back else data
                break
    return data.decode(errors="replace")


def _starts_inside(data: bytes) -> bool:
    return len(data) > 0 and 0x80 <= data[0] < 0xC0  # noqa: PLR2004  (the second or a later byte of a character)
