"""The interface of a store: a log of events for each session, and a lease that says who may write it.

The log is the only source of truth; everything else is computed from it. A session has one lease at a time, and each
new lease has a higher generation than the one before. Every write names its lease, and only the newest lease can write.
A lease ends by `release()` or with its owner's process. On one machine it does not end by time: a suspended process
keeps its leases. In a cluster it does, and the token of `expiry()` is cancelled before that.

Only the store's writer (`halter.stores.writer`) calls `commit()`, `acquire()`, `release()` and `erase()`. Any thread
may call `read()` and `sessions()`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from halter.cancel.token import CancellationToken
    from halter.events import Event

__all__ = ["Lease", "SessionInfo", "Store", "Write"]


class Lease(Struct, frozen=True, weakref=True):
    """The right to write one session, until a newer generation exists."""

    session: str
    generation: int


class Write(NamedTuple):
    """One or more new events of a session, and the number of messages in its inbox after them.

    The events are numbered without gaps, starting after the session's last event.
    """

    lease: Lease
    events: Sequence[Event]
    waiting: int


class SessionInfo(Struct, frozen=True):
    """A session in a store: the times of its first and last event, and the number of messages in its inbox."""

    id: str
    created_at: float
    updated_at: float
    events: int
    waiting: int


class Store(Protocol):
    """Stores the logs of sessions."""

    blocks: bool
    """Whether `commit()` may block. If so, the writer runs on a thread; if not, in the thread that submits."""

    def acquire(self, session: str) -> Lease:
        """Take the lease of *session*. Raises `SessionOwned` while another live owner has it."""
        ...

    def release(self, lease: Lease) -> None:
        """Give a lease back. Does nothing if it has ended already."""
        ...

    def expiry(self, lease: Lease) -> CancellationToken:
        """A token that is cancelled when a lease is about to end by time; `NEVER` if that cannot happen."""
        ...

    def commit(self, writes: Sequence[Write]) -> None:
        """Append the events of several sessions, at most one write for each, durably, all or none.

        Raises `WriteRefused` (for example `LeaseLost`), which names the session, if one write is at fault, and another
        `StoreError` if the store is. In both cases nothing was written.
        """
        ...

    def erase(self, lease: Lease) -> None:
        """Delete the session's log. The lease stays until it is released. Raises `LeaseLost`."""
        ...

    def read(
        self, session: str, after: int = 0, *, limit: int | None = None, without: Collection[str] = ()
    ) -> list[Event]:
        """The events with higher numbers than *after*, in order, at most *limit*, without the kinds in *without*."""
        ...

    def sessions(self) -> list[SessionInfo]:
        """All sessions, the most recently used first."""
        ...

    def close(self) -> None:
        """Release every lease and close the files. Nothing can be read or written afterwards."""
        ...
