"""The events of a session as they come, from any number on: without a gap, and none of them twice.

The log first, then live. The listener is there before the log is read, so nothing falls in between; events have
numbers without gaps, so what comes twice is known by its number, and what is missing too. A listener that was too slow
reads on in the log, at its own pace, and holds up nobody: what waits for it in memory is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import web

from halter.events import Event, Missed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from halter.listener import Listener
    from halter.session import Session
    from halter.stores.store import Store

__all__ = ["MOST_WAITING", "Streams", "encode_event", "follow", "write_event"]

_AT_ONCE: Final = 200  # events of the log in one piece
MOST_WAITING: Final = 1_000  # events that one stream may be behind before it reads the log instead
_BEAT: Final = 15.0  # seconds of silence, after which a stream says that it is alive
_HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # a proxy that collects would make a stream of it that comes in lumps
}

_encode = msgspec.json.Encoder().encode


def encode_event(event: Event) -> bytes:
    """An event as JSON, in one line."""
    try:
        return _encode(event)
    except UnicodeEncodeError:
        # A file's name that is not UTF-8 has halves of pairs in it, which only JSON's escapes can carry.
        return json.dumps(msgspec.to_builtins(event)).encode()


def write_event(event: Event) -> bytes:
    """An event as a server-sent event."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.seq, event.kind.encode(), encode_event(event))


async def follow(listener: Listener, session_id: str, store: Store, after: int) -> AsyncGenerator[list[Event], None]:
    """The events with higher numbers than *after*, in pieces, until the listener ends: it must be there already."""
    last = after if not after or store.read(session_id, after - 1, limit=1) else 0  # else this log is another one
    while True:
        while piece := store.read(session_id, last, limit=_AT_ONCE):
            last = piece[-1].seq
            yield piece
            await asyncio.sleep(0)  # a long log is read in pieces, and others have their turn in between
        async for event in listener:
            fresh = [event]
            while (more := listener.get_nowait()) is not None:
                fresh.append(more)
            if fresh[0].seq <= last:
                fresh = [each for each in fresh if each.seq > last]
            if fresh and (fresh[-1].seq != last + len(fresh) or any(type(each.data) is Missed for each in fresh)):
                break  # some are missing: the log has them
            if fresh:
                last = fresh[-1].seq
                yield fresh
        else:
            return


class Streams:
    """The event streams that are open, and the word to each of them, now and then, that it is."""

    def __init__(self, store: Store) -> None:
        self.sent = 0  # events
        self._store = store
        self._open: dict[object, _Stream] = {}  # by its connection
        self._beating: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    def begin(self) -> None:
        """Start the beat."""
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
            stream.listener.end()

    async def send(self, request: web.Request, session: Session, after: int) -> web.StreamResponse:
        """Send the session's events until the session is closed, or the client has gone. That stops nothing."""
        response = web.StreamResponse(headers=_HEADERS)
        await response.prepare(request)
        with session.listen(MOST_WAITING) as listener:
            stream = _Stream(request, response, listener)
            self._open[request.protocol] = stream
            try:
                await response.write(b"retry: 1000\n\n")
                async with contextlib.aclosing(follow(listener, session.id, self._store, after)) as pieces:
                    async for piece in pieces:
                        stream.is_silent = False
                        self.sent += len(piece)
                        await response.write(b"".join([write_event(event) for event in piece]))
            except ConnectionError:
                pass  # the client has gone
            finally:
                self._open.pop(request.protocol, None)
        return response

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT)
            for stream in list(self._open.values()):
                await stream.beat()


class _Stream:
    """One response, as it is looked after."""

    __slots__ = ("_request", "_response", "is_silent", "listener")

    def __init__(self, request: web.Request, response: web.StreamResponse, listener: Listener) -> None:
        self._request = request
        self._response = response
        self.listener = listener
        self.is_silent = True

    async def beat(self) -> None:
        """Say something if nothing was said: a connection that nobody has closed, and that is none, is found by it."""
        transport = self._request.transport
        if self.is_silent and transport is not None and not transport.get_write_buffer_size():
            with contextlib.suppress(ConnectionError):  # there is room for it, so this does not wait for a slow client
                await self._response.write(b": \n\n")
        self.is_silent = True
