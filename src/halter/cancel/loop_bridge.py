"""The bridge between threads and event loops.

`LoopJob` runs a coroutine in a loop, for a thread or for a task of another loop. Its end is a `OneShotEvent`, so both
can wait for it. A loop that is closed ends its jobs too, so no waiter hangs on a job that will never run again.

The opposite direction, blocking code for a task: `run_blocking_async()` for code of users, which has a token, is
stopped, and counts if its thread is stuck; `run_in_thread()` for our own short work, such as an import.
"""

from __future__ import annotations

import contextvars
import sys
import weakref
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from halter.cancel.one_shot_event import OneShotEvent
from halter.cancel.registration import call_in_loop
from halter.cancel.threads import pool

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Iterable

T = TypeVar("T")

_CANCEL_INTERVAL: Final = 0.1  # seconds
_NEVER: Final = 3e9  # seconds; loops refuse an infinite delay


class LoopJob(Generic[T]):
    """One coroutine in *loop*, with the context variables of the code that makes the job. Use each one once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, make: Callable[[], Awaitable[T]]) -> None:
        self.started = OneShotEvent()  # the loop has started the coroutine
        self.ended = OneShotEvent()  # the coroutine has ended, or never will because the loop was closed
        self._loop = loop
        self._make = make
        self._context = contextvars.copy_context()
        self._task: asyncio.Task[T] | None = None
        self._claim = [True]  # popped once: by the loop when the job begins, or by revoke()

    def start(self) -> None:
        """Start the job in its loop; from any thread. *make* is called in the loop."""
        try:
            self._loop.call_soon_threadsafe(self._start, _LoopWatch(self.ended))
        except RuntimeError:  # the loop is closed
            self.ended.set()

    def revoke(self) -> bool:
        """Take the job back, from any thread. True if the loop has not started it, and never will."""
        if not self._take_claim():
            return False
        self.ended.set()
        return True

    def cancel(self) -> None:
        """Cancel the coroutine, from any thread; one that has not begun never does. Does not wait for its end."""
        if not self.revoke():
            call_in_loop(self._loop, self._cancel_task)

    def wait(self, *others: OneShotEvent, timeout: float | None = None) -> bool:
        """Block this thread until the end, one of *others*, or *timeout* seconds. True if the coroutine has ended."""
        woken = OneShotEvent()
        unregister = [event.on_set(woken.set) for event in (self.ended, *others)]
        try:
            woken.wait(timeout)
        finally:
            for each in unregister:
                each()
        return self.is_done

    @property
    def is_done(self) -> bool:
        """Whether the coroutine has ended; False if its loop was closed before that."""
        return self._task is not None and self._task.done()

    def result(self) -> T:
        """Return what the coroutine returned, or raise what it raised."""
        if self._task is None or not self._task.done():
            raise RuntimeError("the event loop was closed before the coroutine finished")
        return self._task.result()

    def _start(self, watch: _LoopWatch) -> None:
        if not self._take_claim():
            return
        self.started.set()
        task = self._task = self._loop.create_task(_run(self._make), context=self._context)
        # Only the loop may refer to the handle, see _LoopWatch.
        handle = weakref.ref(self._loop.call_later(_NEVER, watch.keep))
        task.add_done_callback(lambda _: self._on_end(handle))

    def _take_claim(self) -> bool:
        try:
            return self._claim.pop()  # atomic: the loop starts it, or it is revoked
        except IndexError:
            return False

    def _on_end(self, handle: weakref.ref[asyncio.TimerHandle]) -> None:
        task = self._task
        if task is not None and not task.cancelled():
            task.exception()  # otherwise asyncio would log that it was never retrieved
        timer = handle()
        if timer is not None:
            timer.cancel()
        self.ended.set()

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()


class _LoopWatch:
    """Sets an event when the loop that it was handed to is closed.

    Loops have no hook for that, but a loop that is closed drops its callbacks and timers. Only one of them
    refers to this object, so it is finalized with them.
    """

    __slots__ = ("_event",)

    def __init__(self, event: OneShotEvent) -> None:
        self._event = event

    def keep(self) -> None:
        """The callback of a timer that refers to this object; it never fires."""

    def __del__(self) -> None:
        self._event.set()


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs in this thread, if any. Does not import asyncio."""
    find = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)  # None in the middle of its import, too
    return find() if find is not None else None


async def run_in_thread(work: Callable[[], T]) -> T:
    """Run *work* on a daemon thread and await it. If the wait is cancelled it goes on, and its result is dropped.

    Not the loop's default executor, which is joined when the loop ends: one name server that does not answer would hold
    up the exit. Nor `run_blocking_async()`: it refuses once too many tools are stuck, and requests, reads of the store
    and the shutdown must still be possible then. For short work of our own, not for tools.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    done = OneShotEvent()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            results.append(context.run(work))
        except BaseException as exc:  # noqa: BLE001  (raised in the task that waits)
            errors.append(exc)
        done.set()

    pool.submit(run)
    await done.wait_async()
    if errors:
        try:
            raise errors[0]
        finally:
            errors.clear()  # the exception refers to this frame
    return results[0]


def cancel_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel all of them, but for the one with which asyncio connects the pipes of a process that it starts.

    If that is cancelled, the start never ends, and neither does the task that waits for it.
    """
    for task in tasks:
        if getattr(task.get_coro(), "__qualname__", "") != "BaseSubprocessTransport._connect_pipes":
            task.cancel()


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks of ours, and wait until they have ended.

    They are cancelled again and again: on Python 3.11, `asyncio.wait_for()` loses a cancellation that comes at the same
    time as its result, and libraries use it.
    """
    import asyncio

    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_CANCEL_INTERVAL)


async def _run(make: Callable[[], Awaitable[T]]) -> Any:
    return await make()
