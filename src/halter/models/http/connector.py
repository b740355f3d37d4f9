"""The part of the client that needs `aiohttp`, and is therefore imported late and off the event loop.

Its sessions record their connections as soon as they exist and resolve names on daemon threads, and it maps `aiohttp`'s
errors to ours.
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

from halter.cancel.loop_bridge import run_in_thread
from halter.models.errors import ConnectionFailed, ModelError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["CONNECT_TIMEOUT", "READ_ERRORS", "connection_error", "got", "open_session", "payload", "proxy_for"]

CONNECT_TIMEOUT = 15.0
"""Seconds for each address that is tried, TLS included. Nothing else has a time limit here."""

# Seconds. Shorter than what servers use: a request on a connection that the server has just closed fails.
_KEEP_ALIVE = 30.0
_READ_BUFFER = 256 * 1024  # bytes
_LARGE_BODY = 512 * 1024  # bytes

READ_ERRORS = (aiohttp.ClientError, OSError)
"""What reading a body can raise."""

got: ContextVar[list[asyncio.Transport]] = ContextVar("halter_connections_got")
"""The connections of the running `post()`. aiohttp does not expose them before the headers have come, and its own
close() flushes what is still to be sent, for which a server that does not read can block it for ever."""


class _Connector(aiohttp.TCPConnector):
    """A connector that records the transports that it hands out."""

    async def connect(self, *args: Any, **options: Any) -> aiohttp.connector.Connection:  # noqa: ANN401 - passed through
        connection = await super().connect(*args, **options)
        if connection.transport is not None:
            got.get([]).append(connection.transport)
        return connection


class _Resolver(AbstractResolver):
    """Resolves names on daemon threads, see `run_in_thread()`."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await run_in_thread(lambda: socket.getaddrinfo(host, port, family, socket.SOCK_STREAM))
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
        """Nothing to close."""


def open_session(make_socket: Callable[[Any], socket.socket]) -> aiohttp.ClientSession:
    """A session for the running loop: no cookies, no total timeout, no limit on connections."""
    return aiohttp.ClientSession(
        connector=_Connector(limit=0, keepalive_timeout=_KEEP_ALIVE, resolver=_Resolver(), socket_factory=make_socket),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
        read_bufsize=_READ_BUFFER,
    )


def payload(body: bytes) -> bytes | io.BytesIO:
    """A large body as a file, which is sent in pieces: in one piece it would block the loop."""
    return body if len(body) < _LARGE_BODY else io.BytesIO(body)


def proxy_for(url: str) -> str | None:
    """The proxy for `url` from the environment; None for this machine.

    Not left to aiohttp, which would read ~/.netrc for each request, on the loop's default executor.
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
        raise ModelError(f"the environment names a {kind} proxy for {host}; only http and https proxies are supported")
    return proxy or None


def connection_error(error: BaseException) -> ModelError | None:  # noqa: PLR0911 - one for each kind
    """Our error for why no answer came; None for what is not an error of the connection, such as a cancellation."""
    if not isinstance(error, Exception):
        return None  # checked first, because a stop waits for this
    if isinstance(error, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError):
        return ConnectionFailed(f"the provider's certificate is not trusted: {error}", retryable=False)
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return ConnectionFailed(f"the proxy refused the connection: {error.status} {error.message}")
    if isinstance(error, aiohttp.ClientResponseError):
        return ConnectionFailed(f"the provider's answer is not valid HTTP: {error.message}")
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
