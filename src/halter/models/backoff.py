"""How long to wait before a retry."""

from __future__ import annotations

import os
from typing import Final, NamedTuple

__all__ = ["UNTIL_IT_WORKS", "Backoff"]

_MAX_DOUBLINGS = 32  # far beyond any cap


class Backoff(NamedTuple):
    """Exponential back-off with jitter: waits double from `base` up to `cap` seconds.

    A provider's own Retry-After is a lower bound. If it is over `max_retry_after`, there is no retry, and the
    user gets the error at once.
    """

    base: float = 0.5
    cap: float = 8.0
    max_retry_after: float = 60.0

    def delay(self, retry: int, retry_after: float | None = None) -> float:
        """The seconds to wait before retry number `retry`, counted from 0."""
        full = min(self.cap, self.base * (1 << min(retry, _MAX_DOUBLINGS)))
        # Not the random module: it would be imported at every start for this one line.
        chance = int.from_bytes(os.urandom(4), "big") / 2**32
        return max(full * (1 - chance / 2), retry_after or 0.0)


UNTIL_IT_WORKS: Final = Backoff(cap=30.0)
"""For what is tried until it succeeds: a store that fails, a chat platform that cannot be reached."""
