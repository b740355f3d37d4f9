"""Sessions that live for one request, in memory: the store and the list of sessions do not have them.

Nobody else can open one, so its end is the end of its request. A stop of everything, and the end of the gateway, stop
them too.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halter.gateway.sessions.live_session import LiveSession
    from halter.session.session import Session
    from halter.session.turn import Turn

__all__ = ["TransientSessions", "stop_transient"]

_SHUTDOWN: Final = ("shutdown", "the gateway is shutting down", "gateway")


class TransientSessions:
    """The sessions of requests that are being handled. All calls are made in the gateway's event loop."""

    def __init__(self) -> None:
        self._open: set[LiveSession] = set()
        self._emptied = asyncio.Event()

    def __iter__(self) -> Iterator[LiveSession]:
        return iter(list(self._open))

    def add(self, live: LiveSession) -> None:
        """Add the session of a request that begins."""
        self._open.add(live)

    def discard(self, live: LiveSession) -> None:
        """Remove the session of a request that has ended."""
        self._open.discard(live)
        if not self._open:
            self._emptied.set()

    def stop(self, reason: str, detail: str, by: str) -> list[Turn]:
        """Stop all of them; returns the turns that this has stopped."""
        turns = [stop_transient(live.session, reason, detail, by) for live in self]
        return [turn for turn in turns if turn is not None]

    async def drain(self, patience: float, closing: float) -> int:
        """Give them *patience* seconds, stop the rest, and wait for their ends; returns how many had to be stopped."""
        await self._ended(patience)
        left = len(self._open)
        self.stop(*_SHUTDOWN)
        await self._ended(closing)
        return left

    async def _ended(self, seconds: float) -> None:
        """Wait until all have ended, for so long at most."""
        if self._open:
            self._emptied.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._emptied.wait(), seconds)


def stop_transient(session: Session, reason: str, detail: str, by: str) -> Turn | None:
    """Stop a session for good: a turn that has not begun yet ends as soon as it does. Returns the stopped turn."""
    stopped = session.interrupt(reason=reason, detail=detail, by=by).stopped
    session.token.cancel(reason, detail=detail)
    return session.turn if stopped else None
