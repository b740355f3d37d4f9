"""The proxy that the browser uses: it connects only to addresses that tools may reach.

A browser that is directed by a model, and by the content of pages, must not reach into the network that it runs in: the
router, the database, the cloud's metadata. Checking addresses beforehand is not enough, because a name may resolve to
another address a moment later. So the browser resolves nothing: every request, each redirect and each sub-resource goes
through this proxy, and the address that is checked here is the one that is connected to. The rules are those of all
tools: `halter.toolbox.http.addresses`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from halter.cancel.threads.blocking import run_blocking_async
from halter.cancel.token import CancellationToken, Cancelled

if TYPE_CHECKING:
    from halter.toolbox.http.addresses import Rules

_CONNECT_SECONDS: Final = 15.0
_RESOLVE_SECONDS: Final = 10.0
_HEAD_SECONDS: Final = 60.0
_ACCEPT_AGAIN_SECONDS: Final = 1.0
_MAX_HEAD: Final = 256 * 1024  # bytes
_READ_SIZE: Final = 65_536  # bytes
_HOP_BY_HOP: Final = (b"connection:", b"keep-alive:", b"proxy-connection:", b"proxy-authorization:")
REFUSED_HEADER: Final = "x-halter-refused"


class AddressRefused(Exception):
    """An address that may not be reached."""


class _Destination(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class FilteringProxy:
    """The proxy, on the loop in which it was started."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._listener: socket.socket | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._refusals: list[str] = []

    async def start(self) -> int:
        """Listen on this machine only, and return the port."""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._listener.settimeout(0)
        self._listen()
        port: int = self._listener.getsockname()[1]
        return port

    def close(self) -> None:
        """Listen no more, and end the connections. On the proxy's loop; may be called again."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        for connection in self._connections:
            connection.cancel()

    def take_refusals(self) -> list[str]:
        """Take what was refused since the last call, each once."""
        taken, self._refusals = self._refusals, []
        return list(dict.fromkeys(taken))

    # -- one connection -------------------------------------------------------------------------

    def _listen(self) -> None:
        # Not asyncio.Server: one that is closed just after it accepted a connection never closes that connection.
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connected, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:  # no descriptors are left: try again later
            loop = asyncio.get_running_loop()
            loop.remove_reader(listener)
            loop.call_later(_ACCEPT_AGAIN_SECONDS, self._listen)
            return
        connection = asyncio.get_running_loop().create_task(self._serve(connected))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)
        # A task that is cancelled before its first step closes nothing itself.
        connection.add_done_callback(lambda task: connected.close() if task.cancelled() else None)

    async def _serve(self, connected: socket.socket) -> None:
        """Serve one connection of the browser. A boundary: an error ends this connection, and no other."""
        try:
            reader, writer = await asyncio.open_connection(sock=connected, limit=_MAX_HEAD)
        except OSError:
            connected.close()
            return
        try:
            await self._exchange(reader, writer)
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_HEAD_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
        method, target, rest = _request(head)
        try:
            upstream = await self._connect(target)
        except AddressRefused as refusal:
            self._refusals.append(str(refusal))
            await _answer(writer, 403, "Forbidden", str(refusal), REFUSED_HEADER)
            return
        except (OSError, TimeoutError) as error:
            await _answer(writer, 502, "Bad Gateway", f"{target}: {str(error) or type(error).__name__}")
            return
        with contextlib.closing(upstream[1]):
            await _relay(method, rest, (reader, writer), upstream)

    async def _connect(self, target: _Destination) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to an address of the target that may be reached. Raises AddressRefused, OSError, TimeoutError."""
        self._check(target, self._rules.refuses_port(target.host, target.port))
        addresses = await _resolve(target)
        if not self._rules.names(target.host, target.port):
            for address in addresses:
                why = self._rules.refuses(ipaddress.ip_address(address.partition("%")[0]))
                self._check(target, why and f"{address} is {why}")
        last: OSError | TimeoutError = OSError("the name has no address")
        for address in addresses:
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    return await asyncio.open_connection(address, target.port, limit=_MAX_HEAD)
            except (OSError, TimeoutError) as error:
                last = error
        raise last

    def _check(self, target: _Destination, why: str | None) -> None:
        if why is not None:
            raise AddressRefused(f"{target} ({why})")


async def _resolve(target: _Destination) -> list[str]:
    """The addresses of a host. Not by the loop's own threads: those are joined at exit."""
    token = CancellationToken(timeout=_RESOLVE_SECONDS)
    try:
        found = await run_blocking_async(
            socket.getaddrinfo, target.host, target.port, type=socket.SOCK_STREAM, token=token
        )
    except Cancelled:
        raise TimeoutError(f"{target.host} could not be resolved within {_RESOLVE_SECONDS:g} s") from None
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def _request(head: bytes) -> tuple[str, _Destination, bytes]:
    """The method, the destination, and the head as it is sent to the server. Raises ValueError."""
    line, _, fields = head.partition(b"\r\n")
    method, url, _ = line.decode("latin-1").split(" ", 2)
    if method == "CONNECT":
        parts = urlsplit(f"//{url}")
        if parts.hostname is None or parts.port is None:
            raise ValueError(f"no host and port: {url}")
        return method, _Destination(parts.hostname, parts.port), b""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        raise ValueError(f"not a request to a proxy: {url}")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    rest = f"{method} {path} HTTP/1.1\r\n".encode("latin-1") + _without_keep_alive(fields)
    return method, _Destination(parts.hostname, parts.port or 80), rest


def _without_keep_alive(fields: bytes) -> bytes:
    """Header fields that end the connection after this request: the next one may be for another server."""
    kept = [each for each in fields.split(b"\r\n") if each and not each.lower().startswith(_HOP_BY_HOP)]
    return b"\r\n".join([*kept, b"Connection: close", b"", b""])


async def _relay(
    method: str,
    rest: bytes,
    browser: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    """Copy in both directions, until one side closes."""
    if method == "CONNECT":
        browser[1].write(b"HTTP/1.1 200 Connection Established\r\n\r\n")
    else:
        upstream[1].write(rest)
    to_server = asyncio.ensure_future(_copy(browser[0], upstream[1]))
    to_browser = asyncio.ensure_future(_copy(upstream[0], browser[1], is_answer=method != "CONNECT"))
    try:
        await asyncio.wait([to_server, to_browser], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (to_server, to_browser):
            task.cancel()
        await asyncio.gather(to_server, to_browser, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool = False) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        if is_answer:
            line, _, fields = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
            writer.write(line + b"\r\n" + _without_keep_alive(fields))
        while piece := await reader.read(_READ_SIZE):
            writer.write(piece)
            await writer.drain()


async def _answer(writer: asyncio.StreamWriter, status: int, words: str, text: str, header: str = "") -> None:
    body = text.encode(errors="replace")
    extra = f"{header}: 1\r\n" if header else ""
    writer.write(
        f"HTTP/1.1 {status} {words}\r\n{extra}Content-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        + body
    )
    await writer.drain()
