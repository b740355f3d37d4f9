"""How fast things may be shown. Nothing here waits: it says how long somebody would have to."""

from __future__ import annotations

import time
from typing import Final

__all__ = ["Bucket", "Pace"]

_AT_ONCE: Final = 3  # new messages in one place that need not wait for each other


class Bucket:
    """So many at once, and so many a second from then on."""

    __slots__ = ("_at", "_left", "_most", "_rate")

    def __init__(self, most: float, a_second: float) -> None:
        self._most = self._left = float(most)
        self._rate = a_second
        self._at = time.monotonic()

    def delay(self) -> float:
        """Seconds until there is one more."""
        now = time.monotonic()
        self._left = min(self._most, self._left + (now - self._at) * self._rate)
        self._at = now
        return 0.0 if self._left >= 1 else (1 - self._left) / self._rate

    def take(self) -> None:
        """Take one."""
        self._left -= 1


class Pace:
    """That of one place: changes one by one, new messages a little quicker, and all within what all places share."""

    __slots__ = ("_every", "_last", "_not_before", "_own", "_shared")

    def __init__(self, every: float, shared: Bucket) -> None:
        self._every = every
        self._shared = shared
        self._own = Bucket(_AT_ONCE, 1 / every)
        self._last = self._not_before = 0.0

    def delay(self, *, is_change: bool) -> float:
        """Seconds until the next may be shown."""
        now = time.monotonic()
        delay = max(self._not_before - now, self._own.delay(), self._shared.delay())
        return max(delay, self._last + self._every - now) if is_change else max(delay, 0.0)

    def take(self) -> None:
        """One is being shown."""
        self._own.take()
        self._shared.take()

    def end(self) -> None:
        """It is shown. The time until the next is counted from here: how long the way takes, nobody knows."""
        self._last = time.monotonic()

    def hold(self, seconds: float) -> None:
        """Show nothing for so long."""
        self._not_before = max(self._not_before, time.monotonic() + seconds)
