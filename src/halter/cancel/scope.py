"""``async with token.scope():`` the body's task is cancelled with the token.

The protocol, between the thread that cancels the token, the loop, and the body's task:

1. Entering raises ``Cancelled`` at once if the token is cancelled already: a stop before the first
   ``await`` is not lost. Otherwise it registers a waker and notes how many cancellations the task
   has pending from others (``Task.cancelling()``).
2. The waker runs in the thread that cancels. All it does is ``call_soon_threadsafe``, which wakes
   an idle loop at once.
3. In the loop, if the body has not been left meanwhile, ``Task.cancel()`` is called once and
   counted. The task is suspended at an ``await`` of the body at that moment (a loop runs one thing
   at a time), so ``CancelledError`` is raised inside the body and can not leak out behind it.
   Nothing is sent twice: a body that swallows the error has heard it and is not told again.
   A body that is just in something which ends by itself with the same stop, as run_process() does
   to hand over the output so far, is given one turn of the loop to come out of it first.
4. Leaving takes back exactly the cancellation that we counted (``Task.uncancel()``). If the task
   then still has more pending than on entry, somebody else cancelled it too, and that one wins.

What leaving does with what the body raised:

=================================  ==========================  ==================================
the body raised                    somebody else cancelled     only the token was cancelled
=================================  ==========================  ==================================
``CancelledError``, ``Cancelled``  ``token.cancel("external")``  ``Cancelled``
of this token, a group of those    and ``CancelledError``
another exception                  that exception              that exception
nothing: it has finished           nothing                     nothing
=================================  ==========================  ==================================

Races. The token is cancelled while the body returns: either step 3 came first, and the body was
told, or it finds the body left and does nothing; the finished work stands either way. The token
and a stranger cancel together: asyncio merges the two into one ``CancelledError``, the count of
step 4 tells them apart, and the stranger wins, so ``wait_for`` and ``TaskGroup`` around us keep
working. A stranger alone: the token is cancelled with reason "external" as the body is left, so
threads and processes below hear of it. The loop is closed: nobody is left to wake; not an error.
A task of a ``TaskGroup`` in the body hears of the stop before the body does: the group cancels the
body's task and, before Python 3.13, may forget to take that back. So there the count behind a group
of our own stops says nothing, and is set back to what it was on entry.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING, Any

from halter.cancel.token import NEVER, CancellationToken, Cancelled, Waker, call_in_loop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from halter.cancel.token import Registration

# Tasks that await something which ends by itself when its token is cancelled.
_ending_themselves: dict[asyncio.Task[object], CancellationToken] = {}


@contextlib.contextmanager
def ending_itself(token: CancellationToken) -> Iterator[None]:
    """Mark a block that ends at once when *token* is cancelled, so that scopes around it let it do so."""
    task = asyncio.current_task()
    assert task is not None  # whoever awaits is in one
    _ending_themselves[task] = token
    try:
        yield
    finally:
        del _ending_themselves[task]


def is_ending_itself(task: asyncio.Task[Any]) -> bool:
    """Whether *task* awaits something that was woken by the stop, and before us: wakers run from the deepest up."""
    token = _ending_themselves.get(task)
    return token is not None and token.is_cancelled


class Scope:
    """One body of one task under one token. Use each one once."""

    __slots__ = ("_has_waited", "_is_told", "_left", "_loop", "_others", "_registration", "_task", "_token")

    def __init__(self, token: CancellationToken) -> None:
        self._token = token
        self._task: asyncio.Task[object] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._registration: Registration | None = None
        self._others = 0  # cancellations of the task that were pending before us
        self._has_waited = False
        self._is_told = False  # whether we have called Task.cancel()
        self._left = False

    async def __aenter__(self) -> CancellationToken:
        if self._task is not None:
            msg = "this scope was used already; call token.scope() again for each block"
            raise RuntimeError(msg)
        self._task = asyncio.current_task()
        if self._task is None:
            msg = "token.scope() cancels a task, and this code does not run in one; use asyncio.run() or create_task()"
            raise RuntimeError(msg)
        self._token.raise_if_cancelled()
        self._others = self._task.cancelling()
        self._loop = asyncio.get_running_loop()
        self._registration = self._token._register(Waker(self._token, self._wake))
        return self._token

    def _wake(self) -> None:
        call_in_loop(self._loop, self._tell)

    def _tell(self) -> None:
        if self._left or self._is_told or self._task is None or self._loop is None:
            return
        if not self._has_waited and is_ending_itself(self._task):
            self._has_waited = True
            self._loop.call_soon(self._tell)
            return
        self._is_told = True
        self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._left = True
        if self._task is None or self._registration is None:
            msg = "this scope was never entered; write `async with token.scope():`"
            raise RuntimeError(msg)
        if self._is_told:
            pending = self._task.uncancel()  # the waker has run, so there is nothing to unregister
        else:
            self._registration()
            pending = self._task.cancelling()
        if sys.version_info < (3, 13) and isinstance(exc, BaseExceptionGroup) and is_stop(exc, self._token):
            while pending > self._others:
                pending = self._task.uncancel()
        if exc is None or not is_stop(exc, self._token):
            return
        if pending > self._others:
            if self._token is not NEVER:
                self._token.cancel("external", detail="its task was cancelled")
            if not isinstance(exc, asyncio.CancelledError):
                raise asyncio.CancelledError from exc
        elif self._token.is_cancelled and not isinstance(exc, Cancelled):
            raise Cancelled(self._token) from exc


def is_stop(exc: BaseException, token: CancellationToken) -> bool:
    """Whether *exc* is how a stop leaves a body: alone, or in the group that a TaskGroup makes of it."""
    if isinstance(exc, asyncio.CancelledError):
        return True
    if isinstance(exc, BaseExceptionGroup):
        return all(is_stop(each, token) for each in exc.exceptions)
    return isinstance(exc, Cancelled) and exc.belongs_to(token)
