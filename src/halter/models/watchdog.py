"""A watchdog for one stream: it cancels a token when the provider has been silent for too long.

It is independent of what it watches: a timer of the event loop, which fires even if the reading code hangs. The reader
only notes the time of the last event. One timer serves the whole stream: when it fires, it reads that time, and either
ends the attempt or waits until the earliest moment at which it may have to; so it is never late.

Any byte from the provider resets the stale timeout, as in the vendors' own clients: a stream is not stale while
comments or pings come, however long the model thinks. Bytes only ever give more time: the timeout for the first event
holds in full even if an early ping is followed by silence. A provider that pings for ever is not silent; to bound the
whole request, give the token a deadline.
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
    """Watches while its `with` block runs. Once it has cancelled `token`, `error` says why.

    `first` is the time in seconds until the first event, `stale` the time between two bytes; None means no limit.
    """

    __slots__ = ("_first", "_handle", "_last_byte", "_loop", "_stale", "_started", "_token", "error", "last")

    def __init__(self, token: CancellationToken, *, first: float | None, stale: float | None) -> None:
        self.last = 0.0  # loop.time() of the last event; set by the code that reads the stream
        self.error: ModelError | None = None
        self._token = token
        self._first = inf if first is None else first
        self._stale = inf if stale is None else stale
        self._started = 0.0
        self._last_byte = 0.0
        self._loop: asyncio.AbstractEventLoop
        self._handle: asyncio.Handle | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self._schedule()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def on_bytes(self) -> None:
        """Note that bytes have come, which need not hold an event."""
        self._last_byte = self._loop.time()

    def _is_past_first(self) -> bool:
        """Whether the stale timeout is the one that counts, and not the one for the first event."""
        if self.last or not self._last_byte or self._stale == inf:
            return bool(self.last)
        return self._last_byte + self._stale > self._started + self._first

    def _due(self) -> float:
        if self._is_past_first():
            return max(self.last, self._last_byte) + self._stale
        return self._started + self._first

    def _schedule(self) -> None:
        # The first event may come at any moment and be the last one: so check again within one stale timeout.
        when = min(self._due(), self._loop.time() + self._stale)
        self._handle = self._loop.call_at(when, self._check) if when < inf else None

    def _check(self) -> None:
        if self._loop.time() < self._due():
            self._schedule()
            return
        # If the loop itself was blocked, an event may be waiting unread. The loop has polled its sockets before this
        # iteration, and the reader runs before this callback in the next one.
        self._handle = self._loop.call_soon(self._expire)

    def _expire(self) -> None:
        if self._loop.time() < self._due():
            self._schedule()
            return
        self._handle = None
        if self._is_past_first():
            begun = "the answer started" if self.last else "the provider sent keep-alives"
            reason, message = "stale", f"{begun}, and then nothing arrived for {self._stale:g} s"
            self.error = StreamBroken(message)
        else:
            reason, message = "timeout", f"the provider did not start to answer within {self._first:g} s"
            self.error = ConnectionFailed(message)
        self._token.cancel(reason, detail=message)
