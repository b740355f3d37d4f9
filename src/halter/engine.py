"""Halter's own event loop, in a thread of its own: for those who do not have one. Started when it is first needed.

Nobody waits for it without end: it is a daemon thread, and at the end of the process it is told, and given a moment.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import queue
import threading
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from halter.cancel.fork import after_fork
from halter.cancel.token import CancellationToken

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

PROCESS: Final = CancellationToken(name="process")
"""The root of all sessions: cancelled with reason "shutdown" when the process ends."""

_PATIENCE: Final = 0.3
_lock = threading.RLock()
_engine: _Engine | None = None


def run(make: Callable[[], Coroutine[Any, Any, T]], on_leave: Callable[[BaseException], object]) -> T:
    """Run a coroutine in the engine's loop and wait for it; context variables are carried over.

    If the wait is broken off, as by Ctrl+C, *on_leave* is told, the coroutine is given a moment, and the exception goes
    on.
    """
    engine = _running_engine()
    if engine.is_here():
        msg = "this blocks, and would block the event loop that it waits for; use the async twin: await session.arun()"
        raise RuntimeError(msg)
    job: _Job[T] = _Job(make, contextvars.copy_context())
    try:
        engine.loop.call_soon_threadsafe(job.start)  # in here: the job may be at work before this is back
        job.wait(None)
    except BaseException as exc:
        on_leave(exc)
        job.wait(1.0)
        raise
    return job.result()


class _Job(Generic[T]):
    """One coroutine, and the thread that waits for it."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, T]], context: contextvars.Context) -> None:
        self._make = make
        self._context = context
        self._task: asyncio.Task[T] | None = None
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._make(), context=self._context)
        self._task.add_done_callback(self._has_ended)

    def _has_ended(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # now it has been looked at, even if nobody waits for it any more
        self._bell.put(None)

    def wait(self, timeout: float | None) -> None:
        try:
            self._bell.get(timeout=timeout)
        except queue.Empty:
            return

    def result(self) -> T:
        assert self._task is not None
        return self._task.result()


class _Engine:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="halter-engine", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def is_here(self) -> bool:
        return threading.current_thread() is self._thread

    def end(self) -> None:
        """Stop the loop, after the tasks that are to end by themselves; with bounded patience."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(lambda: self.loop.create_task(self._drain()))
            self._thread.join(_PATIENCE)

    async def _drain(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=_PATIENCE / 2)
        self.loop.stop()


def _running_engine() -> _Engine:
    global _engine  # noqa: PLW0603  (one for the process)
    with _lock:
        if _engine is None:
            _engine = _Engine()
            atexit.register(_end_at_exit, _engine)
        return _engine


def _end_at_exit(engine: _Engine) -> None:
    PROCESS.cancel("shutdown", detail="the process ends")
    engine.end()


def _after_fork() -> None:
    """Start afresh in a forked child, which has none of our threads."""
    global _engine, _lock  # noqa: PLW0603
    _engine = None
    _lock = threading.RLock()


after_fork(_after_fork)
