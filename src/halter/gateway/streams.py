"""Server-sent events: the open streams, and the word to each of them, now and then, that it is alive."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

from aiohttp import HttpVersion11, web

from halter.gateway.feed import Dispatch, Feed, encode_event

if TYPE_CHECKING:
    from halter.events import Event
    from halter.session import Session
    from halter.stores.store import Store

__all__ = ["Streams"]

_log = logging.getLogger(__name__)
_BEAT: Final = 15.0  # seconds of silence, after which a stream says that it is alive
_HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # a proxy that collects would make a stream of it that comes in lumps
}


class Streams:
    """The event streams that are open."""

    dispatch: Dispatch  # from `begin()` on; for WebSockets as well

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: dict[object, _Stream] = {}  # by its connection
        self._beating: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    def begin(self) -> None:
        """Start the beat."""
        self.dispatch = Dispatch()
        self._beating = asyncio.create_task(self._beat())

    async def end(self) -> None:
        """Stop the beat."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait({self._beating})

    def lost(self, connection: object) -> None:
        """Let the stream end whose client has gone."""
        stream = self._open.get(connection)
        if stream is not None:
            stream.feed.end()

    async def send(self, request: web.Request, session: Session, after: int) -> web.StreamResponse:
        """Send the session's events until the session is closed, or the client has gone. That stops nothing.

        A boundary: what fails is logged. To answer it is too late; the client finds the stream cut, and may come again.
        """
        response = web.StreamResponse(headers=_HEADERS)
        is_chunked = request.version >= HttpVersion11
        if is_chunked:
            response.enable_chunked_encoding()
        pack = _pack_chunk if is_chunked else _pack
        feed = Feed(request, session, self._store, after, pack=pack, dispatch=self.dispatch)
        self._open[request.protocol] = _Stream(request, response, feed)
        try:
            await response.prepare(request)
            await response.write(b"retry: 1000\n\n")
            await feed.run()
        except ConnectionError:
            pass  # the client has gone
        except Exception:  # noqa: BLE001
            _log.exception("an event stream failed", extra={"session": session.id})
            if request.transport is not None:
                request.transport.close()
        finally:
            feed.end()
            self._open.pop(request.protocol, None)
        return response

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT)
            for stream in list(self._open.values()):
                await stream.beat()


class _Stream:
    """One response, as it is looked after."""

    __slots__ = ("_request", "_response", "feed")

    def __init__(self, request: web.Request, response: web.StreamResponse, feed: Feed) -> None:
        self._request = request
        self._response = response
        self.feed = feed

    async def beat(self) -> None:
        """Say something if nothing was said: a connection that nobody has closed, and that is none, is found by it."""
        transport = self._request.transport
        if self.feed.is_silent and transport is not None and not transport.get_write_buffer_size():
            with contextlib.suppress(ConnectionError):  # there is room for it, so this does not wait for a slow client
                await self._response.write(b": \n\n")
        self.feed.is_silent = True


def _pack(events: list[Event]) -> bytes:
    return b"".join(
        [b"id: %d\nevent: %b\ndata: %b\n\n" % (event.seq, event.kind.encode(), encode_event(event)) for event in events]
    )


def _pack_chunk(events: list[Event]) -> bytes:
    """The same, as a chunk of HTTP."""
    data = _pack(events)
    return b"%x\r\n%b\r\n" % (len(data), data)
