"""How often a chat may be written to. Nothing here waits: `delay()` returns how long the caller has to."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from halter.gateway.token_bucket import TokenBucket

if TYPE_CHECKING:
    from halter.gateway.chat.adapter import ChatAdapter

__all__ = ["SendRate", "shared_bucket"]

_BURST: Final = 3  # new messages in one chat that need not wait for each other


def shared_bucket(adapter: ChatAdapter) -> TokenBucket:
    """The limit for all chats of a platform: burst and refill together stay below its rate in any one second."""
    return TokenBucket(adapter.max_rate / 3, adapter.max_rate * 2 / 3)


class SendRate:
    """The limit for one chat: edits one by one, new messages in small bursts, all within the shared limit."""

    __slots__ = ("_edit_interval", "_last", "_not_before", "_own", "_shared")

    def __init__(self, edit_interval: float, shared: TokenBucket) -> None:
        self._edit_interval = edit_interval
        self._shared = shared
        self._own = TokenBucket(_BURST, 1 / edit_interval)
        self._last = self._not_before = 0.0

    def delay(self, *, is_edit: bool) -> float:
        """Seconds until the next message or edit may be sent."""
        now = time.monotonic()
        delay = max(self._not_before - now, self._own.delay(), self._shared.delay())
        return max(delay, self._last + self._edit_interval - now) if is_edit else max(delay, 0.0)

    def take(self) -> None:
        """Count one that is being sent."""
        self._own.take()
        self._shared.take()

    def sent(self) -> None:
        """Record that it was sent. The interval counts from here, as sending may take long."""
        self._last = time.monotonic()

    def pause(self, seconds: float) -> None:
        """Send nothing for this long."""
        self._not_before = max(self._not_before, time.monotonic() + seconds)
