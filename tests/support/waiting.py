"""Waiting for what has no event to wait for."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable


def wait_until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait for something that has no event to wait for; fails after *seconds*."""
    pause = threading.Event()
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"still not so after {seconds} s: {condition}"
        pause.wait(0.002)


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 30.0) -> None:
    """Wait, without blocking the loop, for something that has no event to wait for; fails after *seconds*."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110  (that is what this is for)
            await asyncio.sleep(0.01)
