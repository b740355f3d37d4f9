"""An event loop in a thread of its own, for things that are bound to one loop while their users come from many.

Sessions run on the loop of whoever called them; a browser or a connection to a server lives on one. Work is handed
over, and whoever waits for it waits on their own loop: a stop leaves at once, tells the work, and does not wait for it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import queue
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from halter.cancel.token import call_in_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

T = TypeVar("T")

_PATIENCE: Final = 1.0  # for tasks that are told to end with their loop


class LoopClosed(RuntimeError):
    """The loop was closed before the work was done."""


class LoopThread:
    """One loop, one daemon thread. Started by the first work; `close()` it, or the end of the process does."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()  # held to look and to change, never while anything runs
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._jobs: set[_Job[Any]] = set()  # not ended yet
        _open.add(self)

    @property
    def native_id(self) -> int:
        """The system's number of the thread, under which it lists the processes that were started there."""
        assert self._thread is not None
        return self._thread.native_id or 0

    async def do(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Have a coroutine run over there. If our own task is cancelled, it is told to end and left."""
        here = asyncio.get_running_loop()
        bell = here.create_future()

        def ring() -> None:
            if not bell.done():
                bell.set_result(None)

        job = _Job(self, make, lambda: call_in_loop(here, ring))
        self._submit(job)
        try:
            await bell
        except asyncio.CancelledError:
            job.cancel()
            raise
        return job.result()

    async def stream(self, make: Callable[[Callable[[T], None]], Coroutine[Any, Any, None]]) -> AsyncIterator[T]:
        """Have a coroutine run over there, and give what it emits as it comes: a partial result, should it be stopped.

        It is given a function to emit with.
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
        """Have a coroutine run over there and block for it, for at most *timeout* seconds: then TimeoutError."""
        bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        job = _Job(self, make, lambda: bell.put(None))
        self._submit(job)
        try:
            bell.get(timeout=timeout)
        except queue.Empty:
            job.cancel()
            msg = f"{self._name} did not answer within {timeout:g} s"
            raise TimeoutError(msg) from None
        except BaseException:
            job.cancel()
            raise
        return job.result()

    def close(self, patience: float = _PATIENCE) -> None:
        """End all tasks, the loop and the thread. Those who wait get LoopClosed. Bounded; may be called again."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            loop, thread = self._loop, self._thread
        if loop is not None and thread is not None:
            # Work that was submitted before is started before this, and so is told like the rest.
            call_in_loop(loop, lambda: self._start_drain(loop, patience))
            if thread is not threading.current_thread():
                thread.join(patience + 0.5)
        for job in list(self._jobs):
            job.abandon()

    # -- private --------------------------------------------------------------------------------

    def _submit(self, job: _Job[Any]) -> None:
        with self._lock:
            if self._is_closed:
                msg = f"{self._name} was closed"
                raise LoopClosed(msg)
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=[self._loop], name=self._name, daemon=True)
                self._thread.start()
            self._jobs.add(job)
            self._loop.call_soon_threadsafe(job.start)

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
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=patience)
        await asyncio.sleep(0)  # transports that were closed say goodbye in the next turn
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
    """One coroutine over there, and the bell of the one who waits for it over here."""

    def __init__(
        self, home: LoopThread, make: Callable[[], Coroutine[Any, Any, T]], ring: Callable[[], object]
    ) -> None:
        self._home = home
        self._make = make
        self._ring = ring
        self._context = contextvars.copy_context()
        self._task: asyncio.Task[T] | None = None
        self._is_unwanted = False

    def start(self) -> None:
        if self._is_unwanted:  # the stop came first: nothing starts after it
            self._home.forget(self)
            return
        self._task = asyncio.get_running_loop().create_task(self._make(), context=self._context)
        self._task.add_done_callback(self._has_ended)

    def cancel(self) -> None:
        """Tell it to end; from any thread."""
        self._is_unwanted = True
        self._home.cancel_job(self)

    def cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _has_ended(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # now it has been looked at, even if nobody waits for it any more
        self._home.forget(self)
        self._ring()

    def abandon(self) -> None:
        """The loop is gone, or stuck: nobody is to wait for it."""
        self._home.forget(self)
        self._ring()

    def result(self) -> T:
        if self._task is None or not self._task.done() or self._task.cancelled():
            msg = f"{self._home.name} was closed in the middle of this"
            raise LoopClosed(msg)
        return self._task.result()


_open: Final[weakref.WeakSet[LoopThread]] = weakref.WeakSet()


def _close_all() -> None:
    """At the end of the process: all of them together have the patience of one."""
    end = time.monotonic() + _PATIENCE
    for each in list(_open):
        with contextlib.suppress(Exception):
            each.close(max(0.0, end - time.monotonic()))


atexit.register(_close_all)
