"""A loop of one's own, for users on many."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from asyncio.subprocess import PIPE
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from halter.cancel.loop_thread import LoopClosed, LoopThread
from tests.support.processes import run_python
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


def test_what_nobody_waits_for_is_done_until_it_is_closed() -> None:
    """Work can be handed over without a wait; a loop that was closed takes none, and says so."""
    home = LoopThread("home")
    assert not home.is_running
    done = threading.Event()

    async def work() -> None:
        done.set()

    assert home.spawn(work)
    assert done.wait(10)
    done.clear()
    assert home.call(done.set)
    assert done.wait(10)
    assert home.is_running
    home.close()
    assert not home.spawn(work)
    assert not home.call(done.set)


def test_ctrl_c_in_a_blocking_wait_cancels_the_work() -> None:
    """A signal handler that raises ends the wait, and the work is told to end."""
    home = LoopThread("home")
    told = threading.Event()

    async def work() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        try:
            await asyncio.sleep(60)
        finally:
            told.set()

    with pytest.raises(KeyboardInterrupt):
        home.do_blocking(work, 30)
    assert told.wait(10)
    home.close()


def test_a_wait_that_ends_before_the_work_began_has_it_never_begin() -> None:
    """While the loop is busy, a wait is given up: its work is not started afterwards."""
    home = LoopThread("home")
    busy, go, started = threading.Event(), threading.Event(), threading.Event()

    def block() -> None:
        busy.set()
        go.wait(10)

    async def work() -> None:
        started.set()

    home.call(block)
    busy.wait(10)
    with pytest.raises(TimeoutError):
        home.do_blocking(work, 0.01)
    go.set()
    home.do_blocking(lambda: asyncio.sleep(0), 10)
    assert not started.is_set()
    home.close()


def test_a_loop_that_is_stuck_is_left() -> None:
    """Closing waits no longer than its patience, and whoever waits for the work is told."""
    home = LoopThread("home")
    stuck, go = threading.Event(), threading.Event()

    async def work() -> None:
        stuck.set()
        go.wait(30)  # it blocks the loop

    def close() -> None:
        stuck.wait(10)
        home.close(patience=0.0)

    thread = threading.Thread(target=close)
    thread.start()
    with pytest.raises(LoopClosed):
        home.do_blocking(work, 30)
    go.set()
    thread.join(10)


def test_it_can_be_closed_by_its_own_work() -> None:
    """Work that closes the loop does not wait for itself."""
    home = LoopThread("home")

    async def work() -> None:
        home.close(patience=0.1)

    with contextlib.suppress(LoopClosed):  # it may have ended by then
        home.do_blocking(work, 30)
    wait_until(lambda: not home.is_running)


@pytest.mark.parametrize("iterations", range(8))
def test_it_can_be_closed_while_a_process_is_started_in_it(iterations: int) -> None:
    """A cancelled start of asyncio never ended: closing took all of its patience, and left the process's pipes open."""
    home = LoopThread("home")

    async def start() -> None:
        process = await asyncio.create_subprocess_exec("sleep", "60", stdin=PIPE, stdout=PIPE, stderr=PIPE)
        try:
            await process.wait()
        finally:
            process.kill()
            await process.wait()

    async def work() -> None:
        task = asyncio.create_task(start())
        for _ in range(iterations):
            await asyncio.sleep(0)
        home.close(patience=600)
        await task

    with contextlib.suppress(LoopClosed):
        home.do_blocking(work, 30)
    wait_until(lambda: not home.is_running)


def test_the_end_of_the_process_closes_it() -> None:
    """A program that forgets to close it ends soon, and its work is told."""
    ended = run_python(
        """
        import asyncio, threading
        from halter.cancel.loop_thread import LoopThread
        begun = threading.Event()
        async def work():
            begun.set()
            try:
                await asyncio.sleep(60)
            finally:
                print("told", flush=True)
        LoopThread("unused")
        home = LoopThread("home")
        home.spawn(work)
        begun.wait(10)
        """
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "told\n", "")


def test_a_thread_that_cannot_be_started_is_an_error_of_that_work_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit of threads the first work failed, and each later one waited for ever."""
    there = LoopThread("there")

    async def one() -> int:
        return 1

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            there.do_blocking(one, 20.0)
    assert not there.is_running
    assert there.do_blocking(one, 20.0) == 1
    there.close()


def test_work_that_cannot_even_be_made_fails() -> None:
    """An error before there was a coroutine stayed in the loop, and the caller waited for ever."""
    there = LoopThread("there")

    def fail() -> Coroutine[Any, Any, None]:
        raise ValueError("no coroutine")

    with pytest.raises(ValueError, match="no coroutine"):
        there.do_blocking(fail, 20.0)
    there.close()
