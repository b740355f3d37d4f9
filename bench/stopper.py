"""Another thread that stops what is measured, and notes when."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def nothing() -> None:
    """Be ready at once."""


class Stopper:
    """Waits until what it is to stop is there and blocked, calls the stop, and notes when: `time.monotonic()`."""

    def __init__(self, settle: float) -> None:
        """*settle*: seconds in which the other side gets from saying that it is there to its system call."""
        self._orders: queue.SimpleQueue[tuple[Callable[[], object], Callable[[], object]] | None] = queue.SimpleQueue()
        self._settle = settle
        self.at = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def ask(self, stop: Callable[[], object], wait_ready: Callable[[], object] = nothing) -> None:
        """Have it done, as soon as *wait_ready* has returned."""
        self._orders.put((stop, wait_ready))

    def since(self) -> float:
        """Give the seconds since the stop was called."""
        return time.monotonic() - self.at

    def close(self) -> None:
        self._orders.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            stop, wait_ready = order
            wait_ready()
            time.sleep(self._settle)
            self.at = time.monotonic()
            stop()
