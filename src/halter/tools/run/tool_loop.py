"""An event loop for async tools, on a thread of its own, so that a tool that blocks it delays no session.

The sessions of `run()` and of the gateway share Halter's own loop, and their async tools share one tool loop. Such a
tool can block its loop, by `time.sleep` or a library that is not async. Then its call is stopped as always: the session
waits for the grace and abandons the call. The blocked loop is retired together with it: it gets no new work, and a
fresh loop takes its place. A loop is also retired if a new call finds that it does not answer. Calls that are left on a
retired loop may still end there, in time or late; then its thread ends.

What a tool keeps from one call to the next and binds to its loop, such as an HTTP session, is not usable in the next
loop. Tools that need one loop for ever belong to programs that use `arun()`: there they run in the program's own loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
from typing import TYPE_CHECKING, Final

from halter.cancel.fork import after_fork
from halter.cancel.loop_bridge import LoopJob
from halter.cancel.one_shot_event import OneShotEvent
from halter.cancel.registration import call_in_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from halter.cancel.token import CancellationToken

_log = logging.getLogger(__name__)
# A loop that has not started a call after this many seconds is blocked.
_START_TIMEOUT: Final = 0.1
# Seconds that a call always has to end after a stop. The stop reaches the tool loop in another thread, and a tool that
# ends at once needs a few iterations there: with a grace of 0 it would be reported as not ended.
_MIN_GRACE: Final = 0.05
_numbers = itertools.count(1)
_lock = threading.Lock()
_shared: ToolLoop | None = None


class ToolLoop:
    """A loop on a daemon thread, which is never joined."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.is_retired = False
        threading.Thread(target=self._run, name=f"halter-tools-{next(_numbers)}", daemon=True).start()

    def ping(self) -> OneShotEvent:
        """An event that is set as soon as the loop answers."""
        answered = OneShotEvent()
        call_in_loop(self.loop, answered.set)
        return answered

    def retire(self) -> None:
        """Give it no new work. Its thread ends once nothing is left on it."""
        self.is_retired = True
        self.end_if_idle()

    def end_if_idle(self) -> None:
        """Check, in the loop, whether a retired loop can end."""
        call_in_loop(self.loop, self._end_if_idle)

    def _end_if_idle(self) -> None:
        if self.is_retired and not asyncio.all_tasks(self.loop):
            self.loop.stop()

    def _run(self) -> None:
        """Run the loop. A boundary: a callback of a tool that exits must not end the loop of all others."""
        asyncio.set_event_loop(self.loop)
        while True:
            try:
                self.loop.run_forever()
                break
            except (SystemExit, KeyboardInterrupt):
                _log.exception("a callback in the loop of the async tools raised")
        with contextlib.closing(self.loop):
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())


def shared_tool_loop() -> ToolLoop:
    """The loop for new calls: one for the process, until it is retired."""
    global _shared  # noqa: PLW0603  (one for the process)
    with _lock:
        if _shared is None or _shared.is_retired:
            _shared = ToolLoop()
        return _shared


async def run_on_tool_loop(
    work: Callable[[], Awaitable[None]],
    token: CancellationToken,
    *,
    grace: float,
    get_loop: Callable[[], ToolLoop],
    on_left: Callable[[], object],
) -> None:
    """Run *work* under *token* on a tool loop, and wait in this loop until it ends, or *grace* seconds after the stop.

    *on_left* is called if it has not ended by then; it may still end later. Returns without having begun if the stop
    comes first, and raises RuntimeError if the tool loop ends under it.
    """

    async def in_tool_loop() -> None:
        try:
            with token.bind():
                async with token.scope():
                    await work()
        finally:
            tool_loop.loop.call_soon(tool_loop.end_if_idle)  # once this task has ended

    while True:
        tool_loop = get_loop()
        job = LoopJob(tool_loop.loop, in_tool_loop)
        job.start()
        await job.started.wait_async(_START_TIMEOUT, token=token)
        if token.is_cancelled and job.revoke():
            return
        if job.started.is_set or not job.revoke():
            break
        _log.warning("the loop of the async tools does not respond and is replaced")
        tool_loop.retire()
    answered: OneShotEvent | None = None
    try:
        await job.ended.wait_async(token=token)
        if not job.ended.is_set:
            answered = tool_loop.ping()
            await job.ended.wait_async(max(grace, _MIN_GRACE))
    finally:  # also if our own task is cancelled, perhaps before the ping: then the next call finds out
        if not job.ended.is_set:
            on_left()
            if answered is not None and not answered.is_set:
                tool_loop.retire()
    if job.ended.is_set and not job.is_done:
        raise RuntimeError("the loop of the async tools has ended")


def _after_fork() -> None:
    """A forked child has none of our threads."""
    global _shared, _lock  # noqa: PLW0603
    _shared = None
    _lock = threading.Lock()


after_fork(_after_fork)
