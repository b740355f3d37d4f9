"""The half of the transport that stands on `aiohttp`, and is therefore imported late and off the event loop.

It gives sessions whose connections can be seen as soon as they exist, whose names are looked up on threads that hold up
nobody's exit, and it puts `aiohttp`'s errors into our words.
"""

from __future__ import annotations

import io
import socket
import ssl
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from halter.models.aside import on_thread
from halter.models.errors import ConnectionFailed, ModelError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["CONNECT_TIMEOUT", "READ_ERRORS", "connection_error", "got", "open_session", "payload", "proxy_for"]

CONNECT_TIMEOUT = 15.0
"""For each address that is tried, TLS included. Nothing else is timed here: nobody knows how long an answer takes."""

# Shorter than what servers use: a connection that the other side has just closed costs a failed request.
_KEEP_ALIVE = 30.0
_READ_BUFFER = 256 * 1024
_LARGE_BODY = 512 * 1024

READ_ERRORS = (aiohttp.ClientError, OSError)
"""What reading a body can raise."""

got: ContextVar[list[asyncio.Transport]] = ContextVar("halter_connections_got")
"""The connections that the running `post()` was given. aiohttp tells nobody of them before the headers have come, and
its own close() flushes what is still to be sent, which a server that does not read can hold up for ever."""


class _Connector(aiohttp.TCPConnector):
    """A connector that notes which transport it hands out to whom."""

    async def connect(self, *args: Any, **options: Any) -> aiohttp.connector.Connection:  # noqa: ANN401 - passed through
        connection = await super().connect(*args, **options)
        if connection.transport is not None:
            got.get([]).append(connection.transport)
        return connection


class _Resolver(AbstractResolver):
    """Looks names up on daemon threads.

    The loop's default executor is joined at its end, so one name server that does not answer would hold up the exit.
    """

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await on_thread(lambda: socket.getaddrinfo(host, port, family, socket.SOCK_STREAM))
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=int(address[1]),
                family=kind,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, _, protocol, _, address in found
        ]

    async def close(self) -> None:
        """Nothing is kept."""


def open_session(make_socket: Callable[[Any], socket.socket]) -> aiohttp.ClientSession:
    """Open the running loop's session: no cookies, no total timeout, and no limit behind which others would queue."""
    return aiohttp.ClientSession(
        connector=_Connector(limit=0, keepalive_timeout=_KEEP_ALIVE, resolver=_Resolver(), socket_factory=make_socket),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
        read_bufsize=_READ_BUFFER,
    )


def payload(body: bytes) -> bytes | io.BytesIO:
    """Give a large body such that it is sent in pieces: in one piece it would hold the loop up."""
    return body if len(body) < _LARGE_BODY else io.BytesIO(body)


def proxy_for(url: str) -> str | None:
    """Find the proxy that the environment names for `url`; this machine is never reached through one.

    Not left to aiohttp: with it comes a look into ~/.netrc for each request, on the loop's default executor.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in {"localhost", "::1"} or host.startswith("127.") or proxy_bypass(host):
        return None
    proxies = getproxies_environment()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy and "://" not in proxy:
        proxy = f"http://{proxy}"
    if proxy and urlsplit(proxy).scheme not in {"http", "https"}:
        kind = urlsplit(proxy).scheme
        message = f"the environment names a {kind} proxy for {host}; only http and https ones can be used"
        raise ModelError(message)
    return proxy or None


def connection_error(error: BaseException) -> ModelError | None:  # noqa: PLR0911 - one for each kind
    """Say in our words why no answer was begun; None if it is not for us to say, as with a cancellation."""
    if not isinstance(error, Exception):
        return None  # first, because a stop waits for this
    if isinstance(error, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError):
        return ConnectionFailed(f"the provider's certificate is not to be trusted: {error}", retryable=False)
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return ConnectionFailed(f"the proxy refused the connection: {error.status} {error.message}")
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return ConnectionFailed("the provider closed the connection without an answer")
    if isinstance(error, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError):
        return ModelError(f"this is not an HTTP address: {error}")
    if isinstance(error, TimeoutError):
        return ConnectionFailed("the provider could not be reached in time")
    if isinstance(error, aiohttp.ClientError | OSError):
        return ConnectionFailed(f"the provider could not be reached: {error}")
    if isinstance(error, ValueError | TypeError):
        return ModelError("the request could not be made: a header or an option is not valid")
    return None
