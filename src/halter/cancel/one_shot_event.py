"""An event that happens once: set from anywhere, awaited by threads and tasks, observed by callbacks.

`set()` may be called from any thread, a signal handler and `__del__`. There is no lock: a callback is registered first
and the flag is read afterwards, `set()` writes the flag first and takes the callbacks afterwards. The second one
sees the other, and taking a callback out of the dict is atomic, so each runs exactly once.

A signal handler may raise in `set()`, as Ctrl+C does. Then a worker thread, in which no handler runs, calls what is
left. The callback that was interrupted is called again, since nobody knows how far it came.
"""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING

from halter.cancel.registration import call_in_loop, wake_loop_on_cancel
from halter.cancel.threads import pool
from halter.cancel.wake_signal import WakeSignal

if TYPE_CHECKING:
    from collections.abc import Callable

    from halter.cancel.token import CancellationToken

_log = logging.getLogger(__name__)
_keys = itertools.count()


class OneShotEvent:
    """Not set when made; set once, for ever."""

    __slots__ = ("_callbacks", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._callbacks: dict[int, Callable[[], object]] = {}

    def __repr__(self) -> str:
        return f"<OneShotEvent {'set' if self.is_set else 'not set'}>"

    def set(self) -> None:
        """Set it, and run the callbacks in this thread. Setting it again does nothing."""
        self.is_set = True
        taken: list[tuple[int, Callable[[], object]]] = []
        try:
            self._run_callbacks(taken)
        except BaseException:
            try:
                pool.submit(lambda: self._run_callbacks(taken))
            except RuntimeError:  # no thread can be started: the interpreter is about to end
                self._run_callbacks(taken)
            raise

    def _run_callbacks(self, taken: list[tuple[int, Callable[[], object]]]) -> None:
        """Run the callback that is in *taken*, and all that are still registered."""
        while True:
            if not taken:
                # One call, in which no signal handler runs: a callback is always in one of the two places.
                try:
                    taken.extend(itertools.islice(iter(self._callbacks.popitem, None), 1))
                except KeyError:
                    return
            _run(taken[0][1])
            taken.clear()

    def on_set(self, callback: Callable[[], object]) -> Callable[[], bool]:
        """Call *callback* once: when set, or now if it is. The function returned unregisters; True if that was in time.

        *callback* runs in the thread that sets the event, so it must be quick and must not wait.
        """
        key = next(_keys)
        self._callbacks[key] = callback
        if self.is_set and self._callbacks.pop(key, None) is not None:
            callback()
        return lambda: self._callbacks.pop(key, None) is not None

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until it is set. False if *timeout* seconds passed first."""
        if self.is_set:
            return True
        woken = WakeSignal()
        unregister = self.on_set(woken.set)
        try:
            woken.wait(timeout)
        finally:
            unregister()
        return self.is_set

    async def wait_async(self, timeout: float | None = None, *, token: CancellationToken | None = None) -> bool:  # noqa: ASYNC109  (as its twin)
        """Suspend this task until it is set. False if *timeout* seconds passed or *token* was cancelled first."""
        if self.is_set or (token is not None and token.is_cancelled):
            return self.is_set
        import asyncio  # only now: it is slow to import, and cannot be imported when the interpreter ends

        loop = asyncio.get_running_loop()
        woken = loop.create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        unregister = self.on_set(lambda: call_in_loop(loop, wake))
        registration = None if token is None else wake_loop_on_cancel(token, loop, wake)
        timer = None if timeout is None else loop.call_later(timeout, wake)
        try:
            await woken
        finally:
            unregister()
            if registration is not None:
                registration()
            if timer is not None:
                timer.cancel()
        return self.is_set


def _run(callback: Callable[[], object]) -> None:
    """Run one callback. A boundary: its error is logged, because the others must run too."""
    try:
        callback()
    except Exception:  # noqa: BLE001  (a boundary)
        _log.exception("a callback of an event failed: %r", callback)
