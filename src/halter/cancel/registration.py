"""Callbacks of a token: those of users (``Registration``), and our own, which wake threads and event loops (wakers).

A cancellation runs early wakers, then wakers, then loop wakers, then the users' callbacks. Wakers come first because
they are quick: a user's callback may take long, and must not delay those who wait.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from typing import TYPE_CHECKING, Any, Self

from halter.cancel import token_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halter.cancel.token import CancellationToken

_log = logging.getLogger(__name__)


class Registration:
    """One callback of one token. Call it, or leave its ``with`` block, to unregister."""

    __slots__ = ("_fn", "_token")

    def __init__(self, token: CancellationToken, fn: Callable[[], object]) -> None:
        self._token = token
        self._fn: Callable[[], object] | None = fn

    def _take(self) -> Callable[[], object] | None:
        """Claim the callback: exactly one caller ever gets it."""
        with token_tree.lock:
            fn = self._fn
            self._fn = None
        return fn

    def __call__(self) -> bool:
        """Unregister. True if the callback has not started and now never will.

        Does not wait for a callback that is already running: if that needs a lock or the thread of the caller, waiting
        for it would be a deadlock.
        """
        unregistered = self._take() is not None
        if unregistered:
            self._token._remove_registration(self)
        return unregistered

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self()


class Waker(Registration):
    """A callback of our own: quick, unable to fail, harmless if it runs twice."""

    __slots__ = ()


class EarlyWaker(Waker):
    """A waker that runs before all others of the subtree, because it makes them quicker."""

    __slots__ = ()


class LoopWaker(Waker):
    """A waker that runs in an event loop.

    A cancellation wakes each loop once, however many wakers it has there: each wake-up is a system call, during which
    other threads may take the interpreter lock.
    """

    __slots__ = ("_loop",)

    def __init__(self, token: CancellationToken, loop: Any, fn: Callable[[], object]) -> None:
        super().__init__(token, fn)
        self._loop = loop

    def _take(self) -> Callable[[], object] | None:
        fn = super()._take()
        return None if fn is None else lambda: call_in_loop(self._loop, fn)


def wake_on_cancel(token: CancellationToken, wake: Callable[[], object]) -> Registration:
    """Register a Waker: for our own code above this package."""
    return token._register(Waker(token, wake))


def run_first_on_cancel(token: CancellationToken, fn: Callable[[], object]) -> Registration:
    """Register an EarlyWaker."""
    return token._register(EarlyWaker(token, fn))


def wake_loop_on_cancel(token: CancellationToken, loop: Any, wake: Callable[[], object]) -> Registration:
    """Register a LoopWaker: *wake* runs in *loop*."""
    return token._register(LoopWaker(token, loop, wake))


def run_callback(fn: Callable[[], object] | None) -> None:
    """Run one callback. A boundary: its error is logged, because the others must run too."""
    if fn is not None:
        try:
            fn()
        except Exception:  # noqa: BLE001  (a boundary)
            _log.exception("a cancellation callback failed: %r", fn)


def wake_loops(wakers: list[LoopWaker]) -> None:
    """Run these wakers in their loops, the deepest first."""
    by_loop: dict[Any, list[Callable[[], object]]] = {}
    for waker in reversed(wakers):
        fn = waker._fn
        if fn is not None:
            by_loop.setdefault(waker._loop, []).append(fn)
    for loop, fns in by_loop.items():
        call_in_loop(loop, fns[0] if len(fns) == 1 else functools.partial(_run_all, fns))


def _run_all(fns: list[Callable[[], object]]) -> None:
    for fn in fns:
        run_callback(fn)


class _Gathered(threading.local):
    calls: dict[Any, list[Callable[[], object]]] | None = None


_gathered = _Gathered()


@contextlib.contextmanager
def wake_loops_once() -> Iterator[None]:
    """Have `call_in_loop()` of this thread wake each loop once, at the end of this block.

    For a block of our own code that is quick. Each wake-up is a system call, during which the loop takes the
    interpreter lock; this thread would have to take it back each time.
    """
    calls: dict[Any, list[Callable[[], object]]] = {}
    _gathered.calls = calls
    try:
        yield
    finally:
        _gathered.calls = None
        for loop, fns in calls.items():
            call_in_loop(loop, functools.partial(_run_all, fns))


def call_in_loop(loop: Any, fn: Callable[[], object]) -> None:
    """Run *fn* in an event loop, from any thread; does nothing if that loop is closed."""
    import asyncio

    if _gathered.calls is not None:
        _gathered.calls.setdefault(loop, []).append(fn)
        return
    try:
        here = asyncio._get_running_loop()
        if here is not None and here is loop and asyncio.current_task(here) is not None:
            here.call_soon(fn)  # a task of this loop is running, so it does not sleep: no system call to wake it
        else:
            loop.call_soon_threadsafe(fn)
    except RuntimeError:
        _log.debug("the event loop of %r is closed", fn)
