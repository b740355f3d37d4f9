"""Something that changes, and those who wait for it: threads, each with a token, none of which polls."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import TYPE_CHECKING

from halter.cancel.token import NEVER, wake_on_cancel

if TYPE_CHECKING:
    from collections.abc import Callable

    from halter.cancel.token import CancellationToken
    from halter.toolbox.output import Progress


class Changes:
    """Where changes are told and waited for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held to look and to note, never while anything is done
        self._listeners: set[Callable[[], object]] = set()

    def also(self, tell: Callable[[], object]) -> None:
        """Have somebody told of every change, for ever."""
        with self._lock:
            self._listeners.add(tell)
        tell()

    def tell(self) -> None:
        """Wake whoever waits: something has changed."""
        with self._lock:
            listeners = list(self._listeners)
        for wake in listeners:
            wake()

    def wait(
        self,
        condition: Callable[[], object],
        token: CancellationToken = NEVER,
        timeout: float | None = None,
        progress: Progress | None = None,
    ) -> bool:
        """Block until *condition* holds, the token is cancelled or the time is over; True if it holds."""
        bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        end = None if timeout is None else time.monotonic() + timeout

        def wake() -> None:
            bell.put(None)

        with self._lock:
            self._listeners.add(wake)
        try:  # registered, then looked: a change in between is not missed
            with wake_on_cancel(token, wake):
                while not condition() and not token.is_cancelled:
                    seconds = None if end is None else end - time.monotonic()
                    if seconds is not None and seconds <= 0:
                        break
                    due = None if progress is None else progress.tell_if_due()
                    if due is not None:
                        seconds = due if seconds is None else min(seconds, due)
                    with contextlib.suppress(queue.Empty):
                        bell.get(timeout=seconds)
        finally:
            with self._lock:
                self._listeners.discard(wake)
        return bool(condition())
