"""HTTP to the providers: one pool of connections for each event loop, and connections that end when told.

`post()` gives a `Reply` as soon as the status and headers are there. A reply that is read to its end gives its
connection back to the pool. In every other case (closed, failed, its task cancelled while connecting, sending,
waiting for the first byte or reading) that one connection is aborted: nothing is flushed, no TLS farewell is waited
for, no other request is touched, and the server sees the end at the loop's next turn.

`aiohttp` is imported when the first request is made, or by `preload()`, which can run on any thread.

How pools end: with their loop. `asyncio.run` closes the loop's async generators before the loop, and each pool rests in
one. `aclose_clients()` does it by hand. What a loop that was closed otherwise has left behind is put away when the next
pool is made, and at exit; quietly, in each case.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import importlib
import os
import socket
import sys
import threading
import warnings
import weakref
from typing import TYPE_CHECKING, Any

from halter.models.aside import on_thread
from halter.models.errors import StreamBroken
from halter.models.life import life

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator, Mapping
    from types import ModuleType

    import aiohttp

__all__ = ["Reply", "aclose_clients", "post", "preload"]

_LATE = "halter.models.connector"
_DRAIN = 0.1
_EXIT_WAIT = 0.5


class Reply:
    """An answer whose headers have come."""

    __slots__ = ("_life", "_response", "_transport", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse, transport: asyncio.Transport | None) -> None:
        self._response = response
        self._transport = transport
        self._life = life()
        self._life()  # the headers
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    @property
    def content_type(self) -> str:
        """What the body is said to be."""
        return self._response.content_type

    async def read(self) -> bytes:
        """Give what has come, at least one byte; nothing at the end."""
        try:
            piece = await self._response.content.readany()
        except _late().READ_ERRORS as exc:
            message = "the connection was lost in the middle of the answer"
            raise StreamBroken(message) from exc
        self._life()
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
        """Read what may follow the end of the answer, so that the connection can be used again.

        Bounded: a server that has said it is done and then keeps the body open loses its connection, not our time.
        """
        with contextlib.suppress(StreamBroken, TimeoutError):
            async with asyncio.timeout(_DRAIN):
                while self._response.connection is not None and await self.read():
                    pass

    def close(self) -> None:
        """End the connection now, unless it is back in the pool already. Can be called again."""
        # A response lets go of its connection at the end of the body. From then on the connection may serve somebody
        # else, so it is this reply's to abort only while the response still holds it.
        if self._response.connection is not None and self._transport is not None:
            self._transport.abort()
        self._response.close()


class _Pool:
    """The connections of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.process = os.getpid()
        # Every socket that is open, so that they can be closed even after the loop.
        self.sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self.session: aiohttp.ClientSession = _late().open_session(self._socket)
        self.keeper = self._rest()

    def _socket(self, address: tuple[Any, ...]) -> socket.socket:
        made = socket.socket(*address[:3])
        self.sockets.add(made)
        return made

    async def _rest(self) -> AsyncGenerator[None, None]:
        """Rest until the loop closes its async generators, which it does before it closes itself."""
        try:
            yield
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        _forget(self)
        await self.session.close()

    def put_away(self) -> None:
        """Close what is left when the loop can no longer do it."""
        closing = self.session.close()
        with contextlib.suppress(StopIteration, RuntimeError):
            closing.send(None)
        closing.close()
        for left in list(self.sockets):
            left.close()
        # Transports complain when they go and nobody closed them, which only their loop could have done. So they go
        # here, and not at a time when the complaint would be heard.
        del self.session
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


# Not a weak dictionary: a session refers to its loop, so the entry would keep its own key alive. Entries of loops that
# are closed are swept out when the next pool is made.
_pools: dict[int, _Pool] = {}
_lock = threading.Lock()
_exit_hook = threading.Event()
_importing = threading.Lock()
_IMPORT_PATIENCE = 3.0


async def post(url: str, *, headers: Mapping[str, str], body: bytes, tls: ssl.SSLContext | bool = True) -> Reply:
    """Send `body` and wait for the headers of the answer, whatever its status is."""
    pool = await _pool()
    late = _late()
    got: list[asyncio.Transport] = []
    mark = late.got.set(got)
    try:
        response = await pool.session.post(
            url,
            headers=headers,
            data=late.payload(body),
            ssl=tls,
            proxy=late.proxy_for(url),
            allow_redirects=False,
        )
    except BaseException as exc:
        for transport in got:
            transport.abort()
        error = late.connection_error(exc)
        if error is None:
            raise
        raise error from exc
    finally:
        late.got.reset(mark)
    return Reply(response, got[-1] if got else None)


async def aclose_clients() -> None:
    """Close the running loop's connections. The next request opens new ones."""
    pool = _pools.get(id(asyncio.get_running_loop()))
    if pool is not None:
        # The generator and not the pool: one that is left open would be closed again by the loop.
        await pool.keeper.aclose()


def preload() -> None:
    """Import what requests need, a few tenths of a second of work: on a thread, before the first request."""
    atexit.unregister(_await_import)
    atexit.register(_await_import)
    with _importing:
        importlib.import_module(_LATE)


def _await_import() -> None:
    """Let an import end before Python does: a thread that is cut off in the middle of one may crash the process."""
    if _importing.acquire(timeout=_IMPORT_PATIENCE):
        _importing.release()


def _late() -> ModuleType:
    return sys.modules[_LATE]


async def _pool() -> _Pool:
    loop = asyncio.get_running_loop()
    pool = _pools.get(id(loop))
    # An id is used again when its loop is gone, so the entry has to be this loop's own.
    if pool is not None and pool.loop is loop:
        return pool
    # A module is in sys.modules before it is whole; importing it again on a thread waits until it is.
    await on_thread(preload)
    pool = _pools.get(id(loop))
    if pool is not None and pool.loop is loop:
        return pool
    pool = _Pool(loop)
    with _lock:
        stale = [old for old in _pools.values() if old.loop.is_closed()]
        _pools[id(loop)] = pool
        if not _exit_hook.is_set():
            _exit_hook.set()
            atexit.register(_close_at_exit)
    for old in stale:
        _forget(old)
        old.put_away()
    await anext(pool.keeper)
    return pool


def _forget(pool: _Pool) -> None:
    with _lock:
        if _pools.get(id(pool.loop)) is pool:
            del _pools[id(pool.loop)]


def _close_at_exit() -> None:
    """Leave no connection to the interpreter's own clean-up, which would complain about each."""
    for pool in list(_pools.values()):
        loop = pool.loop
        if pool.process != os.getpid():
            # A copy that came with a fork: its loop runs elsewhere, and its connections are the parent's.
            continue
        if loop.is_closed():
            _forget(pool)
            pool.put_away()
        elif loop.is_running():
            closed = asyncio.run_coroutine_threadsafe(pool.aclose(), loop)
            # Bounded: a loop that is stuck keeps its connections, and the process still ends.
            with contextlib.suppress(TimeoutError, asyncio.CancelledError):
                closed.result(_EXIT_WAIT)
        else:
            loop.run_until_complete(pool.aclose())
