"""Deadlines of tokens, and the check of durations that callers pass in.

One daemon thread serves all deadlines of the process. It starts with the first one.

A deadline refers to its token weakly while nobody observes the token, so a token that is dropped is freed at once. Its
small entry is removed when it falls due or at the next sweep, whichever is first.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
import time
import weakref
from typing import TYPE_CHECKING, Final

from halter.cancel.wake_signal import WakeSignal

if TYPE_CHECKING:
    from halter.cancel.token import CancellationToken

_log = logging.getLogger(__name__)
_MIN_SWEEP: Final = 256  # deadlines; fewer are not swept
# Seconds, about three years: as good as no limit, and within what locks and selectors can wait for; poll() takes less
# (threading.TIMEOUT_MAX overflows when the current time is added to it).
MAX_SECONDS: Final = 1e8


def check_seconds(name: str, value: float) -> float:
    """Return *value* as a usable duration, or raise an error that names the argument. Infinity becomes MAX_SECONDS."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of seconds, not {value!r}")
    if math.isnan(value) or value < 0:
        raise ValueError(f"{name} must be zero or more seconds, not {value!r}; leave it out for no limit")
    return min(float(value), MAX_SECONDS)


class Deadline:
    """The entry of one token in the timer."""

    __slots__ = ("seconds", "target")

    def __init__(self, token: CancellationToken, seconds: float) -> None:
        self.seconds = seconds
        # A weak reference while nobody observes the token, else the token itself; None when settled.
        self.target: weakref.ref[CancellationToken] | CancellationToken | None = weakref.ref(token)

    def token(self) -> CancellationToken | None:
        target = self.target
        return target() if isinstance(target, weakref.ref) else target


class Timer:
    """Cancels tokens when their deadlines pass."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # re-entrant: a finalizer may run while its thread holds it
        # Compared by time and number alone, so heapq runs no Python code: a signal handler never finds the heap in the
        # middle of a change.
        self._heap: list[tuple[float, int, Deadline]] = []
        self._seq = itertools.count()
        self._sweep_at = _MIN_SWEEP
        self._wakeup = WakeSignal()  # set when an earlier deadline arrives
        self._thread: threading.Thread | None = None

    def add(self, token: CancellationToken, when: float, seconds: float) -> Deadline:
        entry = Deadline(token, seconds)
        with self._lock:
            if len(self._heap) >= self._sweep_at:
                self._sweep()
            heapq.heappush(self._heap, (when, next(self._seq), entry))
            is_next = self._heap[0][-1] is entry
            if self._thread is None:
                self._start()
        if is_next:
            self._wakeup.set()
        return entry

    def after_fork(self) -> None:
        """Continue in a forked child, which has our heap but not our thread."""
        self._lock = threading.RLock()
        self._wakeup = WakeSignal()
        self._thread = None
        self._sweep()
        if self._heap:
            self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="halter-deadlines", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no thread can be started now; the next deadline tries again
            self._thread = None
            raise

    def _sweep(self) -> None:
        """Remove settled and dropped entries. The threshold doubles, so the cost per entry is constant."""
        heap, self._heap = self._heap, []  # a signal handler may add to the new one meanwhile
        for item in heap:
            if item[-1].token() is not None:
                heapq.heappush(self._heap, item)
        self._sweep_at = max(_MIN_SWEEP, 2 * len(self._heap))

    def _run(self) -> None:
        while True:
            for entry in self._take_due():
                _expire(entry)
            self._wakeup.wait(self._until_next())

    def _take_due(self) -> list[Deadline]:
        due = []
        now = time.monotonic()
        with self._lock:
            while self._heap and self._heap[0][0] <= now:
                due.append(heapq.heappop(self._heap)[-1])
        return due

    def _until_next(self) -> float | None:
        with self._lock:
            if not self._heap:
                return None
            return max(0.0, self._heap[0][0] - time.monotonic())


def _expire(entry: Deadline) -> None:
    """Cancel one token. A boundary: an error of a callback must not end the thread of all deadlines."""
    token = entry.token()
    if token is None:
        return
    try:
        token.cancel("timeout", detail=f"it timed out after {entry.seconds:g} s")
    except BaseException:  # noqa: BLE001  (a boundary)
        _log.exception("a deadline callback of %r raised an exception", token)


timer: Final = Timer()
