"""The connections of a gateway: how many there may be, and which one is closed to make room.

A connection is busy while a request on it is handled, and waiting before and after: then its client has sent no
complete request. At the limit, the one that has waited longest is closed for each new one. Some connections are kept
for requests that must always be answered, stops and `/healthz`: others are refused before these are used up. A request
takes long only if it has a valid key, so a stranger can occupy waiting connections and no others.
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Final

from halter.gateway.http.errors import Problem

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from aiohttp.web_protocol import RequestHandler

__all__ = ["ACCEPTED_AT_ONCE", "BACKLOG", "CannotListen", "Connections", "bind", "connection_limit"]

BACKLOG: Final = 1024  # connections that the system accepts for us
# In one iteration of the loop. Those are open files before any of them is counted here.
ACCEPTED_AT_ONCE: Final = 16
_RESERVED: Final = 64  # connections for requests that must always be answered
_RETRY_AFTER: Final = 2.0  # seconds


class CannotListen(OSError):
    """The address cannot be used; the message says why."""


class Connections:
    """The open connections of one gateway. All calls are made in its event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._unreserved = limit - min(_RESERVED, limit // 4)
        self._waiting: dict[RequestHandler, asyncio.Transport] = {}  # the one that has waited longest is the first
        self._busy: dict[RequestHandler, asyncio.Transport] = {}
        self._watched: dict[RequestHandler, Callable[[], object]] = {}

    def __len__(self) -> int:
        return len(self._waiting) + len(self._busy)

    def opened(self, connection: RequestHandler, transport: asyncio.Transport) -> None:
        """Count a new connection; at the limit, close the one that has waited longest."""
        self._waiting[connection] = transport
        if len(self) > self._limit:
            oldest = next(iter(self._waiting))
            self._waiting.pop(oldest).abort()  # close() would wait for a client that does not read

    def closed(self, connection: RequestHandler) -> None:
        """Count a connection no longer, and tell who watches it."""
        self._waiting.pop(connection, None)
        self._busy.pop(connection, None)
        on_lost = self._watched.pop(connection, None)
        if on_lost is not None:
            on_lost()

    @contextlib.contextmanager
    def watch(self, connection: RequestHandler, on_lost: Callable[[], object]) -> Iterator[None]:
        """Call *on_lost* as soon as the client disconnects in this block; at once if it has disconnected before.

        For a request that is being handled: a connection has one at a time.
        """
        if connection in self._busy:
            self._watched[connection] = on_lost
        else:
            on_lost()
        try:
            yield
        finally:
            self._watched.pop(connection, None)

    def begin(self, connection: RequestHandler, *, is_vital: bool) -> None:
        """A request begins. Raises `Problem` if too many are being handled, unless it must always be answered."""
        if not is_vital and len(self._busy) >= self._unreserved:
            msg = "too many connections are in use"
            raise Problem(503, msg, kind="connections", retry_after=_RETRY_AFTER)
        transport = self._waiting.pop(connection, None)
        if transport is not None:
            self._busy[connection] = transport

    def end(self, connection: RequestHandler) -> None:
        """The request has been handled."""
        transport = self._busy.pop(connection, None)
        if transport is not None:
            self._waiting[connection] = transport


def connection_limit(wanted: int) -> int:
    """At most three quarters of the files that this process may open: its store and its tools need some too."""
    try:
        import resource
    except ImportError:  # not on Windows
        return wanted
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if files == resource.RLIM_INFINITY else min(wanted, files * 3 // 4)


def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets for all addresses of *host*. Blocks while the name is looked up. Raises `CannotListen`."""
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            opened = socket.socket(family, kind, protocol)
            sockets.append(opened)
            opened.settimeout(0.0)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            opened.bind(address)
    except (OSError, OverflowError) as error:
        for each in sockets:
            each.close()
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        msg = f"cannot listen on {host}, port {port}: {reason[0].lower()}{reason[1:]}"
        raise CannotListen(msg) from error
    return sockets
