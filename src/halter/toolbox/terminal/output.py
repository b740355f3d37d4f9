"""The output of a process, in bounded memory: the beginning and the end are kept, and the size of the gap."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from halter.cancel.processes.output_buffer import OutputBuffer

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT: Final = 40_000  # bytes that are kept of one command, half of them from its beginning
_MAX_REPORTED: Final = 4000  # bytes
_REPORT_INTERVAL: Final = 0.1  # seconds


class CommandOutput(OutputBuffer):
    """Collects bytes, and returns them as text."""

    def __init__(self, limit: int = LIMIT) -> None:
        super().__init__(limit)

    @property
    def size(self) -> int:
        """How many bytes there were in all."""
        return self._size

    def text(self, since: int = 0) -> str:
        """The output after the first *since* bytes, as far as it is kept, with a note about what is missing."""
        return self.text_and_position(since, is_complete=True)[0]

    def text_and_position(self, since: int, *, is_complete: bool) -> tuple[str, int]:
        """The same, and the position behind it. If it is not complete, a character that has just begun is left out."""
        head, tail, size = self.parts()
        first, last = head[since:], tail[max(since - (size - len(tail)), 0) :]
        missing = size - since - len(first) - len(last)
        if not missing:
            first, last = b"", first + last
        unfinished = 0 if is_complete else _unfinished(last)
        last = last[: len(last) - unfinished]
        if not missing:
            return _decoded(last, is_cut=False), size - unfinished
        note = f"\n[... {missing:,} bytes left out ...]\n"
        return f"{_decoded(first, is_cut=True)}{note}{_decoded(last, is_cut=True)}", size - unfinished


class Progress:
    """Reports output while it is written, at a rate that a person can read."""

    def __init__(self, report: Callable[[str], object]) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._pending = b""
        self._next = 0.0

    def add(self, piece: bytes) -> None:
        with self._lock:
            self._pending = (self._pending + piece)[-_MAX_REPORTED:]

    def report_if_due(self) -> float | None:
        """Report if it is time to. Returns the seconds until then; None if there is nothing to report."""
        now = time.monotonic()
        with self._lock:
            if not self._pending:
                return None
            if now < self._next:
                return self._next - now
            pending, self._pending = self._pending, b""
            self._next = now + _REPORT_INTERVAL
        self._report(_decoded(pending, is_cut=True))
        return None


def _decoded(data: bytes, *, is_cut: bool) -> str:
    """Decode; parts of characters at a cut are dropped, and bytes that are not UTF-8 are marked."""
    if is_cut:
        data = data.lstrip(bytes(range(0x80, 0xC0))) if _starts_inside(data) else data
        data = data[: len(data) - _unfinished(data)]
    return data.decode(errors="replace")


def _starts_inside(data: bytes) -> bool:
    return len(data) > 0 and 0x80 <= data[0] < 0xC0  # noqa: PLR2004  (the second or a later byte of a character)


def _unfinished(data: bytes) -> int:
    """How many bytes at the end are the beginning of a character."""
    for back in range(1, min(4, len(data) + 1)):
        if data[-back] >= 0xC0:  # noqa: PLR2004  (begins a character of several bytes)
            length = 2 if data[-back] < 0xE0 else 3 if data[-back] < 0xF0 else 4  # noqa: PLR2004
            return back if length > back else 0
    return 0
