"""How long to wait before a request is made again."""

from __future__ import annotations

import random
from typing import NamedTuple

__all__ = ["Backoff"]

_MANY = 32


class Backoff(NamedTuple):
    """Waits that double from `base` up to `cap` seconds, each shortened by chance so that clients do not come in step.

    A provider's own Retry-After is a lower bound. One over `longest` is not waited for: a person who is told at once
    can do something else in those minutes.
    """

    base: float = 0.5
    cap: float = 8.0
    longest: float = 60.0

    def delay(self, retry: int, retry_after: float | None = None) -> float:
        """Give the seconds before retry number `retry`, counted from 0."""
        whole = min(self.cap, self.base * (1 << min(retry, _MANY)))
        return max(whole * random.uniform(0.5, 1.0), retry_after or 0.0)  # noqa: S311 - no secret
