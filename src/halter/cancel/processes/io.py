"""Writes the input of a process and reads its output, until it exits or the thread is woken."""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
from typing import IO, TYPE_CHECKING, Final, Self

from halter.cancel.threads import pool

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

_CHUNK: Final = 32768  # bytes


class WakeupPipe:
    """A pipe that wakes a thread from ``select``. `wake()` may be called from anywhere, also after `close()`."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        # Without the lock, a late wake() could write into another file that was given our descriptor's number.
        # Re-entrant, because a signal handler may call wake() while its thread holds the lock.
        self._lock = threading.RLock()
        self._is_open = True

    def fileno(self) -> int:
        return self._reader

    def wake(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._is_open:
                os.write(self._writer, b"!")

    def close(self) -> None:
        with self._lock:
            self._is_open = False
            os.close(self._reader)
            os.close(self._writer)


class ProcessIO:
    """Input and output of one process. Everything here runs in the thread that calls ``run``."""

    def __init__(
        self, process: subprocess.Popen[bytes], data: bytes, sinks: dict[IO[bytes], Callable[[bytes], object]]
    ) -> None:
        self._process = process
        self._data = memoryview(data)
        self._sinks = sinks
        self._has_exited = False

    def run(self, wakeup: WakeupPipe) -> bool:
        """Return True when the process has exited and its output is read, False if woken first.

        Does not wait for descendants that keep the pipes open: a command that starts a server in the background has
        ended when the command itself has.
        """
        is_stopped = []
        with selectors.DefaultSelector() as selector, ExitDescriptor(self._process) as notice:
            selector.register(notice, selectors.EVENT_READ, lambda: setattr(self, "_has_exited", True))
            selector.register(wakeup, selectors.EVENT_READ, lambda: is_stopped.append(True))
            for stream in self._sinks:
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ, lambda stream=stream: self._read(selector, stream))
            if self._process.stdin is not None:
                os.set_blocking(self._process.stdin.fileno(), False)
                selector.register(self._process.stdin, selectors.EVENT_WRITE, lambda: self._write(selector))
            while not self._has_exited and not is_stopped:
                for key, _ in selector.select():
                    key.data()
        if not self._has_exited:
            return False
        for stream in self._sinks:
            while self._read_piece(stream):
                pass
        return True

    def _read(self, selector: selectors.BaseSelector, stream: IO[bytes]) -> None:
        if self._read_piece(stream) == b"":
            selector.unregister(stream)

    def _read_piece(self, stream: IO[bytes]) -> bytes | None:
        """Read what is available: None if there is nothing yet, empty at the end."""
        piece = stream.read(_CHUNK)
        if piece:
            self._sinks[stream](piece)
        return piece

    def _write(self, selector: selectors.BaseSelector) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        try:
            self._data = self._data[os.write(stdin.fileno(), self._data[:_CHUNK]) :]
        except BrokenPipeError:
            self._data = self._data[:0]  # the process does not read the rest
        if not self._data:
            selector.unregister(stdin)
            stdin.close()


class ExitDescriptor:
    """A descriptor that is readable when the process has exited."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._wakeup: WakeupPipe | None = None
        if hasattr(os, "pidfd_open"):
            self._descriptor = os.pidfd_open(process.pid)
        else:
            self._wakeup = wakeup = WakeupPipe()
            pool.submit(lambda: _wake_at_exit(process, wakeup))

    def fileno(self) -> int:
        return self._descriptor if self._wakeup is None else self._wakeup.fileno()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._wakeup is None:
            os.close(self._descriptor)
        else:
            self._wakeup.close()


def _wake_at_exit(process: subprocess.Popen[bytes], wakeup: WakeupPipe) -> None:
    process.wait()
    wakeup.wake()
