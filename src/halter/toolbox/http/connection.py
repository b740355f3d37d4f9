"""The part of `http.fetch` that uses `aiohttp`, which is imported late and not on the event loop."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
import zlib
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from halter.toolbox.http.fetch import FetchError, Refused, TooLarge

if TYPE_CHECKING:
    import asyncio
    import ssl
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from yarl import URL

_READ_SIZE: Final = 64 * 1024  # bytes
# Values of zlib's `wbits`.
_GZIP_OR_ZLIB: Final = 47
_RAW: Final = -15


class _PinnedResolver(AbstractResolver):
    """Resolves every name to the checked addresses."""

    def __init__(self, addresses: frozenset[str]) -> None:
        self._addresses = sorted(addresses, key=lambda each: ":" in each)

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_UNSPEC,  # noqa: ARG002  (the interface has it)
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in self._addresses
        ]

    async def close(self) -> None:
        """Nothing is kept."""


class _PinnedConnector(aiohttp.TCPConnector):
    """Connects to the checked addresses and to nothing else, and keeps its transports, so that they can be aborted."""

    def __init__(self, addresses: frozenset[str] | None) -> None:
        self._checked = addresses
        self._transports: list[asyncio.Transport] = []
        resolver = None if addresses is None else _PinnedResolver(addresses)
        super().__init__(resolver=resolver, use_dns_cache=False, force_close=True, socket_factory=self._make_socket)

    def _make_socket(self, info: Any) -> socket.socket:
        # The last check: whatever was parsed and looked up above, this is the address that is connected to.
        if self._checked is not None and str(ipaddress.ip_address(info[4][0])) not in self._checked:
            msg = f"the address {info[4][0]} is not the one that was checked"
            raise PermissionError(errno.EACCES, msg)
        return socket.socket(*info[:3])

    async def connect(self, *args: Any, **options: Any) -> aiohttp.connector.Connection:
        connection = await super().connect(*args, **options)
        if connection.transport is not None:
            self._transports.append(connection.transport)
        return connection

    def abort(self) -> None:
        for transport in self._transports:
            transport.abort()


@contextlib.asynccontextmanager
async def opened(
    url: URL,
    addresses: frozenset[str] | None,
    *,
    method: str,
    headers: Mapping[str, str],
    body: bytes | None,
    connect_timeout: float,
    tls: ssl.SSLContext | None,
    proxy: str | None,
) -> AsyncIterator[aiohttp.ClientResponse]:
    """Send one request, and yield its answer. The connection is aborted at the end of the block, however it ends."""
    connector = _PinnedConnector(addresses)
    session = aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout),
        read_bufsize=_READ_SIZE,
    )
    response: aiohttp.ClientResponse | None = None
    try:
        response = await session.request(
            method,
            url,
            headers={"accept-encoding": "gzip, deflate", **headers},
            data=body,
            allow_redirects=False,
            ssl=True if tls is None else tls,
            proxy=proxy,
        )
        yield response
    except aiohttp.ClientError as error:
        raise FetchError(f"{url} could not be fetched: {str(error) or type(error).__name__}") from error
    except OSError as error:
        if isinstance(error, TimeoutError):
            raise
        raise FetchError(f"{url} could not be fetched: {error}") from error
    finally:
        connector.abort()
        if response is not None:
            response.close()
        await session.close()


async def body_of(
    answer: aiohttp.ClientResponse,
    limit: int,
    *,
    is_ok: bool,
    excerpt: int,
    on_bytes: Callable[[int], object] | None,
) -> bytes:
    """Read a body, unpacked, of at most *limit* bytes; of an error, *excerpt* bytes."""
    unpack = _unpacker(answer.headers.get("content-encoding", ""))
    announced = answer.content_length or 0
    if is_ok and announced > limit:
        raise TooLarge(_too_large(limit, f"{announced:,} bytes"))
    body = bytearray()
    packed = 0
    async for piece in answer.content.iter_any():
        packed += len(piece)
        for unpacked in unpack(piece):
            body += unpacked
            if not is_ok and len(body) >= excerpt:
                return bytes(body[:excerpt])
            if max(packed, len(body)) > limit:
                raise TooLarge(_too_large(limit, "more"))
        if on_bytes is not None:
            on_bytes(len(body))
    return bytes(body)


def _too_large(limit: int, there: str) -> str:
    return f"it has {there}; the limit is {limit:,} bytes"


def _unpacker(encoding: str) -> Callable[[bytes], Iterator[bytes]]:
    encoding = encoding.strip().lower()
    if encoding in {"", "identity"}:
        return lambda piece: iter((piece,))
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        raise Refused(f"the answer has the content encoding {encoding!r}, which was not requested")
    return _Inflate().feed


class _Inflate:
    """Unpacks in small pieces, so that a bomb is noticed by its first ones."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._has_begun = False

    def feed(self, piece: bytes) -> Iterator[bytes]:
        while piece:
            try:
                unpacked = self._inner.decompress(piece, _READ_SIZE)
            except zlib.error as error:
                if self._has_begun:
                    raise FetchError(f"the compressed answer is damaged: {error}") from error
                # Some servers mean the bare stream by "deflate".
                self._inner, self._has_begun = zlib.decompressobj(_RAW), True
                continue
            self._has_begun = True
            yield unpacked
            piece = self._inner.unconsumed_tail
            if self._inner.eof:
                piece = self._inner.unused_data
                self._inner = zlib.decompressobj(_GZIP_OR_ZLIB)  # one more member may follow
                if piece and not piece.strip(b"\0"):
                    return  # padding


IS_WHOLE: Final = True  # the last line: if it is visible to another thread, all of this module is
