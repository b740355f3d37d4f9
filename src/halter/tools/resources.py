"""Objects that tools keep from one call to the next: a working directory, a browser, an interpreter.

    shells = ctx.keep(Shells)          # one for each session, made by the first call that asks
    shells.directory = ...

Whatever has a `close()` is closed with the session, the newest first, in a thread and within a bounded time: what does
not close is left behind and named in the log. `close()` may come at any time, also while a call uses the object.

What runs between calls, such as background jobs, has a `stop_all()`: a stop of the turn leaves it alone, and
`session.stop(scope="all")` ends it too.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from halter.cancel.one_shot_event import OneShotEvent
from halter.cancel.threads import pool

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

T = TypeVar("T")

_log = logging.getLogger(__name__)
_CLOSE_TIMEOUT: Final = 3.0  # seconds
_lock = threading.Lock()  # one for all sessions: held to find and to add, never while anything is made or closed
_MIN_TIMEOUT: Final = 0.01  # seconds that each object gets, also when the time is over


class SessionResources:
    """The objects that are kept for one session."""

    __slots__ = ("_is_closed", "_kept")

    def __init__(self) -> None:
        self._kept: dict[Hashable, Any] = {}
        self._is_closed = False

    def __bool__(self) -> bool:
        return bool(self._kept)

    def keep(self, make: Callable[[], T], key: Hashable = None) -> T:
        """The object that *make* makes, the same one for every call; *key* distinguishes those of one maker."""
        name = (make, key)
        with _lock:
            if name in self._kept:
                found: T = self._kept[name]
                return found
        made = make()
        with _lock:
            if not self._is_closed:
                kept: T = self._kept.setdefault(name, made)
                if kept is made:
                    return kept
        _close(made)  # two calls made one at the same time, or the session was closed in the meantime
        if self._is_closed:
            raise RuntimeError("the session was closed: nothing can be kept in it any more")
        return self.keep(make, key)

    def stop_all(self) -> None:
        """Stop what runs between calls: whatever has a `stop_all()`. Returns at once, and nothing is raised."""
        for each in list(self._kept.values()):
            if callable(getattr(each, "stop_all", None)):
                _try_submit(functools.partial(_stop, each))

    def close(self, timeout: float = _CLOSE_TIMEOUT) -> None:
        """Close what is kept, the newest first. Bounded, and nothing is raised."""
        end = time.monotonic() + timeout
        try:
            for resource in self._take():
                if not _begin_close(resource).wait(max(end - time.monotonic(), _MIN_TIMEOUT)):
                    _log_left_behind(resource)
        finally:
            self._begin_close_all()  # if the wait was interrupted

    async def aclose(self, timeout: float = _CLOSE_TIMEOUT) -> None:  # noqa: ASYNC109  (as its twin)
        """Close as `close` does, without blocking the loop."""
        end = time.monotonic() + timeout
        try:
            for resource in self._take():
                if not await _begin_close(resource).wait_async(max(end - time.monotonic(), _MIN_TIMEOUT)):
                    _log_left_behind(resource)
        finally:
            self._begin_close_all()

    def _begin_close_all(self) -> None:
        """Close what is left, without waiting."""
        for resource in self._take():
            _begin_close(resource)

    def _take(self) -> Iterator[Any]:
        """Take out what is kept, one at a time, the newest first. From now on nothing is kept."""
        while True:
            with _lock:
                self._is_closed = True
                if not self._kept:
                    return
                _, kept = self._kept.popitem()
            if callable(getattr(kept, "close", None)):
                yield kept


def _begin_close(resource: Any) -> OneShotEvent:
    """Close a resource on a worker thread. Not as a blocking call: those may be refused when too many are abandoned."""
    closed = OneShotEvent()
    if not _try_submit(functools.partial(_close_and_set, resource, closed)):
        closed.set()  # it is never closed, so do not wait
    return closed


def _log_left_behind(resource: Any) -> None:
    _log.warning("%s did not close in time and was abandoned", type(resource).__name__)


def _try_submit(job: Callable[[], object]) -> bool:
    """Run *job* on a thread, if there is one: from Python 3.12 on, none can be started while the interpreter ends."""
    try:
        pool.submit(job)
    except RuntimeError:
        _log.warning("no thread could be started to close or stop what a session has kept", exc_info=True)
        return False
    return True


def _close_and_set(thing: Any, closed: OneShotEvent) -> None:
    try:
        _close(thing)
    finally:
        closed.set()


def _close(thing: Any) -> None:
    """Close one object. A boundary: its error is only logged."""
    try:
        close = getattr(thing, "close", None)
        if close is not None:
            close()
    except Exception:  # noqa: BLE001
        _log.exception("closing %s failed", type(thing).__name__)


def _stop(thing: Any) -> None:
    """Stop what runs in one object. A boundary: its error is only logged."""
    try:
        thing.stop_all()
    except Exception:  # noqa: BLE001
        _log.exception("stop_all() of %s failed", type(thing).__name__)
