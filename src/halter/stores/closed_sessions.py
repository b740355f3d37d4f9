"""Changes to a session that nobody has open. Each blocks until it is durable; `SessionOwned` if it is open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from halter.stores.base import Write
from halter.stores.writer import writer_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from halter.events import Event
    from halter.stores.base import Lease, Store

__all__ = ["copy_events", "erase_session"]


def erase_session(store: Store, session: str) -> None:
    """Delete the log of a session."""
    _run_with_lease(store, session, store.erase)


def copy_events(store: Store, session: str, events: Iterable[Event]) -> None:
    """Add events of another session to this one, with their times."""

    def copy(lease: Lease) -> None:
        last = store.read(session)[-1:]
        start = last[0].seq if last else 0
        renamed = [replace(each, seq=start + at, session=session) for at, each in enumerate(events, 1)]
        if renamed:
            store.commit([Write(lease, renamed, 0)])

    _run_with_lease(store, session, copy)


def _run_with_lease(store: Store, session: str, change: Callable[[Lease], None]) -> None:
    """Have the store's writer make a change while it holds the lease."""

    def run() -> None:
        lease = store.acquire(session)
        try:
            change(lease)
        finally:
            store.release(lease)

    writer = writer_of(store)
    writer.run(writer.job(run))
