"""The errors with which every store refuses a lease or a write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halter.errors import LeaseLost, SessionOwned, WriteRefused

if TYPE_CHECKING:
    from halter.stores.base import Lease

__all__ = ["lease_lost", "open_here", "out_of_order"]


def open_here(session: str) -> SessionOwned:
    """The session is open in this process."""
    return SessionOwned(
        f"session {session!r} is already open in this process; use that object, or close() it before you open the "
        "session again"
    )


def lease_lost(lease: Lease) -> LeaseLost:
    """The lease is not the newest one."""
    return LeaseLost(
        f"session {lease.session!r} was closed, or taken over by another process: nothing was written", lease.session
    )


def out_of_order(lease: Lease, first: int, last: int) -> WriteRefused:
    """The first event does not follow the last one of the log."""
    return WriteRefused(
        f"event {first} of session {lease.session!r} does not follow {last}: nothing was written", lease.session
    )
