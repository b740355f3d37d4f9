"""A web server on loopback that hangs, trickles, redirects and answers, and that tells what it saw of its clients."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from aiohttp import web

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
_PATIENCE = 20.0
_ACCEPTING = 5  # more iterations of the loop than it takes to accept a connection


@dataclass
class Seen:
    """One request, as the server saw it."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    pieces: int = 0
    end: str = ""
    """`"answered"`, or `"closed"` when the client went away before that."""
    tags: dict[str, Any] = field(default_factory=dict)


class SlowServer:
    """Paths: /hang never answers, /trickle answers for ever, /to redirects to ?url=; others are what `pages` says."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.pages: dict[str, web.Response | Answer] = {}
        self.requests: list[Seen] = []
        self.changed = threading.Condition()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def page(self, path: str, body: bytes | str, content_type: str = "text/html", **headers: str) -> str:
        """Serve this there, and give its URL."""
        data = body.encode() if isinstance(body, str) else body
        named = {key.replace("_", "-"): value for key, value in headers.items()}

        async def answer(_request: web.Request) -> web.StreamResponse:
            return web.Response(body=data, content_type=content_type, headers=named)

        self.pages[path] = answer
        return self.url + path

    def wait(self, ready: Callable[[list[Seen]], object]) -> None:
        """Wait until what was seen is so."""
        with self.changed:
            assert self.changed.wait_for(lambda: ready(self.requests), _PATIENCE), self.requests

    def wait_for_request(self, path: str, count: int = 1) -> None:
        self.wait(lambda seen: sum(each.path == path for each in seen) >= count)

    def wait_for_close(self, path: str, count: int = 1) -> None:
        """Wait until the client has ended that request before it was answered."""
        self.wait(lambda seen: sum(each.path == path and each.end == "closed" for each in seen) >= count)

    def seen(self, path: str) -> list[Seen]:
        with self.changed:
            return [each for each in self.requests if each.path == path]

    def has_seen(self, path: str) -> bool:
        return bool(self.seen(path))

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
        assert not self._thread.is_alive()

    async def _serve(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        app = web.Application(client_max_size=100_000_000)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self._tls)
        await site.start()
        self.port = runner.addresses[0][1]
        ready.set()
        await self._over.wait()
        await accept_last()
        await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {key.lower(): value for key, value in request.headers.items()}
        seen = Seen(request.method, request.path, dict(request.query), headers, body)
        with self.changed:
            self.requests.append(seen)
            self.changed.notify_all()
        try:
            response = await self._answer(request, seen)
        except (asyncio.CancelledError, ConnectionError):
            self._end(seen, "closed")
            raise
        self._end(seen, "answered")
        return response

    def _end(self, seen: Seen, how: str) -> None:
        with self.changed:
            seen.end = how
            self.changed.notify_all()

    async def _answer(self, request: web.Request, seen: Seen) -> web.StreamResponse:
        page = self.pages.get(request.path)
        if page is not None:
            assert not isinstance(page, web.Response)
            return await page(request)
        if request.path.startswith("/hang"):
            await asyncio.Event().wait()
        if request.path.startswith("/trickle"):
            await self._trickle(request, seen)
        if request.path.startswith("/to"):
            status = int(request.query.get("status", "302"))
            return web.Response(status=status, headers={"location": request.query["url"]})
        return web.Response(status=404, text="there is no such page")

    async def _trickle(self, request: web.Request, seen: Seen) -> None:
        response = web.StreamResponse(headers={"content-type": request.query.get("type", "text/html")})
        await response.prepare(request)
        while True:
            await response.write(b"<p>drop</p>")
            with self.changed:
                seen.pieces += 1
                self.changed.notify_all()
            await asyncio.sleep(0.005)


async def accept_last() -> None:
    """Let asyncio accept what it is accepting: it leaves a connection open if its server is closed meanwhile.

    The clients of a test are gone at its end, so no further ones come.
    """
    for _ in range(_ACCEPTING):
        await asyncio.sleep(0)
