"""The events of a session on their way to one client: from any number on, without a gap, and none of them twice.

The log first, then live. The listener is there before the log is read, so nothing falls in between; events have
numbers without gaps, so what comes twice is known by its number, and what is missing too. A client that was too slow
is sent the log, at its own pace, and holds up nobody: what waits for it in memory is bounded.

All that is there is sent in one piece. To send each event in the moment in which it is written, without a task that
wakes up for it, was tried, and with a thousand sessions it was slower: the same work, done for one after the other,
finds its code in the processor's cache; all of the work, done for one, does not.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Final

import msgspec

from halter.events import Event, Missed
from halter.gateway.media import tell_media

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web

    from halter.session import Session
    from halter.stores.store import Store

__all__ = ["Feed", "encode_event"]

_AT_ONCE: Final = 200  # events of the log in one piece
_MOST_WAITING: Final = 1_000  # events that a client may be behind before it is sent the log instead

_encode = msgspec.json.Encoder().encode


def encode_event(event: Event) -> bytes:
    """An event as JSON, in one line."""
    event = tell_media(event)
    try:
        return _encode(event)
    except UnicodeEncodeError:
        # A file's name that is not UTF-8 has halves of pairs in it, which only JSON's escapes can carry.
        return json.dumps(msgspec.to_builtins(event)).encode()


class Feed:
    """One client's. *pack* makes of events what is sent over its connection, and *count* is told how many that were."""

    def __init__(
        self,
        request: web.Request,
        session: Session,
        store: Store,
        after: int,
        *,
        pack: Callable[[list[Event]], bytes],
        count: Callable[[int], object],
    ) -> None:
        self.is_silent = True  # set by whoever wants to know
        self._request = request
        self._session = session.id
        self._store = store
        self._pack = pack
        self._count = count
        # A number that the log does not have is of another log: of a session that was erased.
        self._last = after if not after or store.read(session.id, after - 1, limit=1) else 0
        self._listener = session.listen(_MOST_WAITING)

    def end(self) -> None:
        """Let `run()` come to its end. From any thread."""
        self._listener.close()

    async def run(self) -> None:
        """Send events until the session is closed, or `end()`. Raises `ConnectionError` if the client has gone."""
        with self._listener:
            while not await self._send_news():
                pass

    async def _send_news(self) -> bool:
        """Send what is in the log, and then what comes; False if some of that is missing, and the log has it."""
        while piece := self._store.read(self._session, self._last, limit=_AT_ONCE):
            await self._send(piece)
            await asyncio.sleep(0)  # a long log is read in pieces, and others have their turn in between
        async for event in self._listener:
            fresh = [event]
            while (more := self._listener.get_nowait()) is not None:
                fresh.append(more)
            fresh = [each for each in fresh if each.seq > self._last]
            if fresh and (fresh[-1].seq != self._last + len(fresh) or any(type(each.data) is Missed for each in fresh)):
                return False
            if fresh:
                await self._send(fresh)
        return True

    async def _send(self, events: list[Event]) -> None:
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError
        transport.write(self._pack(events))
        self._last = events[-1].seq
        self.is_silent = False
        self._count(len(events))
        await self._request.writer.drain()
