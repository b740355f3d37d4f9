"""Pickled messages over a pipe, each with its length in front."""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import threading
from typing import Any, Final

_LENGTH: Final = struct.Struct("!Q")


class MessageReader:
    """Reads messages from a pipe."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "rb")

    def read(self) -> Any:
        """The next message. Raises EOFError if the other side has closed the pipe, also in the middle of a message."""
        header = self._file.read(_LENGTH.size)
        if len(header) < _LENGTH.size:
            raise EOFError
        (length,) = _LENGTH.unpack(header)
        body = self._file.read(length)
        if len(body) < length:
            raise EOFError
        return pickle.loads(body)

    def close(self) -> None:
        self._file.close()


class MessageWriter:
    """Writes messages to a pipe; several threads may do so."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "wb")
        self._lock = threading.Lock()

    def write(self, message: object, timeout: float = -1) -> None:
        """Send a message. Raises OSError if the other side is gone or another thread writes for *timeout* seconds."""
        body = pickle.dumps(message)
        if not self._lock.acquire(timeout=timeout):
            raise TimeoutError
        try:
            self._file.write(_LENGTH.pack(len(body)) + body)
            self._file.flush()
        finally:
            self._lock.release()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the reader is gone: what was not sent is lost
            self._file.close()
