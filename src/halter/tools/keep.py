"""What tools keep from one call to the next: a working directory, a browser, an interpreter. One of each per session.

    shells = ctx.keep(Shells)          # the session's own, made by the first call that asks
    shells.directory = ...

Whatever has a `close()` is closed with the session, the newest first, in a thread, and within a bounded time: what does
not close is left behind and named in the log. `close()` may come at any time, and while a call still uses it.

What goes on by itself between calls, such as jobs in the background, has a `stop_all()`: a stop of the turn leaves it
alone, and `session.stop(scope="all")` ends it too.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from halter.cancel import threads
from halter.cancel.blocking import run_blocking
from halter.cancel.token import CancellationToken, Cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

T = TypeVar("T")

_log = logging.getLogger(__name__)
_PATIENCE: Final = 3.0


class Keeper:
    """The things that are kept for one session."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held to look and to add, never while anything is made or closed
        self._kept: dict[Hashable, Any] = {}
        self._is_closed = False

    def __bool__(self) -> bool:
        return bool(self._kept)

    def keep(self, make: Callable[[], T], key: Hashable = None) -> T:
        """The thing that *make* makes, the same one for every call; *key* tells apart those of one maker."""
        name = (make, key)
        with self._lock:
            if name in self._kept:
                found: T = self._kept[name]
                return found
        made = make()
        with self._lock:
            if not self._is_closed:
                kept: T = self._kept.setdefault(name, made)
                if kept is made:
                    return kept
        _close(made)  # two came together, or the session was closed meanwhile
        if self._is_closed:
            msg = "the session was closed: nothing can be kept in it any more"
            raise RuntimeError(msg)
        return self.keep(make, key)

    def stop_all(self) -> None:
        """Have what goes on by itself stopped: whatever has a `stop_all()`. Returns at once, and nothing is raised."""
        for each in list(self._kept.values()):
            if callable(getattr(each, "stop_all", None)):
                threads.submit(functools.partial(_stop, each))

    def close(self, timeout: float = _PATIENCE) -> None:
        """Close what was kept, the newest first. Bounded, and nothing is raised."""
        with self._lock:
            self._is_closed = True
            kept, self._kept = list(self._kept.values()), {}
        end = time.monotonic() + timeout
        for each in reversed(kept):
            if not callable(getattr(each, "close", None)):
                continue
            try:
                run_blocking(_close, each, token=CancellationToken(timeout=max(end - time.monotonic(), 0.01)))
            except Cancelled:
                _log.warning("%s did not close in time and was left behind", type(each).__name__)


def _close(thing: Any) -> None:
    """Close one thing. A boundary: what fails here has nobody to go to."""
    try:
        close = getattr(thing, "close", None)
        if close is not None:
            close()
    except Exception:  # noqa: BLE001
        _log.exception("closing %s failed", type(thing).__name__)


def _stop(thing: Any) -> None:
    """Stop all that one thing has going on. A boundary: what fails here has nobody to go to."""
    try:
        thing.stop_all()
    except Exception:  # noqa: BLE001
        _log.exception("stopping what %s has going on failed", type(thing).__name__)
