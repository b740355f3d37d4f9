"""An event loop in its own thread, for objects that are bound to one loop while their users are on many.

Sessions run on the loop of their caller; a browser or a connection to a server is bound to one loop. Work is handed
over, and the caller waits on its own loop: a stop returns at once, cancels the work, and does not wait for it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from halter.cancel.loop_bridge import cancel_tasks
from halter.cancel.registration import call_in_loop
from halter.cancel.wake_signal import WakeSignal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

T = TypeVar("T")

_END_TIMEOUT: Final = 1.0  # seconds for tasks to end with their loop


class LoopClosed(RuntimeError):
    """The loop was closed before the work was done."""


class LoopThread:
    """One loop, one daemon thread. Started by the first work; `close()` it, or the end of the process does."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()  # held to read and to change, never while anything runs
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._jobs: set[_Job[Any]] = set()  # not ended yet
        _open.add(self)

    @property
    def is_running(self) -> bool:
        """Whether it was needed yet, and was not closed."""
        return self._thread is not None and self._thread.is_alive()

    async def do(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in that loop. If our own task is cancelled, the coroutine is cancelled and not waited for."""
        here = asyncio.get_running_loop()
        ended = here.create_future()

        def set_ended() -> None:
            if not ended.done():
                ended.set_result(None)

        job = _Job(self, make, lambda: call_in_loop(here, set_ended))
        self._submit(job)
        try:
            await ended
        except asyncio.CancelledError:
            job.cancel()
            raise
        return job.result()

    async def stream(self, make: Callable[[Callable[[T], None]], Coroutine[Any, Any, None]]) -> AsyncIterator[T]:
        """Run a coroutine in that loop, and yield what it emits as it comes: a partial result, should it be stopped.

        It gets a function to emit with.
        """
        here = asyncio.get_running_loop()
        pieces: asyncio.Queue[tuple[T] | None] = asyncio.Queue()

        def emit(piece: T) -> None:
            call_in_loop(here, lambda: pieces.put_nowait((piece,)))

        async def whole() -> None:
            try:
                await self.do(lambda: make(emit))
            finally:
                pieces.put_nowait(None)

        task = here.create_task(whole())
        try:
            while (piece := await pieces.get()) is not None:
                yield piece[0]
            await task
        finally:
            task.cancel()

    def do_blocking(self, make: Callable[[], Coroutine[Any, Any, T]], timeout: float) -> T:
        """Run a coroutine in that loop and block for it, for at most *timeout* seconds: then TimeoutError."""
        ended = WakeSignal()
        job = _Job(self, make, ended.set)
        try:
            self._submit(job)  # inside: Ctrl+C may come as soon as the work has begun
            is_in_time = ended.wait(timeout)
        except BaseException:
            job.cancel()
            raise
        if not is_in_time:
            job.cancel()
            raise TimeoutError(f"{self._name} did not answer within {timeout:g} s")
        return job.result()

    def spawn(self, make: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Run a coroutine in that loop that nobody waits for; it must not raise. False if the loop is closed."""
        try:
            self._submit(_Job(self, make, lambda: None))
        except LoopClosed:
            return False
        return True

    def call(self, fn: Callable[[], object]) -> bool:
        """Have a function called in that loop, soon. False if the loop is closed."""
        with self._lock:
            if not self._is_closed:
                self._started().call_soon_threadsafe(fn)
            return not self._is_closed

    def close(self, patience: float = _END_TIMEOUT) -> None:
        """End all tasks, the loop and the thread. Callers that wait get LoopClosed. Bounded; may be called again."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            loop, thread = self._loop, self._thread
        if loop is not None and thread is not None:
            # Work that was submitted before is started before this, and so is cancelled like the rest.
            call_in_loop(loop, lambda: self._start_drain(loop, patience))
            if thread is not threading.current_thread():
                thread.join(patience + 0.5)
        for job in list(self._jobs):
            job.abandon()

    # -- private --------------------------------------------------------------------------------

    def _submit(self, job: _Job[Any]) -> None:
        with self._lock:
            if self._is_closed:
                raise LoopClosed(f"{self._name} was closed")
            loop = self._started()
            self._jobs.add(job)
            loop.call_soon_threadsafe(job.start)

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._run, args=[self._loop], name=self._name, daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # no thread can be started now; the next work tries again
                self._loop.close()
                self._loop = self._thread = None
                raise
        return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    def _start_drain(self, loop: asyncio.AbstractEventLoop, patience: float) -> None:
        self._draining = loop.create_task(self._drain(loop, patience))

    async def _drain(self, loop: asyncio.AbstractEventLoop, patience: float) -> None:
        until = loop.time() + patience
        await asyncio.sleep(0)  # a task that was just made starts: one that is cancelled before never cleans up
        while (others := asyncio.all_tasks() - {asyncio.current_task()}) and (left := until - loop.time()) > 0:
            cancel_tasks(others)
            await asyncio.wait(others, timeout=left)
            await asyncio.sleep(0)  # tasks that were made meanwhile start, too
        await asyncio.sleep(0)  # transports that were closed finish in the next iteration
        loop.stop()

    def cancel_job(self, job: _Job[Any]) -> None:
        loop = self._loop
        if loop is not None:
            call_in_loop(loop, job.cancel_task)

    def forget(self, job: _Job[Any]) -> None:
        self._jobs.discard(job)

    @property
    def name(self) -> str:
        return self._name


class _Job(Generic[T]):
    """One coroutine in that loop, and a callback for its end."""

    def __init__(
        self, home: LoopThread, make: Callable[[], Coroutine[Any, Any, T]], on_end: Callable[[], object]
    ) -> None:
        self._home = home
        self._make = make
        self._on_end = on_end
        self._context = contextvars.copy_context()
        self._task: asyncio.Task[T] | None = None
        self._is_cancelled = False

    def start(self) -> None:
        if self._is_cancelled:  # the stop came first: nothing starts after it
            self._home.forget(self)
            return
        self._task = asyncio.get_running_loop().create_task(self._run(), context=self._context)
        self._task.add_done_callback(self._has_ended)

    async def _run(self) -> T:
        return await self._make()  # in the task, so that its errors are the task's

    def cancel(self) -> None:
        """Cancel it; from any thread."""
        self._is_cancelled = True
        self._home.cancel_job(self)

    def cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _has_ended(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not warn if nobody waits for it
        self._home.forget(self)
        self._on_end()

    def abandon(self) -> None:
        """The loop is gone or stuck: end the wait for it."""
        self._home.forget(self)
        self._on_end()

    def result(self) -> T:
        if self._task is None or not self._task.done() or self._task.cancelled():
            raise LoopClosed(f"{self._home.name} was closed in the meantime")
        return self._task.result()


_open: Final[weakref.WeakSet[LoopThread]] = weakref.WeakSet()


def _close_all() -> None:
    """At the end of the process: all of them together have the time of one."""
    end = time.monotonic() + _END_TIMEOUT
    for each in list(_open):
        with contextlib.suppress(Exception):
            each.close(max(0.0, end - time.monotonic()))


atexit.register(_close_all)
