"""The connection to one MCP server: made when it is first needed, made again when the server has died.

Everything here runs on one event loop, that of `halter.cancel.loop_thread`. The SDK requires that the same task opens
and closes a connection; so each connection is a task, which keeps it open until `close()`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

from halter.cancel.one_shot_event import OneShotEvent
from halter.cancel.registration import call_in_loop
from halter.toolbox.http.addresses import literal, normal_host

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from mcp import Client

_log = logging.getLogger(__name__)
CONNECTION_CLOSED: Final = -32000  # the SDK's code for it
_NOT_FOUND: Final = 404
_HTTP_TIMEOUT: Final = 30.0  # seconds
_SECONDS_AT_EXIT: Final = 1.0  # for all connections to end with the process


class ServerFailed(RuntimeError):
    """The MCP server could not be reached, was lost during a call, or reported an error."""


class ConnectionState(Protocol):
    """What a transport reports about its connection, in the loop."""

    session_is_unknown: bool  # the server does not know our session any more, as after a restart

    def on_death(self) -> None:
        """The server is gone."""


class Transport(Protocol):
    """How a server is reached. `str()` of it names the server."""

    def open(self, state: ConnectionState) -> contextlib.AbstractAsyncContextManager[Any]:
        """The streams to the server."""

    def stderr_tail(self) -> str:
        """The end of its stderr."""

    def wait_ended(self, timeout: float) -> bool:
        """Block until nothing is left of it; False after *timeout* seconds."""


class Http:
    """A server that is reached over streamable HTTP."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        self._headers = dict(headers)

    def __str__(self) -> str:
        return f"the MCP server at {self._url.partition('?')[0]}"  # what follows may be a key

    @contextlib.asynccontextmanager
    async def open(self, state: ConnectionState) -> AsyncIterator[Any]:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        async def on_response(response: Any) -> None:
            request = response.request  # not the GET of the background stream, which says nothing about a call
            if response.status_code == _NOT_FOUND and request.method == "POST" and "mcp-session-id" in request.headers:
                state.session_is_unknown = True

        # Over plain HTTP a proxy could read the headers, and a key in them; through TLS it cannot. For a server on this
        # machine no proxy is used.
        parts = urlsplit(self._url)
        may_use_proxy = parts.scheme == "https" and not _is_this_machine(parts.hostname or "")
        # A tool may be silent for long, and is stopped by its token: reading has no timeout of its own.
        timeout = httpx2.Timeout(_HTTP_TIMEOUT, read=None)
        async with (
            httpx2.AsyncClient(
                headers=self._headers, timeout=timeout, event_hooks={"response": [on_response]}, trust_env=may_use_proxy
            ) as http,
            streamable_http_client(self._url, http_client=http) as streams,
        ):
            yield streams

    def stderr_tail(self) -> str:
        return ""

    def wait_ended(self, timeout: float) -> bool:  # noqa: ARG002
        return True


class ServerConnection:
    """The current connection to a server."""

    def __init__(self, transport: Transport, mode: str, connect_timeout: float) -> None:
        self._transport = transport
        self._mode = mode
        self._connect_timeout = connect_timeout
        self._connection: MCPConnection | None = None

    async def connected(self) -> MCPConnection:
        """The connection; a new one if there was none or it has died. Concurrent callers share it."""
        connection = self._connection
        if connection is None or connection.is_dead:
            connection = self._connection = MCPConnection(self._transport, self._mode, self._connect_timeout)
        # A call that is stopped here returns; the connection is still made, for the next call.
        await asyncio.shield(connection.ready)
        return connection

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


class MCPConnection:
    """A task that keeps one connection open."""

    def __init__(self, transport: Transport, mode: str, connect_timeout: float) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._transport = transport
        self._mode = mode
        self._connect_timeout = connect_timeout
        self._client: Client | None = None
        self._end = asyncio.Event()
        self._has_ended = OneShotEvent()
        self.is_dead = False
        self.session_is_unknown = False
        self.ready: asyncio.Future[None] = loop.create_future()
        self.ready.add_done_callback(_retrieve_error)
        self._task = loop.create_task(self._hold())
        # Waiting calls fail at once; ending the connection may take longer.
        loop.call_later(connect_timeout, self._give_up)
        _open.add(self)

    @property
    def client(self) -> Client:
        assert self._client is not None
        return self._client

    async def _hold(self) -> None:
        """Connect, and stay connected until `close()`. A boundary: waiting calls get the error."""
        from mcp import Client

        try:
            async with contextlib.AsyncExitStack() as stack:
                transport = self._transport.open(self)
                self._client = await stack.enter_async_context(Client(transport, mode=self._mode, cache=None))
                if not self.ready.done():
                    self.ready.set_result(None)
                await self._end.wait()
        except asyncio.CancelledError:
            self._fail("the connection was closed")
            raise
        except Exception as error:  # noqa: BLE001  (the transports raise all kinds, and groups of them)
            self._fail(message_of(error))
        finally:
            self.is_dead = True
            self._has_ended.set()

    def _fail(self, why: str) -> None:
        if self.ready.done():
            _log.debug("the connection to %s has ended: %s", self._transport, why)
        else:
            self.ready.set_exception(ServerFailed(f"{self._transport} cannot be used: {why}{self._stderr_text()}"))

    def _give_up(self) -> None:
        if not self.ready.done():
            self._fail(f"it did not answer within {self._connect_timeout:g} s")
            self.is_dead = True
            self._task.cancel()

    def on_death(self) -> None:
        """The server has ended: the next call makes a new connection."""
        self.is_dead = True
        self._end.set()

    def lost(self, error: BaseException) -> ServerFailed:
        """The error for a call during which the connection was lost."""
        self.on_death()
        return ServerFailed(
            f"{self._transport} was lost during the call ({message_of(error)}): whether the call had an effect is "
            f"not known. The next call connects again.{self._stderr_text()}"
        )

    def _stderr_text(self) -> str:
        stderr = self._transport.stderr_tail()
        return f" Its stderr: {stderr}" if stderr else ""

    async def close(self) -> None:
        self._end_hold()
        await asyncio.wait([self._task])

    def _end_hold(self) -> None:
        self.on_death()
        if not self.ready.done():
            self._task.cancel()

    def start_closing(self) -> None:
        """Close it, from any thread, without waiting for that."""
        call_in_loop(self._loop, self._end_hold)

    def wait_closed(self, timeout: float) -> None:
        """Block until it is closed, or for *timeout* seconds."""
        if not self._loop.is_closed():
            self._has_ended.wait(timeout)


_open: Final[weakref.WeakSet[MCPConnection]] = weakref.WeakSet()  # each is kept by its task while it is connected


def _close_all() -> None:
    """At the end of the process, before the loops are closed: asyncio has to see the end of a server, or it warns."""
    end = time.monotonic() + _SECONDS_AT_EXIT
    connections = list(_open)
    for each in connections:
        each.start_closing()
    for each in connections:
        each.wait_closed(max(0.0, end - time.monotonic()))


atexit.register(_close_all)


def _is_this_machine(host: str) -> bool:
    host = normal_host(host)
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = literal(host)
    except ValueError:
        return False
    return address is not None and address.is_loopback


def message_of(error: BaseException) -> str:
    """The message of an error; of a group, that of its first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__


def _retrieve_error(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()  # mark it as retrieved, even if nothing waits any more
