"""A signal for one thread that waits, with or without a time limit. It may be set in a signal handler.

Not `threading.Event`: its set() in a signal handler can deadlock with the wait() that the handler interrupted. Nor
`queue.SimpleQueue`: before Python 3.13 its get() with a timeout blocks for ever if the time is over before it has begun
to wait, which a busy machine does to short timeouts.

Python runs signal handlers in the main thread, between two steps of it. A signal that comes just before the thread
blocks, or that the system delivers to another thread, does not wake it: Ctrl+C would have no effect until the wait
ends. So the main thread blocks for a short time, again and again.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from typing import Final

__all__ = ["WakeSignal"]

_MAX_SECONDS: Final = 1e8  # seconds: see halter.cancel.deadlines
_MAIN_THREAD_SLICE: Final = 0.1  # seconds until a signal that did not wake the thread is handled


class WakeSignal:
    """Wakes the thread that waits, or the next one to wait. Setting it twice before that wakes once."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held, unless the signal is set
        self._lock.acquire()

    def set(self) -> None:
        """Set it, from any thread and from a signal handler."""
        with contextlib.suppress(RuntimeError):  # it is set already
            self._lock.release()

    def wait(self, seconds: float | None = None) -> bool:
        """Block until it is set, and reset it. False if *seconds* passed first."""
        if threading.get_ident() == threading.main_thread().ident:
            return self._wait_in_parts(seconds)
        return self._lock.acquire(timeout=-1 if seconds is None else min(max(seconds, 0.0), _MAX_SECONDS))

    def _wait_in_parts(self, seconds: float | None) -> bool:
        end = math.inf if seconds is None else time.monotonic() + seconds
        while not self._lock.acquire(timeout=min(max(end - time.monotonic(), 0.0), _MAIN_THREAD_SLICE)):
            if time.monotonic() >= end:
                return False
        return True
