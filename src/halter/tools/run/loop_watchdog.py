"""Warns about async tools that block their event loop: meanwhile no stop is delivered and nothing else runs there.

Each step of a tool's task, from one await to the next, notes when it began. A deadline, in the thread of all deadlines,
checks it 100 ms later, and logs the tool and the line at which it is just then. The deadline is armed by the first
step after the last one has passed, so it costs two writes for each step, and nothing while all tools wait.

It covers what a tool's own task does, including all that it awaits. It does not cover tasks and callbacks that the tool
has started, nor code that blocks the loop outside of tools. Each call is logged once.
"""

from __future__ import annotations

import inspect
import logging
import threading
import time
import types
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from halter.cancel.threads import pool
from halter.cancel.threads.frames import frame_of
from halter.cancel.token import CancellationToken

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

_log = logging.getLogger(__name__)
_MAX_STEP: Final = 0.1  # seconds


class WatchedCall:
    """One call of an async tool."""

    __slots__ = ("_fn", "_name", "was_logged")

    def __init__(self, name: str, fn: Callable[..., object]) -> None:
        self._name = name
        self._fn = fn
        self.was_logged = False

    @types.coroutine
    def watch(self, work: Coroutine[Any, Any, None]) -> Generator[Any, Any, None]:
        """Run *work* step by step; the watchdog of this thread checks each step."""
        watchdog = _watchdog_here()
        value: Any = None
        error: BaseException | None = None
        while True:
            watchdog.begin_step(self)
            try:
                awaited = work.send(value) if error is None else work.throw(error)
            except StopIteration:
                return
            finally:
                watchdog.end_step()
                error = None
            try:
                value = yield awaited
            except BaseException as exc:  # noqa: BLE001  (goes on into the coroutine)
                error = exc

    def log(self, thread: int) -> None:
        """Log where the thread is, in the code of the tool."""
        self.was_logged = True
        frame = innermost = frame_of(thread)
        code = getattr(inspect.unwrap(self._fn), "__code__", None)
        while frame is not None and frame.f_code is not code:
            frame = frame.f_back
        frame = frame or innermost
        where = "" if frame is None else f" at {frame.f_code.co_filename}:{frame.f_lineno}"
        _log.warning(
            "the async tool %r has blocked its event loop for more than %g ms%s: nothing else in that loop runs "
            "meanwhile, not even a stop. Make it a plain `def`, or run what blocks by run_blocking_async()",
            self._name,
            _MAX_STEP * 1000,
            where,
        )


class _Step(NamedTuple):
    call: WatchedCall
    began: float


class _LoopWatchdog:
    """The watchdog of one thread. Steps are begun and ended in that thread, deadlines pass in another."""

    __slots__ = ("_is_armed", "_step", "_thread")

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._step: _Step | None = None
        self._is_armed = False

    def begin_step(self, call: WatchedCall) -> None:
        if call.was_logged:
            return
        self._step = _Step(call, time.monotonic())
        if not self._is_armed:  # read after the step was written, see _check_step()
            self._arm(_MAX_STEP)

    def end_step(self) -> None:
        self._step = None

    def _arm(self, seconds: float) -> None:
        self._is_armed = True
        CancellationToken(timeout=seconds, name="loop watchdog").on_cancel(self._check_step)

    def _check_step(self) -> None:
        self._is_armed = False
        step = self._step  # read after the flag was written: a step that begins now arms the next deadline, or is seen
        if step is None:
            return
        left = step.began + _MAX_STEP - time.monotonic()
        if left > 0:
            self._arm(left)
        elif not step.call.was_logged:
            pool.submit(lambda: step.call.log(self._thread))  # a slow log must not delay all deadlines


_here = threading.local()


def _watchdog_here() -> _LoopWatchdog:
    found: _LoopWatchdog | None = getattr(_here, "watchdog", None)
    if found is None:
        found = _here.watchdog = _LoopWatchdog()
    return found
