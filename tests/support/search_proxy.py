"""A proxy on loopback that plays the search engines behind it, or hangs: `ddgs` has their addresses built in."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import trustme

from tests.support.slow_server import accept_last

_PATIENCE = 20.0


class SearchProxy:
    """Answers what is asked through it with `page`, whoever is asked; without a page it never answers."""

    def __init__(self, folder: Path, page: str | None = None) -> None:
        self._page = page
        authority = trustme.CA()
        self.certificate = folder / "authority.pem"
        authority.cert_pem.write_to_path(str(self.certificate))
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("html.duckduckgo.com").configure_cert(self._tls)
        self._changed = threading.Condition()
        self.opened = 0
        self.closed = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_for_open(self, count: int = 1) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.opened >= count, _PATIENCE)

    def wait_for_close(self, count: int = 1) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.closed >= count, _PATIENCE)

    def _note(self, **counts: int) -> None:
        with self._changed:
            self.opened += counts.get("opened", 0)
            self.closed += counts.get("closed", 0)
            self._changed.notify_all()

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(_PATIENCE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(_PATIENCE)

    async def _serve(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        async with server:
            await self._over.wait()
            await accept_last()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._note(opened=1)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, ssl.SSLError):
                await reader.readuntil(b"\r\n\r\n")
                if self._page is not None:
                    writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
                    await writer.start_tls(self._tls)
                    await self._answer(reader, writer, self._page.encode())
                else:
                    await reader.read()  # until the client has gone
        finally:
            writer.close()
            self._note(closed=1)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, page: bytes) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % len(page) + page)
        await writer.drain()
