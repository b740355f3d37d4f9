"""A condition variable whose waits end with a token."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from halter.cancel.registration import wake_on_cancel
from halter.cancel.token import NEVER
from halter.cancel.wake_signal import WakeSignal

if TYPE_CHECKING:
    from collections.abc import Callable

    from halter.cancel.token import CancellationToken
    from halter.toolbox.terminal.output import Progress


class ChangeSignal:
    """Wakes waiting threads when something has changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held only to read and change the set
        self._listeners: set[Callable[[], object]] = set()

    def subscribe(self, listener: Callable[[], object]) -> None:
        """Call *listener* now and after every change."""
        with self._lock:
            self._listeners.add(listener)
        listener()

    def notify(self) -> None:
        """Something has changed: wake all waiting threads."""
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
        """Block until *condition* holds, the token is cancelled or the timeout is over; True if it holds."""
        woken = WakeSignal()
        end = None if timeout is None else time.monotonic() + timeout

        wake = woken.set
        with self._lock:
            self._listeners.add(wake)
        try:  # registered, then checked: a change in between is not missed
            with wake_on_cancel(token, wake):
                while not condition() and not token.is_cancelled:
                    seconds = None if end is None else end - time.monotonic()
                    if seconds is not None and seconds <= 0:
                        break
                    due = None if progress is None else progress.report_if_due()
                    if due is not None:
                        seconds = due if seconds is None else min(seconds, due)
                    woken.wait(seconds)
        finally:
            with self._lock:
                self._listeners.discard(wake)
        return bool(condition())
