"""What a thread is doing now."""

from __future__ import annotations

import gc
import sys
import threading
from typing import TYPE_CHECKING

from halter.cancel.fork import after_fork

if TYPE_CHECKING:
    from types import FrameType

_lock = threading.RLock()  # re-entrant: a finalizer may run while its thread holds it


def frame_of(thread: int) -> FrameType | None:
    """The innermost frame of a thread; None if the thread has ended.

    In some versions of Python (seen with 3.11.7) a garbage collection inside ``sys._current_frames()`` can block all
    threads for ever: it holds a lock of the interpreter, which other threads need to start and to end
    (python/cpython#106883). So there is none meanwhile.
    """
    with _lock:  # otherwise one caller would enable it again while another one needs it disabled
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames().get(thread)
        finally:
            if was_enabled:
                gc.enable()


def _after_fork() -> None:
    global _lock  # noqa: PLW0603  (a thread that does not exist in the child may hold it)
    _lock = threading.RLock()


after_fork(_after_fork)
