"""Which calls of a batch may run in parallel.

At most `max_parallel` at once; an exclusive call runs alone; two that touch the same path run one after the other, in
the order of the calls. Everything happens in the event loop's thread without an await, so there is no lock that an
abandoned call could keep: its place is free as soon as its outcome is settled.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from halter.cancel.token import CancellationToken

MAX_PARALLEL: Final = 32  # calls of one batch


class Reservation:
    """What one call needs for itself while it runs."""

    def __init__(self, order: int, *, exclusive: bool, touches_paths: bool) -> None:
        self.order = order
        self._exclusive = exclusive
        self.paths: list[str] | None = None if touches_paths else []  # None: not known yet, so any
        self.admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def clashes_with(self, other: Reservation) -> bool:
        if self._exclusive or other._exclusive:
            return True
        if self.paths is None or other.paths is None:
            return self.paths != [] and other.paths != []
        return any(_overlap(mine, theirs) for mine in self.paths for theirs in other.paths)

    async def wait(self, token: CancellationToken) -> None:
        """Wait until it is admitted. Raises Cancelled if the token is cancelled first."""
        async with token.scope():
            await self.admitted


class Scheduler:
    """Admits the calls of one batch."""

    def __init__(self, max_parallel: int = MAX_PARALLEL) -> None:
        self._max_parallel = max_parallel
        self._waiting: list[Reservation] = []
        self._running: list[Reservation] = []

    def enqueue(self, reservation: Reservation) -> None:
        """Add a reservation to the queue. Whoever does has to release() it, admitted or not."""
        self._waiting.append(reservation)
        self._waiting.sort(key=lambda each: each.order)
        self._admit()

    def set_paths(self, reservation: Reservation, paths: list[str]) -> None:
        """Set the paths that the call touches. Until then it waits, and so do later ones that touch any path."""
        reservation.paths = paths
        self._admit()

    def release(self, reservation: Reservation) -> None:
        """Give the reservation back, whether it waits or runs."""
        for reservations in (self._waiting, self._running):
            if reservation in reservations:
                reservations.remove(reservation)
        self._admit()

    def _admit(self) -> None:
        blocked: list[Reservation] = []
        for reservation in list(self._waiting):
            if len(self._running) >= self._max_parallel:
                return
            if reservation.paths is None or any(
                reservation.clashes_with(other) for other in (*self._running, *blocked)
            ):
                blocked.append(reservation)  # and what clashes with it waits behind it
                continue
            self._waiting.remove(reservation)
            self._running.append(reservation)
            if not reservation.admitted.done():
                reservation.admitted.set_result(None)


def _overlap(one: str, other: str) -> bool:
    """Whether two paths are the same, or one is a folder that the other is in."""
    return one == other or one.startswith(other.rstrip("/") + "/") or other.startswith(one.rstrip("/") + "/")
