"""A store for the life of the process: for tests, for scripts, and for sessions that nobody wants back."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from halter.errors import LeaseLost, SessionOwned
from halter.events import (
    MessageAccepted,
    MessageApplied,
    MessageEdited,
    MessageHeld,
    MessageReleased,
    MessageRemoved,
    kind_of,
)
from halter.stores.store import Lease, SessionInfo, Waiting

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from halter.events import Event


class MemoryStore:
    """Keeps everything until it is dropped. What is in it, sessions of one process can share by taking turns."""

    def __init__(self) -> None:
        self._sessions: dict[str, _Kept] = {}

    def acquire(self, session: str) -> Lease:
        """Own *session* from now on."""
        kept = self._sessions.setdefault(session, _Kept())
        generation = next(kept.generations)
        # setdefault is indivisible: of two that come together, one finds the other's.
        if kept.owner.setdefault("generation", generation) != generation:
            msg = (
                f"session {session!r} is open already, in this process; use that object, or close() it before you "
                "open the session again"
            )
            raise SessionOwned(msg)
        return Lease(session, generation)

    def release(self, lease: Lease) -> None:
        """Own it no longer."""
        kept = self._sessions.get(lease.session)
        if kept is not None and kept.owner.get("generation") == lease.generation:
            kept.owner.clear()

    def append(self, lease: Lease, events: Sequence[Event]) -> None:
        """Write *events* to the log."""
        kept = self._owned(lease)
        # One operation, so all or none, and in one piece. Where they came to lie is seen afterwards.
        kept.log.extend(events)
        for event, place in zip(events, _places(kept.log, events), strict=True):
            event.seq = place + 1

    def erase(self, lease: Lease) -> None:
        """Forget the session's log and its inbox."""
        self._owned(lease).log.clear()

    def _owned(self, lease: Lease) -> _Kept:
        kept = self._sessions.get(lease.session)
        if kept is None or kept.owner.get("generation") != lease.generation:
            msg = f"session {lease.session!r} was closed, or taken over by another: nothing was written"
            raise LeaseLost(msg)
        return kept

    def read(
        self, session: str, after: int = 0, *, limit: int | None = None, without: Collection[str] = ()
    ) -> list[Event]:
        """The events with higher numbers than *after*."""
        kept = self._sessions.get(session)
        found = _later(kept.log, max(after, 0)) if kept is not None else iter(())
        return list(itertools.islice((event for event in found if kind_of(event.data) not in without), limit))

    def inbox(self, session: str) -> list[Waiting]:
        """The messages that wait."""
        waiting: dict[str, Waiting] = {}
        for event in self.read(session):
            data = event.data
            if isinstance(data, MessageAccepted):
                waiting[data.id] = Waiting(data.id, data.mode, data.message, note=data.note, accepted_at=event.time)
            elif isinstance(data, (MessageApplied, MessageRemoved)):
                waiting.pop(data.id, None)
            elif isinstance(data, (MessageEdited, MessageHeld, MessageReleased)) and data.id in waiting:
                old = waiting[data.id]
                message = data.message if isinstance(data, MessageEdited) else old.message
                held = old.held if isinstance(data, MessageEdited) else isinstance(data, MessageHeld)
                waiting[data.id] = Waiting(old.id, old.mode, message, held, old.note, old.accepted_at)
        return list(waiting.values())

    def sessions(self) -> list[SessionInfo]:
        """All sessions, the latest used first."""
        found = [
            SessionInfo(name, log[0].time, log[-1].time, len(log), len(self.inbox(name)))
            for name in list(self._sessions)
            if (log := self.read(name))
        ]
        return sorted(found, key=lambda info: info.updated_at, reverse=True)

    def close(self) -> None:
        """Release every lease."""
        for kept in list(self._sessions.values()):
            kept.owner.clear()


class _Kept:
    """One session. Each change of it is one operation of a built-in type, so it needs no lock."""

    __slots__ = ("generations", "log", "owner")

    def __init__(self) -> None:
        self.generations = itertools.count(1)
        self.owner: dict[str, int] = {}
        self.log: list[Event] = []


def _later(log: list[Event], after: int) -> Iterator[Event]:
    # An event's number is its place. Each reader writes it down, for its writer may have been interrupted before that.
    for number, event in enumerate(log[after:], after + 1):
        event.seq = number
        yield event


def _places(log: list[Event], batch: Sequence[Event]) -> range:
    """Where *batch* lies: at the end, unless others have written meanwhile."""
    if not batch:
        return range(0)
    start = len(log) - 1
    while log[start] is not batch[0]:
        start -= 1
    return range(start, start + len(batch))
