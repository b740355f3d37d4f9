"""Limits per session, per key and in total. What exceeds them is refused, never dropped.

A refusal says after how many seconds to try again. A stop is never refused.
"""

from __future__ import annotations

from typing import Final

import msgspec

from halter.gateway.http.errors import Problem
from halter.gateway.token_bucket import TokenBucket

__all__ = ["GatewayLimits", "LimitExceeded", "Overloaded", "per_minute"]

_MINUTE: Final = 60.0  # seconds
_RETRY_AFTER: Final = 2.0  # seconds after which a turn may have ended


class GatewayLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a gateway."""

    session_messages: int = 120
    """Messages of one session in a minute."""
    key_messages: int = 6_000
    """Messages of one key in a minute."""
    key_sessions: int = 600
    """Sessions that one key creates in a minute."""
    inbox: int = 100
    """Messages that are queued in one session."""
    turns: int = 2_000
    """Turns that run at the same time."""
    key_turns: int = 1_000
    """Turns of one key that run at the same time."""
    body: int = 1_000_000
    """Bytes of a JSON body, or of one WebSocket message."""
    upload: int = 25_000_000
    """Bytes of a message with pictures or sound, or of a conversation that an OpenAI client sends."""
    streams: int = 20_000
    """Event streams and WebSockets that are open at the same time."""
    connections: int = 21_000
    """Connections that are open at the same time; fewer if the process may not open that many files."""
    header_timeout: float = 60.0
    """Seconds until the headers of a request must have arrived; an unused connection is closed after them."""
    body_timeout: float = 30.0
    """Seconds until a JSON body must have arrived."""
    upload_timeout: float = 300.0
    """Seconds until a message with pictures or sound, or such a conversation, must have arrived."""


def per_minute(count: int) -> TokenBucket:
    """A bucket that allows so many events per minute."""
    return TokenBucket(count, count / _MINUTE)


class LimitExceeded(Problem):
    """A limit is reached: which one, and after how many seconds to try again. Nothing was accepted."""

    def __init__(self, limit: str, field: str, retry_after: float = _RETRY_AFTER) -> None:
        super().__init__(429, f"{limit}: nothing was accepted", field=field, kind="limit", retry_after=retry_after)


class Overloaded(LimitExceeded):
    """The gateway has reached its limit of running turns. Another node of the cluster may have room."""

    def __init__(self) -> None:
        super().__init__("too many turns are running", "turns")
