"""The pump between a process and us: its input in, its output out, until it exits or a bell rings."""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
from typing import IO, TYPE_CHECKING, Final, Self

from halter.cancel import threads

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

_CHUNK: Final = 32768


class Bell:
    """Wakes a thread that waits in ``select``; may be rung from anywhere, also when it is long closed."""

    def __init__(self) -> None:
        self._inner, self._outer = os.pipe()
        os.set_blocking(self._outer, False)
        # Without the lock a late ring could write into whatever file got our number next. Re-entrant,
        # since a signal handler may ring while its own thread is in here.
        self._lock = threading.RLock()
        self._is_open = True

    def fileno(self) -> int:
        return self._inner

    def ring(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._is_open:
                os.write(self._outer, b"!")

    def close(self) -> None:
        with self._lock:
            self._is_open = False
            os.close(self._inner)
            os.close(self._outer)


class Pump:
    """Moves the bytes of one process. Everything here runs on the one thread that calls ``run``."""

    def __init__(
        self, process: subprocess.Popen[bytes], data: bytes, sinks: dict[IO[bytes], Callable[[bytes], object]]
    ) -> None:
        self._process = process
        self._data = memoryview(data)
        self._sinks = sinks
        self._has_exited = False

    def run(self, bell: Bell) -> bool:
        """Return True when the process has exited and what it wrote is read, False when the bell rang first.

        What its descendants still hold open is not waited for: a command that leaves a server behind
        has ended when the command has.
        """
        is_stopped = []
        with selectors.DefaultSelector() as selector, ExitNotice(self._process) as notice:
            selector.register(notice, selectors.EVENT_READ, lambda: setattr(self, "_has_exited", True))
            selector.register(bell, selectors.EVENT_READ, lambda: is_stopped.append(True))
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
        """Read what is there: None if nothing is there yet, empty at the end."""
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
            self._data = self._data[:0]  # it does not want the rest
        if not self._data:
            selector.unregister(stdin)
            stdin.close()


class ExitNotice:
    """Something that ``select`` finds readable when the process has exited."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._bell: Bell | None = None
        if hasattr(os, "pidfd_open"):
            self._descriptor = os.pidfd_open(process.pid)
        else:
            self._bell = bell = Bell()
            threads.submit(lambda: _ring_at_exit(process, bell))

    def fileno(self) -> int:
        return self._descriptor if self._bell is None else self._bell.fileno()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bell is None:
            os.close(self._descriptor)
        else:
            self._bell.close()


def _ring_at_exit(process: subprocess.Popen[bytes], bell: Bell) -> None:
    process.wait()
    bell.ring()
