"""``async with token.scope():`` the task of the body is cancelled with the token.

The protocol, between the thread that cancels the token, the event loop, and the task:

1. Entering raises ``Cancelled`` if the token is cancelled already, so a stop before the first ``await`` is not lost.
   Otherwise it registers a waker, and notes how many cancellations of the task are pending (``Task.cancelling()``).
2. The waker runs in the thread that cancels. It only calls ``call_soon_threadsafe``, which wakes an idle loop.
3. In the loop, if the body has not been left meanwhile, ``Task.cancel()`` is called once and counted. At that moment
   the task is suspended at an ``await`` of the body (a loop runs one thing at a time), so ``CancelledError`` is raised
   inside the body and cannot leak out of it. It is raised once: a body that swallows it gets no second one.
   If the body awaits something that ends by itself with the same token, as run_process() does to return the output so
   far, the cancellation is deferred by one iteration of the loop.
4. Leaving takes back exactly the cancellation that was counted (``Task.uncancel()``). If more are pending then than on
   entry, other code has cancelled the task too, and that cancellation wins.

What leaving does with what the body raised:

=================================  ==========================  ==================================
the body raised                    other code cancelled        only the token was cancelled
=================================  ==========================  ==================================
``CancelledError``, ``Cancelled``  ``token.cancel("external")``  ``Cancelled``
of this token, a group of those    and ``CancelledError``
another exception                  that exception              that exception
nothing: it has finished           nothing                     nothing
=================================  ==========================  ==================================

Races:

- The token is cancelled while the body returns. Either step 3 came first, and ``CancelledError`` was raised in the
  body, or it finds that the body was left and does nothing. Finished work stands in both cases.
- The token and other code cancel at the same time. asyncio merges the two into one ``CancelledError``. The count of
  step 4 shows that there were two, and the foreign one wins, so ``wait_for`` and ``TaskGroup`` around us keep working.
- Only other code cancels. The token is cancelled with reason "external" when the body is left, so that threads and
  processes below it stop.
- The loop is closed. There is no task to cancel; this is no error.
- A task of a ``TaskGroup`` in the body is cancelled before the body. The group then cancels the task of the body, and
  before Python 3.13 it may not take that back. So if the body raises a group of our own stops, the count means nothing,
  and is reset to what it was on entry.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING, Any

from halter.cancel.registration import LoopWaker
from halter.cancel.token import NEVER, CancellationToken, Cancelled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from halter.cancel.registration import Registration

# Tasks that await something that ends by itself when its token is cancelled.
_ending_tasks: dict[asyncio.Task[object], CancellationToken] = {}


@contextlib.contextmanager
def ends_on_cancel(token: CancellationToken) -> Iterator[None]:
    """Mark a block that ends by itself when *token* is cancelled: scopes around it give it one iteration to do so."""
    task = asyncio.current_task()
    assert task is not None  # a coroutine runs in a task
    _ending_tasks[task] = token
    try:
        yield
    finally:
        del _ending_tasks[task]


def is_ending(task: asyncio.Task[Any]) -> bool:
    """Whether *task* awaits something that ends by itself now. Its waker has run before ours: the deepest run first."""
    token = _ending_tasks.get(task)
    return token is not None and token.is_cancelled


class Scope:
    """One body under one token. Use each one once."""

    __slots__ = ("_left", "_loop", "_others", "_registration", "_task", "_token", "_was_cancelled", "_was_deferred")

    def __init__(self, token: CancellationToken) -> None:
        self._token = token
        self._task: asyncio.Task[object] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._registration: Registration | None = None
        self._others = 0  # cancellations of the task that were pending on entry
        self._was_deferred = False
        self._was_cancelled = False  # by us
        self._left = False

    async def __aenter__(self) -> CancellationToken:
        if self._task is not None:
            raise RuntimeError("this scope was already used; call token.scope() again for each block")
        self._task = asyncio.current_task()
        if self._task is None:
            raise RuntimeError(
                "token.scope() cancels a task, and this code does not run in one; use asyncio.run() or create_task()"
            )
        self._token.raise_if_cancelled()
        self._others = self._task.cancelling()
        self._loop = asyncio.get_running_loop()
        self._registration = self._token._register(LoopWaker(self._token, self._loop, self._cancel_task))
        return self._token

    def _cancel_task(self) -> None:
        if self._left or self._was_cancelled or self._task is None or self._loop is None:
            return
        if not self._was_deferred and is_ending(self._task):
            self._was_deferred = True
            self._loop.call_soon(self._cancel_task)
            return
        self._was_cancelled = True
        self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._left = True
        if self._task is None or self._registration is None:
            raise RuntimeError("this scope was never entered; write `async with token.scope():`")
        if self._was_cancelled:
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
    """Whether *exc* is a cancellation, by asyncio or of *token*, alone or in the group that a TaskGroup raises."""
    if isinstance(exc, asyncio.CancelledError):
        return True
    if isinstance(exc, BaseExceptionGroup):
        return all(is_stop(each, token) for each in exc.exceptions)
    return isinstance(exc, Cancelled) and exc.belongs_to(token)
