"""A watchdog for one stream: it cancels a token when nothing has come for too long.

It lives outside of what it watches: in a timer of the event loop, which fires however the reading code hangs. The
reader only writes the time of the last event down. One timer serves the whole stream: when it fires, it looks at that
time, and either barks or sleeps on until the earliest moment at which it could have to; so it is never late.

Any byte of the provider's is a sign of life, as for the read timeouts of the vendors' own clients: a stream is not
stale while comments or pings come, however long the model thinks. They only ever give more time: before the first
event, the whole time for it holds even if a ping came early and none after it. A provider that pings for ever is not
silent, so who wants a bound for the whole gives the token a deadline.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Self

from halter.models.errors import ConnectionFailed, ModelError, StreamBroken

if TYPE_CHECKING:
    from halter.cancel import CancellationToken

__all__ = ["Watchdog"]


class Watchdog:
    """Watches in a `with` block. `error` says what was wrong, once it has cancelled `token`.

    `first` are the seconds to the first event and `stale` those between signs of life; None for no limit.
    """

    __slots__ = ("_first", "_handle", "_heard", "_loop", "_stale", "_started", "_token", "error", "last")

    def __init__(self, token: CancellationToken, *, first: float | None, stale: float | None) -> None:
        self.last = 0.0  # the loop's time of the last event: whoever reads the stream sets it
        self.error: ModelError | None = None
        self._token = token
        self._first = inf if first is None else first
        self._stale = inf if stale is None else stale
        self._started = 0.0
        self._heard = 0.0
        self._loop: asyncio.AbstractEventLoop
        self._handle: asyncio.Handle | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self._sleep()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def hear(self) -> None:
        """Take notice of a sign of life that is no event."""
        self._heard = self._loop.time()

    def _is_past_first(self) -> bool:
        """Whether the limit between signs of life is the one that counts."""
        if self.last or not self._heard or self._stale == inf:
            return bool(self.last)
        return self._heard + self._stale > self._started + self._first

    def _due(self) -> float:
        if self._is_past_first():
            return max(self.last, self._heard) + self._stale
        return self._started + self._first

    def _sleep(self) -> None:
        # The first event may come at any moment, and be the last: so never past one stale time from now.
        when = min(self._due(), self._loop.time() + self._stale)
        self._handle = self._loop.call_at(when, self._wake) if when < inf else None

    def _wake(self) -> None:
        if self._loop.time() < self._due():
            self._sleep()
            return
        # If it was the loop that was held up, an event may lie unread. The loop has read its sockets before this very
        # turn, and its reader comes before us in the next one.
        self._handle = self._loop.call_soon(self._bark)

    def _bark(self) -> None:
        if self._loop.time() < self._due():
            self._sleep()
            return
        self._handle = None
        if self._is_past_first():
            begun = "the answer was begun" if self.last else "the provider gave signs of life"
            reason, said = "stale", f"{begun}, and then nothing came for {self._stale:g} s"
            self.error = StreamBroken(said)
        else:
            reason, said = "timeout", f"the provider did not begin to answer within {self._first:g} s"
            self.error = ConnectionFailed(said)
        self._token.cancel(reason, detail=said)
