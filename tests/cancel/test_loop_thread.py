"""A loop of one's own, for users on many."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from halter.cancel.loop_thread import LoopClosed, LoopThread
from tests.support.waiting import wait_until


def test_work_is_done_over_there() -> None:
    """Whoever asks, from whatever loop or none, it runs in one thread, and its result or error comes back."""
    home = LoopThread("home")

    async def where() -> int:
        return threading.get_ident()

    async def fail() -> None:
        raise ValueError("broken")

    first, second = asyncio.run(home.do(where)), asyncio.run(home.do(where))
    assert first == second == home.do_blocking(where, 10) != threading.get_ident()
    with pytest.raises(ValueError, match="broken"):
        asyncio.run(home.do(fail))
    home.close()
    home.close()
    with pytest.raises(LoopClosed):
        home.do_blocking(where, 10)


def test_who_is_cancelled_leaves_and_the_work_is_told() -> None:
    """The wait ends at once, also if the work takes its time to end; what it emitted before has arrived."""
    home = LoopThread("home")
    begun, told, go = threading.Event(), threading.Event(), threading.Event()

    async def work(emit: Callable[[str], None]) -> None:
        emit("one")
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            told.set()
            while not go.is_set():  # noqa: ASYNC110  (it does not want to go)
                await asyncio.sleep(0.001)
            raise

    got: list[str] = []

    async def main() -> None:
        async def listen() -> None:
            async for piece in home.stream(work):
                got.append(piece)  # noqa: PERF401  (one by one, as they come)

        task = asyncio.ensure_future(listen())
        while not (begun.is_set() and got):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not go.is_set()

    asyncio.run(asyncio.wait_for(main(), 30))
    wait_until(told.is_set)
    go.set()
    assert got == ["one"]
    home.close()


def test_closing_ends_those_who_wait() -> None:
    """Work that is still going on is ended, and its waiter is told so; one that never ends is left after a while."""
    home = LoopThread("home")
    begun = threading.Event()

    async def work() -> None:
        begun.set()
        await asyncio.sleep(60)

    def close() -> None:
        begun.wait(10)
        home.close()

    thread = threading.Thread(target=close)
    thread.start()
    with pytest.raises(LoopClosed, match="home was closed"):
        asyncio.run(asyncio.wait_for(home.do(work), 30))
    thread.join(10)


def test_a_blocking_wait_is_bounded() -> None:
    """After its time it ends with an error that says who did not answer."""
    home = LoopThread("home")
    with pytest.raises(TimeoutError, match="home did not answer"):
        home.do_blocking(lambda: asyncio.sleep(60), 0.05)
    home.close()
