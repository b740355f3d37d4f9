"""The events of a session on their way to one client: from any number on, without a gap, and none of them twice.

The log first, then live. The listener is there before the log is read, so nothing falls in between; events have
numbers without gaps, so what comes twice is known by its number, and what is missing too. A client that is too slow is
sent the log, at its own pace, and holds up nobody: what waits for it in memory is bounded.

What is live is sent for all clients in one go, in the loop's next turn, and no task wakes up for it. To send it in the
very moment in which it is written was tried, and with a thousand sessions it was slower: the same work, done for one
after the other, finds its code in the processor's cache; all of the work, done for one, does not.
"""

from __future__ import annotations

import asyncio
import collections
import json
from typing import TYPE_CHECKING, Final

import msgspec

from halter.cancel.token import call_in_loop
from halter.gateway.media import tell_media

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web

    from halter.events import Event
    from halter.session import Session
    from halter.stores.store import Store

__all__ = ["Dispatch", "Feed", "encode_event"]

_AT_ONCE: Final = 200  # events of the log in one piece
_MOST_WAITING: Final = 1_000  # pieces of news that are kept for a client before it is sent the log instead
_MOST_BUFFERED: Final = 65_536  # bytes on their way to a client, from which on it is slow

_encode = msgspec.json.Encoder().encode


def encode_event(event: Event) -> bytes:
    """An event as JSON, in one line."""
    event = tell_media(event)
    try:
        return _encode(event)
    except UnicodeEncodeError:
        # A file's name that is not UTF-8 has halves of pairs in it, which only JSON's escapes can carry.
        return json.dumps(msgspec.to_builtins(event)).encode()


class Dispatch:
    """Sends what the feeds of an event loop have."""

    def __init__(self) -> None:
        self.sent = 0  # events
        self._loop = asyncio.get_running_loop()
        self._waiting: collections.deque[Feed] = collections.deque()
        self._will_send = False

    def add(self, feed: Feed) -> None:
        """Have it send what it has in the loop's next turn. From any thread."""
        self._waiting.append(feed)
        if not self._will_send:  # asked after it was added: the sending that is to come finds it
            self._will_send = True
            call_in_loop(self._loop, self._send)

    def _send(self) -> None:
        """Have all of them send. A boundary: what fails is the matter of one."""
        self._will_send = False
        while self._waiting:
            feed = self._waiting.popleft()
            try:
                feed.send()
            except Exception as error:  # noqa: BLE001
                feed.fail(error)


class Feed:
    """One client's. *pack* makes of events what is sent over its connection."""

    def __init__(
        self,
        request: web.Request,
        session: Session,
        store: Store,
        after: int,
        *,
        pack: Callable[[list[Event]], bytes],
        dispatch: Dispatch,
    ) -> None:
        self.is_silent = True  # set by whoever wants to know
        self._request = request
        self._session = session.id
        self._store = store
        self._pack = pack
        self._dispatch = dispatch
        # A number that the log does not have is of another log: of a session that was erased.
        self._last = after if not after or store.read(session.id, after - 1, limit=1) else 0
        self._news: collections.deque[list[Event]] = collections.deque(maxlen=_MOST_WAITING)
        self._is_live = False  # what comes is sent; else it is left out, for the log is being sent, which has it
        self._is_over = False
        self._failure: Exception | None = None
        self._bell = asyncio.Event()  # for run(), while it is live
        self._listener = session.listen()
        self._listener.hear = self._hear

    def end(self) -> None:
        """Let `run()` come to its end. From any thread."""
        self._listener.close()

    async def run(self) -> None:
        """Send events until the session is closed, or `end()`. Raises `ConnectionError` if the client has gone."""
        with self._listener:
            await self._send_log()
            while not self._is_over:
                await self._be_live()
                await self._send_log()  # also when it is over: the last of it may be there, and nowhere else

    async def _send_log(self) -> None:
        while piece := self._store.read(self._session, self._last, limit=_AT_ONCE):
            self._send(piece)
            await self._request.writer.drain()
            await asyncio.sleep(0)  # a long log is read in pieces, and others have their turn in between

    async def _be_live(self) -> None:
        """Let what comes be sent as it comes, until that is not possible, or it is over."""
        self._bell.clear()
        self._is_live = True
        try:
            await self._bell.wait()
        finally:
            self._is_live = False
        if self._failure is not None:
            raise self._failure
        await self._request.writer.drain()

    def _hear(self, events: list[Event]) -> None:
        """Hear of what happens, in any thread; of the end, as of nothing."""
        self._news.append(events)
        self._dispatch.add(self)

    def send(self) -> None:
        """Send what has come, if it is live: in the loop."""
        fresh: list[Event] = []
        while self._news:
            events = self._news.popleft()
            self._is_over = self._is_over or not events
            fresh += events
        if self._is_live:
            if fresh and fresh[0].seq <= self._last:
                fresh = [each for each in fresh if each.seq > self._last]
            is_whole = not fresh or (fresh[0].seq == self._last + 1 and fresh[-1].seq == self._last + len(fresh))
            if fresh and is_whole:
                self._send(fresh)
            if self._is_over or not is_whole or self._is_slow():
                self._bell.set()

    def fail(self, error: Exception) -> None:
        """Let `run()` raise it."""
        self._failure = error
        self._bell.set()

    def _send(self, events: list[Event]) -> None:
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError
        transport.write(self._pack(events))
        self._last = events[-1].seq
        self.is_silent = False
        self._dispatch.sent += len(events)

    def _is_slow(self) -> bool:
        transport = self._request.transport
        return transport is not None and transport.get_write_buffer_size() > _MOST_BUFFERED
