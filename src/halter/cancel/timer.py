"""One daemon thread for every deadline of the process, started by the first of them.

A deadline holds its token weakly until somebody observes the token, so a token that is simply
dropped is freed at once; what is left of it, one small entry, goes when it falls due or at the
next sweep, whichever is first.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import queue
import threading
import time
import weakref
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from halter.cancel.token import CancellationToken

_log = logging.getLogger(__name__)
_SWEEP_FROM: Final = 256


class Deadline:
    """One token's place in the timer."""

    __slots__ = ("seconds", "seq", "target", "when")

    def __init__(self, token: CancellationToken, when: float, seconds: float, seq: int) -> None:
        self.when = when
        self.seconds = seconds
        self.seq = seq
        # Weak while nobody observes the token, the token itself while somebody does, None when settled.
        self.target: weakref.ref[CancellationToken] | CancellationToken | None = weakref.ref(token)

    def __lt__(self, other: Deadline) -> bool:
        return (self.when, self.seq) < (other.when, other.seq)

    def token(self) -> CancellationToken | None:
        target = self.target
        return target() if isinstance(target, weakref.ref) else target


class Timer:
    """Cancels tokens when their deadlines pass."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # re-entrant: a finalizer may run while we hold it
        self._heap: list[Deadline] = []
        self._seq = itertools.count()
        self._sweep_at = _SWEEP_FROM
        # Rung when an earlier deadline arrives. A SimpleQueue, because ringing must be safe anywhere.
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, token: CancellationToken, when: float, seconds: float) -> Deadline:
        entry = Deadline(token, when, seconds, next(self._seq))
        with self._lock:
            if len(self._heap) >= self._sweep_at:
                self._sweep()
            heapq.heappush(self._heap, entry)
            is_next = self._heap[0] is entry
            if self._thread is None:
                self._start()
        if is_next:
            self._bell.put(None)
        return entry

    def after_fork(self) -> None:
        """Go on in a forked child, which has our heap but not our thread."""
        self._lock = threading.RLock()
        self._bell = queue.SimpleQueue()
        self._thread = None
        self._sweep()
        if self._heap:
            self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="halter-deadlines", daemon=True)
        self._thread.start()

    def _sweep(self) -> None:
        """Forget settled and dropped entries; doubling the bar keeps the cost constant per entry."""
        self._heap = [entry for entry in self._heap if entry.token() is not None]
        heapq.heapify(self._heap)
        self._sweep_at = max(_SWEEP_FROM, 2 * len(self._heap))

    def _run(self) -> None:
        while True:
            for entry in self._take_due():
                _expire(entry)
            with contextlib.suppress(queue.Empty):
                self._bell.get(timeout=self._until_next())

    def _take_due(self) -> list[Deadline]:
        due = []
        now = time.monotonic()
        with self._lock:
            while self._heap and self._heap[0].when <= now:
                due.append(heapq.heappop(self._heap))
        return due

    def _until_next(self) -> float | None:
        with self._lock:
            if not self._heap:
                return None
            return max(0.0, self._heap[0].when - time.monotonic())


def _expire(entry: Deadline) -> None:
    """Cancel one token. A boundary: whatever a callback raises, the thread of all deadlines goes on."""
    token = entry.token()
    if token is None:
        return
    try:
        token.cancel("timeout", detail=f"its {entry.seconds:g} s were over")
    except BaseException:  # noqa: BLE001  (a boundary)
        _log.exception("a callback of %r raised when its deadline passed", token)


timer: Final = Timer()
