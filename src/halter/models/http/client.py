"""HTTP to the providers: one connection pool for each event loop, and connections that are aborted at a stop.

`post()` returns a `Reply` as soon as the status and headers are there. A reply that is read to its end returns its
connection to the pool. In every other case (closed, failed, its task cancelled while connecting, sending, waiting for
the first byte or reading) that one connection is aborted: nothing is flushed, no TLS shutdown is waited for, no other
request is affected, and the server sees the end in the loop's next iteration.

`aiohttp` is imported when the first request is made, or by `preload()`, which can run on any thread.

A pool ends with its loop: `asyncio.run` closes the loop's async generators before the loop, and each pool waits in one.
`aclose_clients()` does it explicitly. The pool of a loop that was closed in another way is closed when the next pool is
made, and at exit, without warnings.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import sys
import threading
import warnings
import weakref
from typing import TYPE_CHECKING, Any

from halter.cancel.loop_bridge import run_in_thread
from halter.models.errors import StreamBroken
from halter.models.http.activity import activity_callback

if TYPE_CHECKING:
    import asyncio  # imported where it is used: it would be half of the cost of `from halter import Agent`
    import socket
    import ssl
    from collections.abc import AsyncGenerator, Mapping
    from types import ModuleType

    import aiohttp

__all__ = ["Reply", "aclose_clients", "get", "post", "preload"]

_CONNECTOR = "halter.models.http.connector"
_DRAIN_TIMEOUT = 0.1  # seconds
_EXIT_TIMEOUT = 0.5  # seconds


class Reply:
    """An answer whose headers have arrived."""

    __slots__ = ("_on_bytes", "_response", "_transport", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse, transport: asyncio.Transport | None) -> None:
        self._response = response
        self._transport = transport
        self._on_bytes = activity_callback()
        self._on_bytes()  # the headers
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    @property
    def content_type(self) -> str:
        """The content type of the body."""
        return self._response.content_type

    async def read(self) -> bytes:
        """The next bytes, at least one; empty at the end."""
        try:
            piece = await self._response.content.readany()
        except _connector_module().READ_ERRORS as exc:
            raise StreamBroken("the connection was lost in the middle of the answer") from exc
        self._on_bytes()
        return piece

    async def read_all(self, limit: int) -> bytes:
        """Read the body to its end, or to `limit` bytes."""
        pieces: list[bytes] = []
        size = 0
        while size < limit and (piece := await self.read()):
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)

    async def finish(self) -> None:
        """Read what may follow the end of the answer, so that the connection can be reused.

        Bounded: if a server keeps the body open after the end of the answer, its connection is closed.
        """
        import asyncio

        with contextlib.suppress(StreamBroken, TimeoutError):
            async with asyncio.timeout(_DRAIN_TIMEOUT):
                while self._response.connection is not None and await self.read():
                    pass

    def close(self) -> None:
        """Abort the connection, unless it is back in the pool already. Can be called again."""
        # A response releases its connection at the end of the body. After that the connection may serve another
        # request, so this reply may abort it only while the response still holds it.
        if self._response.connection is not None and self._transport is not None:
            self._transport.abort()
        self._response.close()


class _Pool:
    """The connections of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.process = os.getpid()
        # All open sockets, so that they can be closed even after the loop.
        self.sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self.session: aiohttp.ClientSession = _connector_module().open_session(self._socket)
        self.closer = self._close_with_loop()

    def _socket(self, address: tuple[Any, ...]) -> socket.socket:
        import socket

        made = socket.socket(*address[:3])
        self.sockets.add(made)
        return made

    async def _close_with_loop(self) -> AsyncGenerator[None, None]:
        """Wait until the loop closes its async generators, which it does before it closes itself."""
        try:
            yield
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        _remove(self)
        await self.session.close()

    def close_without_loop(self) -> None:
        """Close what is left when the loop can no longer do it."""
        closing = self.session.close()
        with contextlib.suppress(StopIteration, RuntimeError):
            closing.send(None)
        closing.close()
        for left in list(self.sockets):
            left.close()
        # Transports warn when they are collected unclosed, and only their loop could have closed them. So they are
        # collected here, without the warning.
        del self.session
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


# Not a weak dictionary: a session refers to its loop, so the entry would keep its key alive. Entries of closed loops
# are removed when the next pool is made.
_pools: dict[int, _Pool] = {}
_lock = threading.Lock()
_exit_hook = threading.Event()
_importing = threading.Lock()
_IMPORT_TIMEOUT = 3.0  # seconds


async def get(url: str, *, headers: Mapping[str, str], tls: ssl.SSLContext | bool = True) -> Reply:
    """Ask for a page and wait for the headers of the answer, whatever its status is."""
    return await _send("GET", url, headers, None, tls=tls)


async def post(url: str, *, headers: Mapping[str, str], body: bytes, tls: ssl.SSLContext | bool = True) -> Reply:
    """Send `body` and wait for the headers of the answer, whatever its status is."""
    return await _send("POST", url, headers, body, tls=tls)


async def _send(
    method: str, url: str, headers: Mapping[str, str], body: bytes | None, *, tls: ssl.SSLContext | bool
) -> Reply:
    pool = await _pool()
    connector = _connector_module()
    got: list[asyncio.Transport] = []
    mark = connector.got.set(got)
    try:
        response = await pool.session.request(
            method,
            url,
            headers=headers,
            data=connector.payload(body) if body is not None else None,
            ssl=tls,
            proxy=connector.proxy_for(url),
            allow_redirects=False,
        )
    except BaseException as exc:
        for transport in got:
            transport.abort()
        error = connector.connection_error(exc)
        if error is None:
            raise
        raise error from exc
    finally:
        connector.got.reset(mark)
    return Reply(response, got[-1] if got else None)


async def aclose_clients() -> None:
    """Close the running loop's connections. The next request opens new ones."""
    import asyncio

    pool = _pools.get(id(asyncio.get_running_loop()))
    if pool is not None:
        # The generator and not the pool: the loop would close a generator that is left open again.
        await pool.closer.aclose()


def preload() -> None:
    """Import what requests need, which takes a few tenths of a second: on a thread, before the first request."""
    atexit.unregister(_await_import)
    atexit.register(_await_import)
    with _importing:
        importlib.import_module(_CONNECTOR)


def _await_import() -> None:
    """Wait for a running import at exit: a thread that is killed in the middle of one may crash the process."""
    if _importing.acquire(timeout=_IMPORT_TIMEOUT):
        _importing.release()


def _connector_module() -> ModuleType:
    return sys.modules[_CONNECTOR]


async def _pool() -> _Pool:
    import asyncio

    loop = asyncio.get_running_loop()
    pool = _pools.get(id(loop))
    # The id of a loop that is gone may be reused, so check that the entry is of this loop.
    if pool is not None and pool.loop is loop:
        return pool
    # A module is in sys.modules before it is fully imported; importing it again on a thread waits for that.
    await run_in_thread(preload)
    pool = _pools.get(id(loop))
    if pool is not None and pool.loop is loop:
        return pool
    pool = _Pool(loop)
    with _lock:
        stale = [old for old in _pools.values() if old.loop.is_closed()]
        for old in stale:  # whoever takes one out closes it
            del _pools[id(old.loop)]
        _pools[id(loop)] = pool
        if not _exit_hook.is_set():
            _exit_hook.set()
            atexit.register(_close_at_exit)
    for old in stale:
        old.close_without_loop()
    await anext(pool.closer)
    return pool


def _remove(pool: _Pool) -> None:
    with _lock:
        if _pools.get(id(pool.loop)) is pool:
            del _pools[id(pool.loop)]


def _close_at_exit() -> None:
    """Close all connections before the interpreter does, which would warn about each."""
    import asyncio

    for pool in list(_pools.values()):
        loop = pool.loop
        if pool.process != os.getpid():
            # A copy made by a fork: its loop runs in the parent, and so its connections belong there.
            continue
        if loop.is_closed():
            _remove(pool)
            pool.close_without_loop()
        elif loop.is_running():
            closed = asyncio.run_coroutine_threadsafe(pool.aclose(), loop)
            # Bounded: a blocked loop keeps its connections, and the process still ends.
            with contextlib.suppress(TimeoutError, asyncio.CancelledError):
                closed.result(_EXIT_TIMEOUT)
        else:
            loop.run_until_complete(pool.aclose())
