"""What a session needs of a store: a log, the inbox that follows from it, and a lease that says who may write.

The log is the truth. The inbox is kept with it, in the same transaction: a message is in it from its `message.accepted`
until its `message.applied` or `message.removed`. So taking a message and logging that it was taken are one thing.

A lease belongs to one owner at a time, and each one has a higher generation than those before it. Every write names its
lease; one that is not the newest any more writes nothing and raises `LeaseLost`. A lease ends by `release()`, or by the
death of its owner's process, and not by time: a process that was only asleep still owns what it owned.

Every method may be called from any thread, and from a signal handler that interrupts another call of the same store in
the same thread. So none may hold a lock around more than one indivisible operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from halter.events import Mode
from halter.models.model import UserMessage

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from halter.events import Event

__all__ = ["GroupingStore", "Lease", "SessionInfo", "Store", "Waiting"]


class Lease(Struct, frozen=True):
    """The right to write one session, until a newer generation exists."""

    session: str
    generation: int


class Waiting(Struct, frozen=True):
    """A message of the inbox, as the store keeps it."""

    id: str
    mode: Mode
    message: UserMessage
    held: bool = False
    note: str = ""
    accepted_at: float = 0.0


class SessionInfo(Struct, frozen=True):
    """A session that a store knows: when its first and last event came, and how many messages wait in it."""

    id: str
    created_at: float
    updated_at: float
    events: int
    waiting: int


class Store(Protocol):
    """Where sessions are kept."""

    def acquire(self, session: str) -> Lease:
        """Own *session* from now on. Raises `SessionOwned` while another owner lives."""
        ...

    def release(self, lease: Lease) -> None:
        """Own it no longer. Nothing happens if that is so already."""
        ...

    def append(self, lease: Lease, events: Sequence[Event]) -> None:
        """Write *events* to the log, all or none, durably, and give each its number: `event.seq`, without gaps from 1.

        Raises `LeaseLost`, or another `StoreError`; then nothing was written.
        """
        ...

    def erase(self, lease: Lease) -> None:
        """Forget the session's log and its inbox, for ever. The lease is still to be released. Raises `LeaseLost`."""
        ...

    def read(
        self, session: str, after: int = 0, *, limit: int | None = None, without: Collection[str] = ()
    ) -> list[Event]:
        """The events with higher numbers than *after*, in order, at most *limit*, leaving out some kinds."""
        ...

    def inbox(self, session: str) -> list[Waiting]:
        """The messages that wait, in the order in which they were accepted."""
        ...

    def sessions(self) -> list[SessionInfo]:
        """All sessions, the latest used first."""
        ...

    def close(self) -> None:
        """Release every lease and let go of the files. Nothing can be read or written any more."""
        ...


class GroupingStore(Store, Protocol):
    """A store in which it costs less to write for several sessions at once than for one after the other."""

    def append_all(self, writings: Sequence[tuple[Lease, Sequence[Event]]]) -> None:
        """Write the events of several sessions, at least one of each: all or none, and as durably as `append()`.

        They have their numbers already. Raises a `StoreError`, and then nothing was written, if one is not the next of
        its session, or a lease is lost.
        """
        ...
