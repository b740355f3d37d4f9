"""The measurements of the demo. None of them relies on Halter: they come from the server and the kernel."""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

_WORDS: Final = b"A halter is the rope that leads a horse and holds it: it steers and it halts.".split()
_WORD_SECONDS: Final = 0.05
_MARK: Final = "HALTER_DEMO"


class Clock:
    """Milliseconds since the stop."""

    def __init__(self) -> None:
        self._start: float | None = None

    def start(self) -> None:
        self._start = time.perf_counter()

    def read(self) -> float | None:
        """None before the stop."""
        return None if self._start is None else (time.perf_counter() - self._start) * 1000


class DemoCase:
    """One thing that runs and is stopped, and what was seen of it."""

    def __init__(self, title: str, folder: Path, server: TrickleServer, clock: Clock) -> None:
        self.title = title
        self.server = server
        self.clock = clock
        self.started = asyncio.Event()
        self.progress = 0
        self.unit = ""  # of progress
        self.ending = "is still running"
        self.is_abandoned = False
        self.back_ms: float | None = None
        self.gone_ms: float | None = None
        self.gone = asyncio.Event()
        self._folder = folder

    def record_control_back(self) -> None:
        self.back_ms = self.clock.read()

    def record_gone(self) -> None:
        self.gone_ms = self.clock.read()
        self.gone.set()

    def lifeline(self) -> str:
        """Make a named pipe for the processes of the case to write to once and then hold open.

        When the last of them is dead, wherever it was hiding, the kernel reports the end of the file.
        """
        path = str(self._folder / self.title.replace(" ", "-"))
        os.mkfifo(path)
        pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        loop = asyncio.get_running_loop()

        def read() -> None:
            if os.read(pipe, 4096):
                self.started.set()
            else:
                loop.remove_reader(pipe)
                os.close(pipe)
                self.record_gone()

        loop.add_reader(pipe, read)
        return path


class TrickleServer:
    """An HTTP server on loopback that answers one word at a time, and notes when its client hangs up."""

    def __init__(self) -> None:
        self.port = 0
        self.on_hang_up: Callable[[], object] = lambda: None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _ServerConnection(self), "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()


class _ServerConnection(asyncio.Protocol):
    """One connection, from the side of the server."""

    def __init__(self, server: TrickleServer) -> None:
        self._server = server
        self._words = itertools.cycle(_WORDS)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if data.endswith(b"\r\n\r\n"):
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
            self._send_a_word()

    def _send_a_word(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(b"data: " + next(self._words) + b"\n\n")
            asyncio.get_running_loop().call_later(_WORD_SECONDS, self._send_a_word)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (asyncio passes it)
        self._server.on_hang_up()


class ProcessFinder:
    """Finds every process that was started after it was made, by a mark in the environment."""

    def __init__(self) -> None:
        self._mark = f"{_MARK}={secrets.token_hex(8)}"
        os.environ[_MARK] = self._mark.partition("=")[2]

    def survivors(self) -> list[int] | None:
        """The numbers of those that are alive; None where there is no ``/proc`` to look at."""
        if not Path("/proc/self/environ").exists():
            return None
        return sorted(
            int(process.name)
            for process in Path("/proc").iterdir()
            if process.name.isdigit() and int(process.name) != os.getpid() and self._is_marked(process)
        )

    def _is_marked(self, process: Path) -> bool:
        try:
            return self._mark.encode() in (process / "environ").read_bytes().split(b"\0")
        except OSError:
            return False  # ended meanwhile, or of another user
