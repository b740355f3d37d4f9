"""Which calls of a batch may run side by side.

At most so many at once; an exclusive call beside no other; two that touch the same path in turn, in the order in
which the model asked for them. Everything happens in the event loop's thread and at once, so there is no lock that
an abandoned call could keep: its slot is free the moment its outcome is settled.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from halter.cancel.token import CancellationToken

MOST_AT_ONCE: Final = 32


class Claim:
    """What one call needs for itself while it runs."""

    def __init__(self, order: int, *, exclusive: bool, touches_paths: bool) -> None:
        self.order = order
        self._exclusive = exclusive
        self.paths: list[str] | None = None if touches_paths else []  # None: not known yet, it may be any
        self.admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def clashes_with(self, other: Claim) -> bool:
        if self._exclusive or other._exclusive:
            return True
        if self.paths is None or other.paths is None:
            return self.paths != [] and other.paths != []
        return any(_overlap(mine, theirs) for mine in self.paths for theirs in other.paths)

    async def wait(self, token: CancellationToken) -> None:
        """Wait until it is admitted. Raises Cancelled if the token is cancelled first."""
        async with token.scope():
            await self.admitted


class Slots:
    """The places in which the calls of one batch run."""

    def __init__(self, most: int = MOST_AT_ONCE) -> None:
        self._most = most
        self._waiting: list[Claim] = []
        self._running: list[Claim] = []

    def line_up(self, claim: Claim) -> None:
        """Take the claim's place in the line. Whoever does has to leave(), admitted or not."""
        self._waiting.append(claim)
        self._waiting.sort(key=lambda each: each.order)
        self._admit()

    def know_paths(self, claim: Claim, paths: list[str]) -> None:
        """Say what the claim touches. Until then it waits, and so do later ones that touch anything."""
        claim.paths = paths
        self._admit()

    def leave(self, claim: Claim) -> None:
        """Free the claim's place, in the line or among those that run."""
        for claims in (self._waiting, self._running):
            if claim in claims:
                claims.remove(claim)
        self._admit()

    def _admit(self) -> None:
        passed_over: list[Claim] = []
        for claim in list(self._waiting):
            if len(self._running) >= self._most:
                return
            if claim.paths is None or any(claim.clashes_with(other) for other in (*self._running, *passed_over)):
                passed_over.append(claim)  # and whoever clashes with it waits behind it
                continue
            self._waiting.remove(claim)
            self._running.append(claim)
            if not claim.admitted.done():
                claim.admitted.set_result(None)


def _overlap(one: str, other: str) -> bool:
    """Whether two paths are the same, or one is a folder that the other is in."""
    return one == other or one.startswith(other.rstrip("/") + "/") or other.startswith(one.rstrip("/") + "/")
