"""Run a user's async code in a task of its own, so that a stop does not have to wait for it.

A cancelled task may swallow the cancellation or hang in its clean-up, and the caller hangs with it. Here the
caller waits until the stop plus a short grace. A task that is still running then is left behind: it is kept alive until
it ends, and its outcome goes to a callback, or nowhere.

A well-behaved task ends in the same loop iteration in which it is cancelled. So the caller is not woken by the end of
the task, which would take one more iteration, but together with the task and after it: it finds the task done, and
continues as early as if it had run the code itself.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from halter.cancel.context import bind_from_here_on
from halter.cancel.registration import LoopWaker
from halter.cancel.scope import is_ending, is_stop
from halter.cancel.token import CancellationToken, Cancelled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_log = logging.getLogger(__name__)

# asyncio holds tasks weakly: one that was left behind could be garbage-collected while it runs.
_left_behind: Final[set[asyncio.Task[BaseException | None]]] = set()


async def run_detached(
    work: Callable[[], Awaitable[None]],
    token: CancellationToken,
    *,
    grace: float,
    name: str,
    on_left: Callable[[], object] | None = None,
    on_late: Callable[[BaseException | None], object] | None = None,
) -> None:
    """Run *work* in a task under *token*, and wait until it ends or *grace* seconds after the stop.

    The token is bound inside *work*, and cancelling it cancels the task, as ``token.scope()`` does. Raises what *work*
    raised if it ended, and ``Cancelled`` if it was stopped or left behind. If the calling task is cancelled, the token
    is cancelled with reason "external", and ``CancelledError`` is raised after the same grace.

    *on_left* is called if *work* is left behind, before this raises; *on_late* once it then ends, with its exception or
    None. Both run in the event loop. *name* is for the log.
    """
    await _DetachedRun(work, token, grace, name, on_left, on_late).run()


class _DetachedRun:
    """One call of run_detached()."""

    __slots__ = (
        "_grace",
        "_loop",
        "_name",
        "_on_late",
        "_on_left",
        "_task",
        "_token",
        "_was_deferred",
        "_woken",
        "_work",
    )

    def __init__(
        self,
        work: Callable[[], Awaitable[None]],
        token: CancellationToken,
        grace: float,
        name: str,
        on_left: Callable[[], object] | None,
        on_late: Callable[[BaseException | None], object] | None,
    ) -> None:
        self._work = work
        self._token = token
        self._grace = grace
        self._name = name
        self._on_left = on_left
        self._on_late = on_late
        self._was_deferred = False
        self._loop: asyncio.AbstractEventLoop
        self._woken: asyncio.Future[None]
        self._task: asyncio.Task[BaseException | None]

    async def run(self) -> None:
        token = self._token
        token.raise_if_cancelled()
        self._loop = asyncio.get_running_loop()
        self._woken = self._loop.create_future()
        self._task = self._loop.create_task(_in_task(self._work, token))
        self._task.add_done_callback(self._wake)
        registration = token._register(LoopWaker(token, self._loop, self._cancel_task))
        cancellation = None  # of our own task, by somebody else
        try:
            await self._woken
        except asyncio.CancelledError as exc:
            cancellation = exc
            token.cancel("external", detail="its task was cancelled")
        if cancellation is None and token.is_cancelled and self._task.cancelled():
            raise Cancelled(token)  # the usual stop, checked first: the waker has run, nothing is left to unregister
        if not self._task.done():
            cancellation = await self._wait_for_grace() or cancellation
        registration()
        error = self._outcome()
        try:
            if cancellation is not None:
                raise cancellation
            if error is not None:
                raise error
        finally:
            # An exception refers to its traceback, that to this frame, and this frame to the task that holds the
            # exception: without this the cycle would live until the next garbage collection.
            del self, error, cancellation

    def _cancel_task(self) -> None:
        if self._task.done():
            return
        if not self._was_deferred and is_ending(self._task):
            self._was_deferred = True
            self._loop.call_soon(self._cancel_task)
            return
        self._task.cancel()
        self._wake()

    def _wake(self, _: object = None) -> None:
        if not self._woken.done():
            self._woken.set_result(None)

    async def _wait_for_grace(self) -> asyncio.CancelledError | None:
        """Wait until the cancelled task ends or its grace is over; returns what cancelled our own task meanwhile."""
        until = self._loop.time() + self._grace
        cancellation = None
        while not self._task.done() and (remaining := until - self._loop.time()) > 0:
            try:
                await asyncio.wait([self._task], timeout=remaining)
            except asyncio.CancelledError as exc:
                cancellation = exc  # the wait is short: this is raised when it is over
        return cancellation

    def _outcome(self) -> BaseException | None:
        """The exception that the caller gets; None if the work finished."""
        task, token = self._task, self._token
        if not task.done():
            self._leave_behind()
            return Cancelled(token)
        if task.cancelled():
            return Cancelled(token) if token.is_cancelled else asyncio.CancelledError()
        error = _error_of(task)
        if isinstance(error, BaseExceptionGroup) and token.is_cancelled and is_stop(error, token):
            stop = Cancelled(token)
            stop.__cause__ = error
            return stop
        return error

    def _leave_behind(self) -> None:
        _log.warning("%s was stopped but is still running; it is abandoned, and its result will be ignored", self._name)
        _left_behind.add(self._task)
        self._task.add_done_callback(self._on_late_end)
        if self._on_left is not None:
            self._on_left()

    def _on_late_end(self, task: asyncio.Task[BaseException | None]) -> None:
        _left_behind.discard(task)
        # Also retrieves the exception: otherwise asyncio would log that it was never retrieved.
        error = asyncio.CancelledError() if task.cancelled() else _error_of(task)
        _log.debug("%s ended late%s", self._name, f", with {type(error).__name__}" if error is not None else "")
        if self._on_late is not None:
            self._on_late(error)


async def _in_task(work: Callable[[], Awaitable[None]], token: CancellationToken) -> BaseException | None:
    """Run the work. Returns SystemExit and KeyboardInterrupt: raised in a task, they would end the event loop."""
    bind_from_here_on(token)
    try:
        await work()
    except SystemExit as exc:
        return exc
    except KeyboardInterrupt as exc:
        if asyncio.current_task() in _left_behind:
            raise  # it was left behind, and this is meant for the program
        return exc
    return None


def _error_of(task: asyncio.Task[BaseException | None]) -> BaseException | None:
    error = task.exception()
    return task.result() if error is None else error
