"""Halter's own event loop, on a daemon thread, for callers of `run()`. Started when first needed.

No wait for it is unbounded: when the process ends, the loop gets a fraction of a second to stop.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

from halter.cancel.context import current_token
from halter.cancel.exit import add_ending
from halter.cancel.fork import after_fork
from halter.cancel.loop_bridge import LoopJob
from halter.cancel.token import CancellationToken

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

_log = logging.getLogger(__name__)
PROCESS: Final = CancellationToken(name="process")
"""The root of all sessions: cancelled with reason "shutdown" when the process ends."""

_SECONDS_AT_EXIT: Final = 0.3
_SECONDS_TO_STOP: Final = 1.0  # for a coroutine whose caller has stopped waiting
_lock = threading.RLock()
_background: _BackgroundLoop | None = None


def run(make: Callable[[], Coroutine[Any, Any, T]], on_leave: Callable[[BaseException], object]) -> T:
    """Run a coroutine in the background loop and wait for it; context variables are carried over.

    If the wait is interrupted, for example by Ctrl+C, *on_leave* is called, the coroutine gets a second to end, and the
    exception is raised again.
    """
    background = _running_loop()
    if background.is_here():
        raise RuntimeError(
            "this would block the event loop that it waits for; use the async version: await session.arun()"
        )
    job: LoopJob[T] = LoopJob(background.loop, make)
    try:
        background.start(job)  # inside the try: the job may run before this returns
        job.wait()
    except BaseException as exc:
        on_leave(exc)
        job.wait(timeout=_SECONDS_TO_STOP)
        raise
    return job.result()


def run_for_caller(name: str, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine as `run()` does, below the caller's token. If the wait is interrupted, so is the coroutine."""
    caller = current_token().child(name)
    with caller.bind():
        return run(make, lambda exc: caller.cancel("interrupt", detail=type(exc).__name__))


def is_background_loop(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether *loop* is Halter's own, and not one of the program's."""
    return _background is not None and _background.loop is loop


class _BackgroundLoop:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="halter-loop", daemon=True)
        self._thread.start()
        self._unfinished: set[LoopJob[Any]] = set()

    def start(self, job: LoopJob[Any]) -> None:
        self._unfinished.add(job)
        job.ended.on_set(lambda: self._unfinished.discard(job) if job.is_done else None)
        job.start()

    def _run(self) -> None:
        """Run the loop. A boundary: code of a user that exits must not end the loop of all sessions."""
        asyncio.set_event_loop(self.loop)
        while True:
            try:
                self.loop.run_forever()
                break
            except (SystemExit, KeyboardInterrupt):
                _log.exception("code that ran in Halter's event loop raised")
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def is_here(self) -> bool:
        return threading.current_thread() is self._thread

    def end(self, seconds: float) -> list[str]:
        """Stop the loop, once its tasks have ended or their time is over. Names what has not ended."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(lambda: self.loop.create_task(self._drain(seconds / 2)))
            self._thread.join(seconds)
        return ["a turn whose end was not written"] * len(self._unfinished)

    async def _drain(self, seconds: float) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=seconds)
        self.loop.stop()


def _running_loop() -> _BackgroundLoop:
    global _background  # noqa: PLW0603  (one for the process)
    with _lock:
        if _background is None:
            _background = _BackgroundLoop()
            atexit.register(_end_at_exit, _SECONDS_AT_EXIT)
        return _background


def _end_at_exit(seconds: float) -> list[str]:
    """Stop all turns of `run()`, and name those that did not end in time."""
    PROCESS.cancel("shutdown", detail="the process ends")
    return _background.end(seconds) if _background is not None else []


def _after_fork() -> None:
    """Forget the loop in a forked child: its thread does not exist there."""
    global _background, _lock  # noqa: PLW0603
    _background = None
    _lock = threading.RLock()


after_fork(_after_fork)
add_ending(_end_at_exit)
