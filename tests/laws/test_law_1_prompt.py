"""Law 1, prompt: from the stop to control being back there is nothing to wait for, whatever is running.

How long it takes is measured in bench/; here it must not take part of what the work would have taken.
"""

from __future__ import annotations

import asyncio
import threading

import pytest

from halter import CancellationToken, Cancelled, run_blocking_async, run_process
from halter.cancel import abandoned
from halter.testing import DeafTool, assert_cancels_within, deaf_process
from tests.support.turn_scenarios import a_turn, try_everywhere
from tests.support.waiting import wait_until


@pytest.mark.alone
def test_control_is_back_from_everything_deaf_at_once() -> None:
    """Fifty deaf threads and ten deaf processes with escapees: one stop, and the caller goes on."""
    deaf = DeafTool()

    async def main() -> None:
        ready = threading.Semaphore(0)
        async with assert_cancels_within(5, after=60) as token:
            blocked = [asyncio.ensure_future(run_blocking_async(deaf, token=token)) for _ in range(50)]
            running = [
                asyncio.ensure_future(
                    run_process(deaf_process(escape=True), token=token, grace=0, on_output=lambda _: ready.release())
                )
                for _ in range(10)
            ]
            for _ in range(10):
                await asyncio.to_thread(ready.acquire, timeout=30)
            threading.Thread(target=token.cancel).start()
            await asyncio.wait(blocked)
            assert all(isinstance(end.exception(), Cancelled) for end in blocked)
            assert all(result.cancelled for result in await asyncio.gather(*running))

    try:
        asyncio.run(main())
    finally:
        deaf.release()
    wait_until(lambda: len(abandoned) == 0)


def test_a_stop_during_start_up_is_not_lost() -> None:
    """Before the first await, before the thread runs, before the process exists."""

    async def main() -> None:
        token = CancellationToken()
        token.cancel("early")
        deaf = DeafTool()
        with pytest.raises(Cancelled):
            await run_blocking_async(deaf, token=token)
        assert deaf.calls == 0
        assert (await run_process(deaf_process(), token=token)).cancelled
        with pytest.raises(Cancelled):
            async with token.scope():
                await asyncio.sleep(60)

    asyncio.run(main())


def test_a_turn_is_back_wherever_it_is_stopped() -> None:
    """stop() at any point of a turn with everything in it: the turn is returned, and the next one answers."""
    try_everywhere(a_turn(lambda session: session.stop(), "stop"))
