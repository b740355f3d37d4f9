"""The events of sessions that other nodes have, as the servers publish them once they are stored.

A published message may be lost, as any message of core NATS. Events are numbered, so a subscriber that gets a later one
finds the gap and reads the log. If no later one comes, subscribers are made to read the log: shortly after the
subscription, as it takes a moment until all servers have it; after each reconnection; after each election of the
stream's leader, which publishes; and when nothing has come for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Final

import nats.errors

from halter.cancel.loop_bridge import end_tasks, run_in_thread
from halter.cancel.registration import call_in_loop
from halter.events import Event, Missed
from halter.gateway.http.errors import Problem
from halter.gateway.sessions.live_session import owner_of
from halter.stores.nats.commits import events_of, is_merged, is_part, last_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from halter.gateway.http.keys import Key
    from halter.stores.nats.store import NATSStore

__all__ = ["RemoteLog", "RemoteLogs"]

_log = logging.getLogger(__name__)
_SOON: Final = 0.5  # seconds until every server has a subscription
_SILENCE: Final = 10.0  # seconds without a message after which the log is read
_BEYOND: Final = 1 << 62  # the number of an event that no log has


class RemoteLogs:
    """The logs that clients of this node follow. Everything here runs on the loop of the connection."""

    def __init__(self, client: Client, store: NATSStore) -> None:
        self._client = client
        self._store = store
        self._open: dict[str, RemoteLog] = {}
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to have logs read again where messages may be lost."""
        stream = self._store.names.stream
        await self._client.subscribe(f"$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED.{stream}", cb=self._on_leader)
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """End all subscriptions."""
        if self._watching is not None:
            await end_tasks([self._watching])
        for log in list(self._open.values()):
            log.end()

    async def open(self, session_id: str, key: Key) -> RemoteLog:
        """The log of a session. Raises `Problem` if there is none, or if it is not one that *key* may use."""
        first = await run_in_thread(lambda: self._store.read(session_id, limit=1))
        if not first or "/" in session_id or not key.may_use(owner_of(first)):
            raise Problem(404, f"there is no session {session_id!r}", field="session", kind="no-session")
        log = self._open.get(session_id)
        if log is None:
            log = self._open[session_id] = RemoteLog(session_id, asyncio.get_running_loop(), self._forget)
        log.users += 1
        try:
            await log.follow(self._client, self._store.names.stored_log(session_id))
            log.last_event = await run_in_thread(lambda: self._store.last_number(session_id))
        except BaseException:
            log.release()
            raise
        return log

    def request_reread(self) -> None:
        """Have the subscribers of all logs read them again: messages may be lost."""
        for log in list(self._open.values()):
            log.request_reread()

    def _forget(self, log: RemoteLog) -> None:
        if self._open.get(log.id) is log:
            del self._open[log.id]

    async def _on_leader(self, _message: Msg) -> None:
        self.request_reread()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_SILENCE)
            until = time.monotonic() - _SILENCE
            for log in list(self._open.values()):
                if log.last_message_at < until:
                    log.request_reread()


class RemoteLog:
    """An `EventSource`: the log of a session that another node has."""

    def __init__(self, session_id: str, loop: asyncio.AbstractEventLoop, forget: Callable[[RemoteLog], None]) -> None:
        self.id = session_id
        self.last_event = 0
        self.users = 0
        self.last_message_at = time.monotonic()
        self._loop = loop
        self._forget = forget
        self._feeds: set[_RemoteFeed] = set()
        self._has_subscribed: asyncio.Task[Subscription] | None = None
        self._has_ended = False

    async def follow(self, client: Client, subject: str) -> None:
        """Subscribe, once for all who follow it."""
        if self._has_subscribed is None:
            self._has_subscribed = asyncio.create_task(self._subscribe(client, subject))
            self._loop.call_later(_SOON, self.request_reread)
        try:
            await asyncio.shield(self._has_subscribed)
        except (nats.errors.Error, OSError, TimeoutError) as error:
            msg = "the cluster cannot be reached: events cannot be followed"
            raise Problem(503, msg, kind="cluster", retry_after=1.0) from error

    async def _subscribe(self, client: Client, subject: str) -> Subscription:
        subscription = await client.subscribe(subject, cb=self._on_message, pending_msgs_limit=0, pending_bytes_limit=0)
        await client.flush(2)
        return subscription

    def subscribe(self, *, on_events: Callable[[list[Event]], object]) -> _RemoteFeed:
        """Have a function called with each batch of events. It has to be quick."""
        feed = _RemoteFeed(self, on_events)
        self._feeds.add(feed)
        if self._has_ended:  # while `RemoteLogs.open()` waited for the servers
            feed.end()
        return feed

    def remove(self, feed: _RemoteFeed) -> None:
        """Call a feed no more. From any thread."""
        call_in_loop(self._loop, lambda: self._feeds.discard(feed))

    def release(self) -> None:
        """Count one user less; the last one ends it."""
        self.users -= 1
        if not self.users:
            self.end()

    def end(self) -> None:
        """End all feeds, and unsubscribe."""
        self._has_ended = True
        self._forget(self)
        for feed in list(self._feeds):
            feed.end()
        self._feeds.clear()
        if self._has_subscribed is not None:
            self._has_subscribed.add_done_callback(_unsubscribe)
            self._has_subscribed = None

    def request_reread(self) -> None:
        """Publish an event far beyond the log: subscribers find a gap, and read the log."""
        self.last_message_at = time.monotonic()
        self._publish([Event(_BEYOND, 0.0, self.id, "", Missed(0, 0))])

    async def _on_message(self, message: Msg) -> None:
        """Publish a stored commit. A boundary: if it cannot be decoded, subscribers read the log instead."""
        self.last_message_at = time.monotonic()
        headers = message.headers or {}
        try:
            if is_merged(headers):
                pass  # nothing new
            elif last_of(headers) == 0:
                self.end()  # it was deleted
            elif is_part(headers)[0]:
                if is_part(headers)[1]:
                    self.request_reread()
            elif events := events_of(self.id, message.data):  # an empty list would mean the end
                self._publish(events)
        except Exception:  # noqa: BLE001
            _log.exception("a stored commit could not be read", extra={"session": self.id})
            self.request_reread()

    def _publish(self, events: list[Event]) -> None:
        for feed in list(self._feeds):
            feed.on_events(events)


class _RemoteFeed:
    """A subscription to a `RemoteLog`."""

    def __init__(self, log: RemoteLog, on_events: Callable[[list[Event]], object]) -> None:
        self._log = log
        self.on_events = on_events
        self._has_ended = False

    def close(self) -> None:
        """Unsubscribe. From any thread."""
        self.end()
        self._log.remove(self)

    def end(self) -> None:
        """Report the end, once."""
        if not self._has_ended:
            self._has_ended = True
            self.on_events([])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _unsubscribe(done: asyncio.Task[Subscription]) -> None:
    if done.cancelled() or done.exception() is not None:
        return
    subscription = done.result()

    async def unsubscribe() -> None:
        with contextlib.suppress(nats.errors.Error, OSError):  # the connection is closed
            await subscription.unsubscribe()

    task = asyncio.ensure_future(unsubscribe())
    _ending.add(task)
    task.add_done_callback(_ending.discard)


_ending: set[asyncio.Task[None]] = set()
