"""A store in memory: for tests, for scripts, and for sessions that need not outlive the process."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from halter.cancel.token import NEVER
from halter.events import kind_of
from halter.stores.base import Lease, SessionInfo
from halter.stores.refusals import lease_lost, open_here, out_of_order

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from halter.cancel.token import CancellationToken
    from halter.events import Event
    from halter.stores.base import Write


class MemoryStore:
    """Stores sessions in memory, for as long as this object exists."""

    blocks = False

    def __init__(self) -> None:
        self._logs: dict[str, _Log] = {}

    def acquire(self, session: str) -> Lease:
        """Take the lease of *session*."""
        log = self._logs.setdefault(session, _Log())
        if log.is_owned:
            raise open_here(session)
        lease = Lease(session, log.generation + 1)
        log.generation = lease.generation
        log.lease = weakref.ref(lease)
        return lease

    def release(self, lease: Lease) -> None:
        """Give a lease back."""
        log = self._logs.get(lease.session)
        if log is not None and log.generation == lease.generation:
            log.lease = None

    def expiry(self, lease: Lease) -> CancellationToken:  # noqa: ARG002
        """A lease does not end by time."""
        return NEVER

    def commit(self, writes: Sequence[Write]) -> None:
        """Append the events of several sessions: all of them or none."""
        last: dict[str, int] = {}
        for lease, events, _ in writes:
            before = last.get(lease.session, len(self._owned(lease).events))
            if (events[0].seq, events[-1].seq) != (before + 1, before + len(events)):
                raise out_of_order(lease, events[0].seq, before)
            last[lease.session] = events[-1].seq
        for lease, events, waiting in writes:
            log = self._logs[lease.session]
            log.events.extend(events)
            log.waiting = waiting

    def erase(self, lease: Lease) -> None:
        """Delete the session's log."""
        log = self._owned(lease)
        log.events = []
        log.waiting = 0

    def read(
        self, session: str, after: int = 0, *, limit: int | None = None, without: Collection[str] = ()
    ) -> list[Event]:
        """The events with higher numbers than *after*."""
        log = self._logs.get(session)
        found = log.events[max(after, 0) :] if log is not None else []
        if without:
            found = [event for event in found if kind_of(event.data) not in without]
        return found[:limit]

    def sessions(self) -> list[SessionInfo]:
        """All sessions, the most recently used first."""
        found = [
            SessionInfo(name, events[0].time, events[-1].time, len(events), log.waiting)
            for name, log in list(self._logs.items())
            if (events := log.events)
        ]
        return sorted(found, key=lambda info: info.updated_at, reverse=True)

    def close(self) -> None:
        """Release every lease."""
        for log in list(self._logs.values()):
            log.lease = None

    def _owned(self, lease: Lease) -> _Log:
        log = self._logs.get(lease.session)
        if log is None or not log.is_owned or log.generation != lease.generation:
            raise lease_lost(lease)
        return log


class _Log:
    __slots__ = ("events", "generation", "lease", "waiting")

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.generation = 0
        # Weak: Ctrl+C may land in acquire(), and a lease that was never returned must not be held for ever.
        self.lease: weakref.ref[Lease] | None = None
        self.waiting = 0

    @property
    def is_owned(self) -> bool:
        return self.lease is not None and self.lease() is not None
