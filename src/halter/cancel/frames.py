"""Pickled messages over a pipe, each with its length in front."""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import threading
from typing import Any, Final

_LENGTH: Final = struct.Struct("!Q")


class FrameReader:
    """The end of a pipe that messages come out of."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "rb")

    def read(self) -> Any:
        """The next message. Raises EOFError when the other side is gone, also in the middle of one."""
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


class FrameWriter:
    """The end of a pipe that messages go into; whole ones, also from several threads."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "wb")
        self._lock = threading.Lock()

    def write(self, message: object, patience: float = -1) -> None:
        """Send a message. Raises OSError when the other side is gone, or busy for *patience* seconds."""
        body = pickle.dumps(message)
        if not self._lock.acquire(timeout=patience):
            raise TimeoutError
        try:
            self._file.write(_LENGTH.pack(len(body)) + body)
            self._file.flush()
        finally:
            self._lock.release()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what was not sent went to somebody who is gone
            self._file.close()
