"""How much is taken: of one session, of one key, and of all together. What is too much is refused, and never dropped.

A refusal says after how many seconds to try again. A stop is never refused: it makes room.
"""

from __future__ import annotations

import time
from typing import Final

import msgspec

from halter.gateway.problems import Problem

__all__ = ["Allowance", "Limits", "TooMany"]

_MINUTE: Final = 60.0
_PAUSE: Final = 2.0  # seconds after which a turn may have ended


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway takes."""

    session_messages: int = 120
    """Messages of one session in a minute."""
    key_messages: int = 6_000
    """Messages of one key in a minute."""
    key_sessions: int = 600
    """Sessions that one key makes in a minute."""
    inbox: int = 100
    """Messages that wait in one session."""
    turns: int = 2_000
    """Turns that run at the same time."""
    key_turns: int = 1_000
    """Turns of one key that run at the same time."""
    body: int = 1_000_000
    """Bytes of a body of JSON, or of one message of a WebSocket."""
    upload: int = 25_000_000
    """Bytes of a message with pictures or sound."""
    streams: int = 20_000
    """Event streams and WebSockets that are open at the same time."""


class Allowance:
    """So many in a minute, evenly: after a pause all of them at once, and then one after the other."""

    __slots__ = ("_at", "_left", "_most")

    def __init__(self, a_minute: int) -> None:
        self._most = float(a_minute)
        self._left = float(a_minute)
        self._at = time.monotonic()

    def wait(self) -> float:
        """Seconds until one more is allowed; 0 if it is now."""
        now = time.monotonic()
        self._left = min(self._most, self._left + (now - self._at) * self._most / _MINUTE)
        self._at = now
        return 0.0 if self._left >= 1 else (1 - self._left) * _MINUTE / self._most

    def take(self) -> None:
        """Count one."""
        self._left -= 1


class TooMany(Problem):
    """A limit is reached: says which, and after how many seconds to try again. Nothing was accepted."""

    def __init__(self, what: str, field: str, retry_after: float = _PAUSE) -> None:
        super().__init__(429, f"{what}: nothing was accepted", field=field, kind="limit", retry_after=retry_after)
