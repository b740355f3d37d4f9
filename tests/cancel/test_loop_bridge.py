"""A coroutine in a loop, for a thread or for another loop: the wait for it always ends."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from halter.cancel.loop_bridge import LoopJob, end_tasks, run_in_thread
from halter.cancel.one_shot_event import OneShotEvent

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("test")


class Other:
    """A loop on a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def end(self) -> None:
        """Stop the loop and close it, with whatever is left in it."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(10)
            self.loop.close()


@pytest.fixture
def other() -> Iterator[Other]:
    other = Other()
    yield other
    other.end()


async def never() -> None:
    await asyncio.Event().wait()


def test_a_thread_gets_the_result_or_the_error(other: Other) -> None:
    """The coroutine runs in the other loop, with the context variables of the thread that asked."""

    async def work() -> tuple[bool, str]:
        await asyncio.sleep(0)
        return asyncio.get_running_loop() is other.loop, VARIABLE.get()

    async def fail() -> None:
        raise KeyError("lost")

    VARIABLE.set("mine")
    job = LoopJob(other.loop, work)
    job.start()
    assert job.wait(timeout=10)
    assert job.result() == (True, "mine")
    failing = LoopJob(other.loop, fail)
    failing.start()
    assert failing.wait(timeout=10)
    with pytest.raises(KeyError, match="lost"):
        failing.result()


def test_a_task_of_another_loop_gets_the_result(other: Other) -> None:
    """It awaits the end without blocking its own loop."""

    async def main() -> Any:
        job = LoopJob(other.loop, lambda: asyncio.sleep(0, "there"))
        job.start()
        await asyncio.wait_for(job.ended.wait_async(), 10)
        return job.result()

    assert asyncio.run(main()) == "there"


def test_a_wait_ends_with_another_event_or_its_time(other: Other) -> None:
    """The coroutine goes on: the waiting code decides whether to cancel it."""
    job, stop = LoopJob(other.loop, never), OneShotEvent()
    job.start()
    assert job.started.wait(10)
    assert not job.wait(timeout=0.001)
    threading.Timer(0.01, stop.set).start()
    assert not job.wait(stop, timeout=10)
    assert stop.is_set
    assert not job.ended.is_set
    job.cancel()
    assert job.wait(timeout=10)
    with pytest.raises(asyncio.CancelledError):
        job.result()


def test_what_is_cancelled_before_it_begins_never_begins(other: Other) -> None:
    """The loop was busy when the job was started, and the job is revoked before the loop gets to it."""
    busy, began = threading.Event(), threading.Event()

    async def work() -> None:
        began.set()

    other.loop.call_soon_threadsafe(busy.wait, 10)
    job = LoopJob(other.loop, work)
    job.start()
    assert job.revoke()
    assert not job.revoke()
    busy.set()
    assert job.ended.wait(10)
    later = LoopJob(other.loop, lambda: asyncio.sleep(0))
    later.start()
    assert later.wait(timeout=10)
    assert not later.revoke()
    assert not began.is_set()
    assert not job.is_done


@pytest.mark.parametrize("when", ["before it was asked", "before it began", "in the middle"])
def test_nobody_waits_for_a_loop_that_is_closed(other: Other, when: str) -> None:
    """Was a defect: a thread that waited for a loop which a program had closed waited for ever."""
    if when == "before it was asked":
        other.end()
    if when == "before it began":
        other.loop.call_soon_threadsafe(other.loop.stop)
        other.thread.join(10)
    job = LoopJob(other.loop, never)
    job.start()
    if when == "in the middle":
        assert job.started.wait(10)
    other.end()
    if when == "before it began":
        other.loop.close()
    assert job.ended.wait(10)
    assert not job.wait(timeout=10)
    with pytest.raises(RuntimeError, match="was closed"):
        job.result()


def test_work_on_a_thread_gives_its_result_or_its_error() -> None:
    """It runs beside the loop, with the context variables of the task that awaits it."""
    VARIABLE.set("mine")

    def fail() -> None:
        raise KeyError("lost")

    async def main() -> None:
        here = threading.get_ident()
        assert await run_in_thread(lambda: (threading.get_ident() != here, VARIABLE.get())) == (True, "mine")
        with pytest.raises(KeyError, match="lost"):
            await run_in_thread(fail)

    asyncio.run(main())


def test_a_wait_for_a_thread_that_is_cancelled_ends_at_once() -> None:
    """The work goes on, nobody waits for it, and neither does the end of the loop."""
    started, gate, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        gate.wait(30)
        ended.set()

    async def main() -> None:
        task = asyncio.ensure_future(run_in_thread(work))
        await run_in_thread(lambda: started.wait(30))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert not ended.is_set()
    gate.set()
    assert ended.wait(30)


def test_a_task_that_loses_its_cancellation_is_ended_too() -> None:
    """A result in the same iteration of the loop: on Python 3.11, asyncio.wait_for() returns that, and goes on."""

    async def lose_one() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(600)
        await asyncio.sleep(600)

    async def main() -> None:
        ended = asyncio.create_task(asyncio.sleep(0))
        tasks = [asyncio.create_task(lose_one()), asyncio.create_task(asyncio.sleep(600)), ended]
        await asyncio.sleep(0)
        await end_tasks(tasks)
        assert [task.done() for task in tasks] == [True] * 3
        await end_tasks([])

    asyncio.run(asyncio.wait_for(main(), 30))
