"""A token bucket: a burst of some size, then a steady rate. It never waits: `delay()` returns how long to wait."""

from __future__ import annotations

import time

__all__ = ["TokenBucket"]


class TokenBucket:
    """Allows *burst* events at once, and *rate* events per second after that."""

    __slots__ = ("_at", "_burst", "_left", "_rate")

    def __init__(self, burst: float, rate: float) -> None:
        self._burst = self._left = float(burst)
        self._rate = rate
        self._at = time.monotonic()

    def delay(self) -> float:
        """Seconds until the next event is allowed; 0 if it is allowed now."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        return 0.0 if self._left >= 1 else (1 - self._left) / self._rate

    def take(self) -> None:
        """Count one event."""
        self._left -= 1
