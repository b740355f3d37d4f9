"""Waiting for what has no event to wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait for something that has no event to wait for; fails after *seconds*."""
    pause = threading.Event()
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"still not so after {seconds} s: {condition}"
        pause.wait(0.002)
