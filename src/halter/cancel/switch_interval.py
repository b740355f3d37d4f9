"""Lowers the interpreter's switch interval for half a second after a stop of tool calls.

A thread that runs pure Python releases the interpreter lock only when another thread has waited for it for
``sys.getswitchinterval()``, 5 ms by default. With eight such threads every step of a stop waits for several of them.
``bench/spinning.py`` shows the difference. More switches cost throughput, so the interval is low only for half a
second, and then it is the user's again.

The process has one interval. Overlapping stops extend the time. A value that other code sets meanwhile stays.
``lower()`` may be called from any thread and from a signal handler: there is no lock, and only the deadline thread
restores the interval.
"""

from __future__ import annotations

import sys
import time
from typing import Final

from halter.cancel.fork import after_fork
from halter.cancel.token import CancellationToken

# Microseconds, the unit that the interpreter uses. Not a round number, so that a value that other code sets meanwhile
# is not mistaken for ours.
_LOW: Final = 101
_LOW_SECONDS: Final = 0.5

_original = 5000  # the value to restore, in microseconds
_until = 0.0  # the time.monotonic() at which to restore it


def lower() -> None:
    """Lower the switch interval for half a second from now."""
    global _original, _until  # noqa: PLW0603  (the process has one interval)
    _until = time.monotonic() + _LOW_SECONDS
    # Registered before the interval is lowered, so that a KeyboardInterrupt in between does not leave it low for good.
    try:
        CancellationToken(timeout=_LOW_SECONDS).on_cancel(_restore)
    except RuntimeError:  # no thread can be started that would restore it, as when the interpreter ends
        return
    current = _interval()
    if current > _LOW:
        _original = current
        _set_interval(_LOW)


def _restore() -> None:
    """Restore the user's interval, unless there was another stop since. Runs in the deadline thread."""
    if time.monotonic() < _until or _interval() != _LOW:
        return
    _set_interval(_original)
    if time.monotonic() < _until:  # another stop came just now, and found it low
        _set_interval(_LOW)


def _interval() -> int:
    return round(sys.getswitchinterval() * 1e6)


def _set_interval(microseconds: int) -> None:
    sys.setswitchinterval(microseconds / 1e6)


def _after_fork() -> None:
    global _until  # noqa: PLW0603  (the stop was the parent's)
    _until = 0.0
    _restore()


after_fork(_after_fork)
