"""Async code of others at work under a token, in a task of its own: at the stop it is told, and it may be left behind.

A task that is cancelled may swallow that, or hang in its clean-up, and whoever awaited it would hang with it. Here it
is waited for until the stop and a short grace, and not longer. The task that was left is kept until it ends; what it
then raises is nobody's any more.

A well-behaved task ends in the very turn of the loop in which it hears of the stop. So the waiter is not woken by that
end, which would take another turn, but together with the task and behind it: it finds the task ended, and is back as
soon as if it had done the work itself.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from halter.cancel.context import bind_from_here_on
from halter.cancel.scope import is_ending_itself, is_stop
from halter.cancel.token import CancellationToken, Cancelled, Waker, call_in_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_log = logging.getLogger(__name__)

# Asyncio refers to tasks weakly: one that was left and that nobody held could be collected in the middle.
_left: Final[set[asyncio.Task[BaseException | None]]] = set()


class Leavable:
    """*work* under *token*, until it has ended or has had its *grace* after the stop. Use each one once."""

    __slots__ = ("_bell", "_grace", "_has_waited", "_loop", "_name", "_task", "_token", "_work")

    def __init__(
        self, work: Callable[[], Awaitable[None]], token: CancellationToken, *, grace: float, name: str
    ) -> None:
        self._work = work
        self._token = token
        self._grace = grace
        self._name = name
        self._has_waited = False
        self._loop: asyncio.AbstractEventLoop
        self._bell: asyncio.Future[None]
        self._task: asyncio.Task[BaseException | None]

    async def run(self) -> None:
        """Start the work and wait for it. The token is bound for it, and told to it as ``token.scope()`` does.

        Raises what the work raised, if it has ended, and ``Cancelled`` if it was stopped or left. If our own task is
        cancelled, so is the token, with reason "external", and ``CancelledError`` comes out after the same grace.
        """
        token = self._token
        token.raise_if_cancelled()
        self._loop = asyncio.get_running_loop()
        self._bell = self._loop.create_future()
        self._task = self._loop.create_task(_in_task(self._work, token))
        self._task.add_done_callback(self._ring)
        registration = token._register(Waker(token, self._wake))
        stranger = None
        try:
            await self._bell
        except asyncio.CancelledError as exc:
            stranger = exc
            token.cancel("external", detail="its task was cancelled")
        if stranger is None and token.is_cancelled and self._task.cancelled():
            raise Cancelled(token)  # the usual stop, before all else: the waker has run, there is nothing to unregister
        if not self._task.done():
            stranger = await self._wait() or stranger
        registration()
        error = self._outcome()
        try:
            if stranger is not None:
                raise stranger
            if error is not None:
                raise error
        finally:
            # They refer to their own traceback, and that to us and so to the task that keeps them: without this they
            # would live until the next garbage collection.
            del self, error, stranger

    def _wake(self) -> None:
        call_in_loop(self._loop, self._tell)

    def _tell(self) -> None:
        if self._task.done():
            return
        if not self._has_waited and is_ending_itself(self._task):
            self._has_waited = True
            self._loop.call_soon(self._tell)
            return
        self._task.cancel()
        self._ring()

    def _ring(self, _: object = None) -> None:
        if not self._bell.done():
            self._bell.set_result(None)

    async def _wait(self) -> asyncio.CancelledError | None:
        """Wait for the end of the task, now that the stop is there; gives what cancelled us meanwhile."""
        until = self._loop.time() + self._grace
        stranger = None
        while not self._task.done() and (rest := until - self._loop.time()) > 0:
            try:
                await asyncio.wait([self._task], timeout=rest)
            except asyncio.CancelledError as exc:
                stranger = exc  # the wait is short: it is raised when that is over
        return stranger

    def _outcome(self) -> BaseException | None:
        """What the work has come to: None if it has finished."""
        task, token = self._task, self._token
        if not task.done():
            _log.warning("%s was stopped and does not end: it is left behind, its result goes nowhere", self._name)
            _left.add(task)
            task.add_done_callback(_forget)
            return Cancelled(token)
        if task.cancelled():
            return Cancelled(token) if token.is_cancelled else asyncio.CancelledError()
        error = _error_of(task)
        if isinstance(error, BaseExceptionGroup) and token.is_cancelled and is_stop(error, token):
            stop = Cancelled(token)
            stop.__cause__ = error
            return stop
        return error


async def _in_task(work: Callable[[], Awaitable[None]], token: CancellationToken) -> BaseException | None:
    bind_from_here_on(token)
    try:
        await work()
    except SystemExit as exc:  # out of a task these two would end the event loop, past whoever waits
        return exc
    except KeyboardInterrupt as exc:
        if asyncio.current_task() in _left:
            raise  # nobody waits any more, and it was meant for the program
        return exc
    return None


def _error_of(task: asyncio.Task[BaseException | None]) -> BaseException | None:
    error = task.exception()
    return task.result() if error is None else error


def _forget(task: asyncio.Task[BaseException | None]) -> None:
    _left.discard(task)
    error = None if task.cancelled() else _error_of(task)  # looked at, or asyncio would complain that nobody did
    _log.debug("what was left behind has ended%s", f", with {type(error).__name__}" if error is not None else "")
