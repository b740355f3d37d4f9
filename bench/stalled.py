"""Requests that do not come to their end by themselves, and the floor of stopping one: a bare aiohttp task, cancelled.

In the wait before a retry no request is open, so the server has nothing to see, and the floor is no request but a bare
`asyncio.sleep`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

import aiohttp

from bench.server import Server
from bench.stopper import Stopper
from halter.testing import hang_before_first_byte, hang_mid_stream, slow_stream, status

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from typing import Any, Self

    from halter.testing import ScriptedReply

BACK_OFF = "back-off"
STALLED = {
    "slow stream": slow_stream(0.005),
    "hang before first byte": hang_before_first_byte(),
    "hang mid-stream": hang_mid_stream(after=3),
    BACK_OFF: status(429, retry_after=50),
}
_SETTLE = 0.003  # so that the loop sleeps, and the stop has to wake it


class Took(NamedTuple):
    """Milliseconds from the stop to control being back, and to the server seeing the end."""

    back: float
    seen: float | None


async def read_bare(session: aiohttp.ClientSession, url: str, scenario: str, is_waiting: threading.Event) -> float:
    """Read until cancelled; gives the moment of that."""
    body = {"model": scenario, "messages": [], "stream": True}
    try:
        async with session.post(f"{url}/chat/completions", json=body) as response:
            async for _ in response.content:
                pass
        is_waiting.set()
        await asyncio.sleep(50)
    except asyncio.CancelledError:
        return time.monotonic()
    return 0.0


class Ground:
    """One server, one loop, and one thread that stops what runs there."""

    def __init__(self, replies: Mapping[str, ScriptedReply] = STALLED) -> None:
        self.server = Server(replies)
        self.stopper = Stopper(_SETTLE)
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.close()
        self.stopper.close()
        self.server.__exit__()

    async def floor(self, scenario: str) -> Took:
        """Cancel a task that does the same with nothing but aiohttp."""
        loop = asyncio.get_running_loop()
        is_waiting = threading.Event()
        task = asyncio.create_task(read_bare(self._session, self.server.url, scenario, is_waiting))
        return await self.measure(scenario, task, lambda: loop.call_soon_threadsafe(task.cancel), is_waiting.wait)

    async def measure(
        self,
        scenario: str,
        work: asyncio.Task[float] | Coroutine[Any, Any, float],
        stop: Callable[[], object],
        wait_back_off: Callable[[], object],
    ) -> Took:
        """Stop *work*, which gives the moment at which it had control back, when it cannot go on by itself."""
        reached = self.server.expect()

        def wait_ready() -> None:
            reached()
            if scenario == BACK_OFF:
                wait_back_off()

        self.stopper.ask(stop, wait_ready)
        # In a task of its own, so that the loop has its turn before we go on: nothing of ours delays the close.
        back = await asyncio.ensure_future(work)
        if back < self.stopper.at:
            msg = f"{scenario}: it has ended, and was not stopped"
            raise SystemExit(msg)
        closed = None if scenario == BACK_OFF else await asyncio.to_thread(self.server.closed_at)
        at = self.stopper.at
        return Took((back - at) * 1e3, None if closed is None else max(0.0, closed - at) * 1e3)
