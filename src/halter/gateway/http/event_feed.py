"""Sends the events of a session to one client, from any number on, without gaps or repeats.

The log is sent first, then live events. The subscription starts before the log is read, so no event is missed in
between; events are numbered without gaps, so their numbers reveal repeats and gaps. A client that is too slow gets the
log at its own pace, and delays nobody: what is kept for it in memory is bounded.

Live events are sent for all clients together, in the next iteration of the loop, without waking a task. Sending each
event as it is written was slower with a thousand sessions: the same step done for one client after the other finds its
code in the processor's cache.
"""

from __future__ import annotations

import asyncio
import collections
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from halter.cancel.loop_bridge import run_in_thread
from halter.cancel.registration import call_in_loop
from halter.errors import StoreError
from halter.gateway.http.media import replace_media

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web

    from halter.events import Event
    from halter.gateway.sessions.placement import EventSource
    from halter.stores.base import Store

__all__ = ["EventFeed", "FeedDispatcher", "log_failure", "read_log"]

_log = logging.getLogger(__name__)
_EVENTS_PER_PIECE: Final = 200  # of the log
_EVENTS_PER_READ: Final = 20  # must divide _EVENTS_PER_PIECE
_EVENTS_PER_WRITE: Final = 16
_MAX_PENDING: Final = 1_000  # batches kept for a client before it is sent the log instead
_MAX_BUFFERED: Final = 65_536  # unsent bytes; a client with more is slow


def read_log(store: Store, session_id: str, after: int) -> list[Event]:
    """A piece of the log after event *after*, with media replaced by their URLs. Call it in a thread.

    A few events are read at a time, so that only their images and recordings are in memory at once.
    """
    events: list[Event] = []
    while len(events) < _EVENTS_PER_PIECE:
        some = store.read(session_id, after, limit=_EVENTS_PER_READ)
        events += map(replace_media, some)
        if len(some) < _EVENTS_PER_READ:
            break
        after = some[-1].seq
    return events


def log_failure(error: Exception, session_id: str) -> None:
    """Log why a feed has ended. One line if the store cannot be read: no defect of the gateway, and clients resume."""
    if isinstance(error, StoreError):
        _log.warning("an event stream has ended: %s", error, extra={"session": session_id})
    else:
        _log.error("an event stream has failed", exc_info=error, extra={"session": session_id})


class FeedDispatcher:
    """Sends the live events of all feeds of an event loop."""

    def __init__(self) -> None:
        self.sent = 0  # events
        self._loop = asyncio.get_running_loop()
        self._waiting: collections.deque[EventFeed] = collections.deque()
        self._will_send = False

    def add(self, feed: EventFeed) -> None:
        """Let a feed send in the next iteration of the loop. From any thread."""
        self._waiting.append(feed)
        if not self._will_send:  # read after the append: a scheduled run finds it
            self._will_send = True
            call_in_loop(self._loop, self._send)

    def _send(self) -> None:
        """Let all feeds send. A boundary: an error ends only the feed that it belongs to."""
        self._will_send = False
        while self._waiting:
            feed = self._waiting.popleft()
            try:
                feed.send()
            except Exception as error:  # noqa: BLE001
                feed.fail(error)


class EventFeed:
    """The events for one client. *pack* encodes them for its connection."""

    def __init__(
        self,
        request: web.Request,
        session: EventSource,
        store: Store,
        after: int,
        *,
        pack: Callable[[list[Event]], bytes],
        dispatcher: FeedDispatcher,
    ) -> None:
        self.is_silent = True  # reset by the heartbeat
        self._request = request
        self._session = session
        self._store = store
        self._pack = pack
        self._dispatcher = dispatcher
        self._last = after
        self._pending: collections.deque[list[Event]] = collections.deque(maxlen=_MAX_PENDING)
        self._first: list[Event] = []
        self._is_kept = False  # live events are kept; else they are dropped, as the log will be read
        self._is_live = False  # live events are sent
        self._is_slow = False  # as of the last write
        self._is_closed = False
        self._failure: Exception | None = None
        self._wake = asyncio.Event()  # wakes run() while it is live
        self._listener = session.subscribe(on_events=self._on_events)

    def end(self) -> None:
        """End `run()`. From any thread."""
        self._listener.close()

    async def load(self) -> None:
        """Read the start of the log. Raises `StoreError` before anything is sent, if it cannot be read."""
        try:
            if self._last > self._session.last_event and not await self._is_in_log():
                self._last = 0  # the number belongs to a deleted session of the same name
            self._first = await self._read()
        except BaseException:
            self.end()
            raise

    async def _is_in_log(self) -> bool:
        """Whether the log has the client's last event, even if the session does not have it yet.

        In a cluster, a commit can be in the log, and reach clients, before its owner has received the answer.
        """
        read = partial(self._store.read, self._session.id, self._last - 1, limit=1)
        return bool(await run_in_thread(read))

    async def run(self) -> None:
        """Send events until the session is closed, or `end()`. Raises `ConnectionError` if the client disconnects."""
        with self._listener:
            piece, self._first = self._first, []
            await self._send_log(piece)
            while not self._is_closed:
                await self._send_live()
                await self._send_log(await self._read_next())
            await self._send_log(await self._read_next())  # the last events may be in the log only

    async def _send_log(self, piece: list[Event]) -> None:
        """Send the log from *piece* on, to its end as of the last read."""
        while piece:
            sent = self._send_some(piece)
            while sent < len(piece):
                await self._request.writer.drain()
                sent += self._send_some(piece[sent:])
            if len(piece) < _EVENTS_PER_PIECE:
                return
            piece = await self._read_next()

    async def _read_next(self) -> list[Event]:
        """The next piece of the log, once the client has received the previous one."""
        self._is_kept = False
        await self._request.writer.drain()
        return await self._read()

    async def _read(self) -> list[Event]:
        """A piece of the log. Live events are kept from before the read on, so that none is missed."""
        self._pending.clear()
        self._is_kept = True
        return await run_in_thread(lambda: read_log(self._store, self._session.id, self._last))

    async def _send_live(self) -> None:
        """Send live events until the client is too slow, an event is missing, or the session is closed."""
        self._wake.clear()
        self._is_live = True
        self._is_slow = False  # the log was read after everything had been sent
        try:
            self.send()  # what came while the log was read
            await self._wake.wait()
        finally:
            self._is_live = False
        if self._failure is not None:
            raise self._failure

    def _on_events(self, events: list[Event]) -> None:
        """Called with live events, in any thread; an empty list is the end."""
        if not events:
            self._is_closed = True
        elif self._is_kept:
            self._pending.append(events)
        if self._is_live:
            self._dispatcher.add(self)

    def send(self) -> None:
        """Send pending events, if the feed is live. In the loop."""
        if not self._is_live:
            return
        fresh: list[Event] = []
        while self._pending:
            fresh += self._pending.popleft()
        if fresh and fresh[0].seq <= self._last:
            fresh = [each for each in fresh if each.seq > self._last]
        is_whole = not fresh or (fresh[0].seq == self._last + 1 and fresh[-1].seq == self._last + len(fresh))
        if fresh and is_whole:
            self._send_some(fresh)
        if self._is_closed or not is_whole or self._is_slow:
            self._wake.set()

    def _send_some(self, events: list[Event]) -> int:
        """Send events until the client is slow; returns how many."""
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError
        sent = 0
        self._is_slow = False
        while sent < len(events) and not self._is_slow:
            some = events[sent : sent + _EVENTS_PER_WRITE]
            # Not `StreamResponse.write()`, which costs a quarter more CPU (bench/servers.py) and would need a task.
            transport.write(self._pack(some))
            self._last = some[-1].seq
            self._is_slow = transport.get_write_buffer_size() > _MAX_BUFFERED
            sent += len(some)
        self.is_silent = False
        self._dispatcher.sent += sent
        return sent

    def fail(self, error: Exception) -> None:
        """Let `run()` raise it."""
        self._failure = error
        self._wake.set()
