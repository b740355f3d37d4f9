"""The output of a process in bounded memory: its first and its last bytes are kept."""

from __future__ import annotations

import threading


class OutputBuffer:
    """Keeps at most *limit* bytes: the first half and the last half. Filled by one thread, read by any."""

    def __init__(self, limit: int) -> None:
        self._max_head = limit // 2
        self._max_tail = limit - self._max_head
        # Bytearrays, not lists of pieces: a process that writes byte by byte must not cost more memory.
        self._head = bytearray()
        self._tail = bytearray()
        self._size = 0
        self._lock = threading.Lock()  # held for a copy of bytes at most

    def add(self, piece: bytes) -> None:
        with self._lock:
            self._size += len(piece)
            room = self._max_head - len(self._head)
            self._head += piece[:room]
            self._tail += piece[room:]
            # Trimmed only when it has doubled, so that the cost per byte is constant.
            if len(self._tail) > 2 * self._max_tail:
                del self._tail[: -self._max_tail or None]

    def content(self) -> tuple[bytes, bool]:
        """The bytes that are kept, and whether any were dropped between the two halves."""
        head, tail, size = self.parts()
        return head + tail, size > len(head) + len(tail)

    def parts(self) -> tuple[bytes, bytes, int]:
        """The first bytes, the last bytes, and how many there were in all."""
        with self._lock:
            return bytes(self._head), bytes(self._tail[max(0, len(self._tail) - self._max_tail) :]), self._size
