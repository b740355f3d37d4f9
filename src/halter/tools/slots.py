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

    def __init__(self, order: int, *, exclusive: bool, paths: list[str]) -> None:
        self.order = order
        self._exclusive = exclusive
        self._paths = paths
        self.admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def clashes_with(self, other: Claim) -> bool:
        if self._exclusive or other._exclusive:
            return True
        return any(_overlap(mine, theirs) for mine in self._paths for theirs in other._paths)


class Slots:
    """The places in which the calls of one batch run."""

    def __init__(self, most: int = MOST_AT_ONCE) -> None:
        self._most = most
        self._waiting: list[Claim] = []
        self._running: list[Claim] = []

    async def enter(self, claim: Claim, token: CancellationToken) -> None:
        """Wait until the claim may run. Raises Cancelled, and has taken nothing, if the token is cancelled first."""
        self._waiting.append(claim)
        self._waiting.sort(key=lambda each: each.order)
        self._admit()
        try:
            async with token.scope():
                await claim.admitted
        except BaseException:
            self.leave(claim)
            raise

    def leave(self, claim: Claim) -> None:
        for claims in (self._waiting, self._running):
            if claim in claims:
                claims.remove(claim)
        self._admit()

    def _admit(self) -> None:
        passed_over: list[Claim] = []
        for claim in list(self._waiting):
            if len(self._running) >= self._most:
                return
            if any(claim.clashes_with(other) for other in (*self._running, *passed_over)):
                passed_over.append(claim)  # and whoever clashes with it waits behind it
                continue
            self._waiting.remove(claim)
            self._running.append(claim)
            if not claim.admitted.done():
                claim.admitted.set_result(None)


def _overlap(one: str, other: str) -> bool:
    """Whether two paths are the same, or one is a folder that the other is in."""
    return one == other or one.startswith(other.rstrip("/") + "/") or other.startswith(one.rstrip("/") + "/")
