"""Server-sent events: the open streams and their heartbeat."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from aiohttp import HttpVersion11, web

from halter.gateway.http.event_feed import EventFeed, FeedDispatcher, log_failure
from halter.gateway.http.media import replace_media
from halter.views.event_json import encode_event

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halter.events import Event
    from halter.gateway.http.connections import Connections
    from halter.gateway.http.keys import Key, Keys
    from halter.gateway.sessions.placement import EventSource
    from halter.stores.base import Store

__all__ = ["STREAM_HEADERS", "EventStreams"]

_HEARTBEAT: Final = 15.0  # seconds of silence before a heartbeat
_FRAME: Final = b"id: %d\nevent: %b\ndata: %b\n\n"
STREAM_HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # proxies must not buffer it
}


class EventStreams:
    """The open event streams."""

    dispatcher: FeedDispatcher  # from `begin()` on; WebSockets use it too

    def __init__(self, store: Store, connections: Connections, keys: Keys) -> None:
        self.keys = keys
        self._store = store
        self._connections = connections
        self._open: set[_OpenStream] = set()
        self._feeds: dict[EventFeed, Key] = {}  # those of WebSockets, too
        self._heartbeat: asyncio.Task[None] | None = None
        self._stops: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._open)

    def begin(self) -> None:
        """Start the heartbeat."""
        self.dispatcher = FeedDispatcher()
        self._heartbeat = asyncio.create_task(self._send_heartbeats())

    async def end(self) -> None:
        """Stop the heartbeat, and wait no longer for the ends of turns."""
        tasks = {*self._stops, *([self._heartbeat] if self._heartbeat is not None else [])}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    @contextlib.contextmanager
    def end_if_revoked(self, feed: EventFeed, key: Key) -> Iterator[None]:
        """End a feed that is open in this block, at a heartbeat, if its key is not valid any more."""
        self._feeds[feed] = key
        try:
            yield
        finally:
            del self._feeds[feed]

    def keep(self, stop: asyncio.Task[None]) -> None:
        """Keep the task of a stop, which outlives its WebSocket, so that it holds up no lease of the session."""
        self._stops.add(stop)
        stop.add_done_callback(self._stops.discard)

    async def send(self, request: web.Request, session: EventSource, key: Key, after: int) -> web.StreamResponse:
        """Send the session's events until it is closed, the client disconnects or its key is revoked. Stops no turn.

        A boundary: an error is logged, and the connection is closed, as the response has begun; the client may resume.
        """
        response = web.StreamResponse(headers=STREAM_HEADERS | {"Halter-Last-Event": str(session.last_event)})
        is_chunked = request.version >= HttpVersion11
        if is_chunked:
            response.enable_chunked_encoding()
        pack = _pack_chunk if is_chunked else _pack
        feed = EventFeed(request, session, self._store, after, pack=pack, dispatcher=self.dispatcher)
        await feed.load()
        stream = _OpenStream(request, response, feed)
        self._open.add(stream)
        try:
            with self._connections.watch(request.protocol, feed.end), self.end_if_revoked(feed, key):
                await response.prepare(request)
                await response.write(b"retry: 1000\n\n")
                await feed.run()
        except ConnectionError:
            pass  # the client has disconnected
        except Exception as error:  # noqa: BLE001
            log_failure(error, session.id)
            if request.transport is not None:
                request.transport.close()
        finally:
            feed.end()
            self._open.discard(stream)
        return response

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(_HEARTBEAT)
            valid = self.keys.valid()  # looks at the file once for all feeds
            for feed, key in self._feeds.items():
                if valid.get(key.id) != key:
                    feed.end()
            for stream in list(self._open):
                await stream.send_heartbeat()


class _OpenStream:
    """One response and its feed."""

    __slots__ = ("_request", "_response", "feed")

    def __init__(self, request: web.Request, response: web.StreamResponse, feed: EventFeed) -> None:
        self._request = request
        self._response = response
        self.feed = feed

    async def send_heartbeat(self) -> None:
        """Send a comment if nothing was sent: that finds connections that are dead and were never closed."""
        transport = self._request.transport
        if self.feed.is_silent and transport is not None and not transport.get_write_buffer_size():
            with contextlib.suppress(ConnectionError):  # the buffer is empty, so this does not wait
                await self._response.write(b": \n\n")
        self.feed.is_silent = True


def _pack(events: list[Event]) -> bytes:
    return b"".join([_FRAME % (each.seq, each.kind.encode(), encode_event(replace_media(each))) for each in events])


def _pack_chunk(events: list[Event]) -> bytes:
    """The same, as an HTTP chunk."""
    data = _pack(events)
    return b"%x\r\n%b\r\n" % (len(data), data)
