"""A subscription to a session's events. A slow subscriber delays nobody.

Each subscription has its own queue. When the queue is full, further events are left out, and the subscriber gets
their numbers: the log has them.

One thread puts (the writer) and one reads. On overflow the writer stores the number of the event and then sets the
flag; the reader clears the flag and then reads the number. So in any order, the reader learns of every missed event.
"""

from __future__ import annotations

import collections
import logging
from typing import TYPE_CHECKING

from halter.cancel.one_shot_event import OneShotEvent
from halter.events import Event, Missed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Self

    from halter.session.session import Session

__all__ = ["Subscription", "with_missed"]

_log = logging.getLogger(__name__)


class Subscription:
    """Iterate over it with `async for`, or call `get()` in a thread. It ends with the session, or by `close()`.

    With *on_events* nothing is queued: the function is called with each batch of events once it is durable, in the
    writer's thread, and with an empty list at the end. It has to be quick.
    """

    __slots__ = (
        "_events",
        "_has_ended",
        "_has_missed",
        "_last",
        "_last_missed",
        "_max_queued",
        "_on_events",
        "_only",
        "_read",
        "_unsubscribe",
        "_wake",
    )

    def __init__(
        self,
        unsubscribe: Callable[[Subscription], None],
        after: int,
        max_queued: int,
        only: Collection[type] = (),
        on_events: Callable[[list[Event]], object] | None = None,
    ) -> None:
        self._unsubscribe = unsubscribe
        self._last = after  # the number of the newest event that it was given
        self._read = after  # the number of the last event that was read, or reported as missed
        self._max_queued = max_queued
        self._only = frozenset(only)
        self._on_events = on_events
        self._events: collections.deque[Event] | None = collections.deque() if on_events is None else None
        self._last_missed = after
        self._has_missed = False
        self._has_ended = False
        self._wake: OneShotEvent | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Unsubscribe and end."""
        self._unsubscribe(self)
        self.end()

    def end(self) -> None:
        """End after the events that are already queued."""
        if not self._has_ended:
            self._has_ended = True
            self._call([])
            self._notify()

    def put(self, events: list[Event]) -> None:
        """Add events: by the writer, one batch after the other. Never waits, and leaves out what it has already."""
        last = events[-1].seq
        if events[0].seq <= self._last:
            events = [event for event in events if event.seq > self._last]
        if self._only:
            events = [event for event in events if type(event.data) in self._only]
        if events and not self._has_ended:
            if self._events is None:
                self._call(events)
            else:
                self._queue(self._events, events)
        self._last = last

    def _queue(self, queue: collections.deque[Event], events: list[Event]) -> None:
        for event in events:
            if not self._has_missed and len(queue) < self._max_queued:
                queue.append(event)
            else:
                self._last_missed = event.seq
                self._has_missed = True
        self._notify()

    def _call(self, events: list[Event]) -> None:
        """Call the subscriber. A boundary: its error must not keep the writer from the others."""
        if self._on_events is not None:
            try:
                self._on_events(events)
            except Exception:  # noqa: BLE001
                _log.exception("a subscriber's function failed")

    def _notify(self) -> None:
        wake = self._wake
        if wake is not None:
            wake.set()

    def get_nowait(self) -> Event | None:
        """The next event, or None if there is none yet."""
        has_missed = self._has_missed  # read first: once it is set, nothing is queued until it is cleared
        if self._events:
            event = self._events.popleft()
            self._read = event.seq
            return event
        if not has_missed:
            return None
        self._has_missed = False
        first, last = self._read + 1, self._last_missed
        if last < first:
            return None
        self._read = last
        return Event(last, 0.0, "", "", Missed(first, last))

    def get(self, timeout: float | None = None) -> Event | None:
        """Wait for the next event in this thread; None if the subscription has ended or the timeout passed."""
        while True:
            self._wake = wake = OneShotEvent()
            has_ended = self._has_ended  # read first: events that came before the end are still returned
            event = self.get_nowait()
            if event is not None or has_ended:
                return event
            if not wake.wait(timeout):
                return None

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        while True:
            self._wake = wake = OneShotEvent()
            has_ended = self._has_ended
            event = self.get_nowait()
            if event is not None:
                return event
            if has_ended:
                raise StopAsyncIteration
            await wake.wait_async()


def with_missed(session: Session, event: Event) -> list[Event]:
    """The event itself, or instead of a `subscription.missed` the events it names. Reads the store for those."""
    missed = event.data
    if not isinstance(missed, Missed):
        return [event]
    return [each for each in session.events(missed.first - 1) if each.seq <= missed.last]
