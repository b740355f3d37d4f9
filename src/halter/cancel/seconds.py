"""Durations that a caller gave us, checked once at the door."""

from __future__ import annotations

import math
from typing import Final

# About three years: as good as for ever, and far from where platforms refuse to wait (Windows: 49 days
# at a time, which Python handles; threading.TIMEOUT_MAX itself overflows once a clock is added to it).
LONGEST: Final = 1e8


def check_seconds(name: str, value: float) -> float:
    """Return *value* as a usable duration, or say what is wrong with it.

    Infinity is a way of saying "never" and becomes the longest wait there is.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        msg = f"{name} must be a number of seconds, not {value!r}"
        raise TypeError(msg)
    if math.isnan(value) or value < 0:
        msg = f"{name} must be zero or more seconds, not {value!r}; leave it out for no limit"
        raise ValueError(msg)
    return min(float(value), LONGEST)
