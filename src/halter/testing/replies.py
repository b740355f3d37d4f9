"""Scripted replies for a `FakeProvider`; `halter.testing.encoders` writes them for each API.

`answer`, `tool_calls` and `slow_stream` answer well; `hang_before_first_byte`, `hang_mid_stream`, `drop` and `status`
fail, each in its own way; `raw` sends any bytes at all.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from halter.testing.encoders.common import cut

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from halter.models.types import ToolCall

__all__ = [
    "ScriptedReply",
    "answer",
    "drop",
    "hang_before_first_byte",
    "hang_mid_stream",
    "raw",
    "slow_stream",
    "status",
    "tool_calls",
]


@dataclass(frozen=True)
class ScriptedReply:
    """One scripted reply. After `after` chunks of content, `fault` happens."""

    chunks: tuple[str, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    finish: str = ""
    delay: float = 0.0
    interval: float = 0.0
    fault: Literal["", "silent", "hang", "drop"] = ""
    after: int = 0
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    pieces: tuple[bytes, ...] | None = None
    input_tokens: int = 10


def answer(
    text: str = "",
    *,
    chunks: Sequence[str] | None = None,
    reasoning: str = "",
    finish: str = "",
    delay: float = 0.0,
    interval: float = 0.0,
    input_tokens: int = 10,
) -> ScriptedReply:
    """Answer with `text`, in these `chunks` if given, the first after `delay` seconds and then one each `interval`.

    `input_tokens` is what the provider counts for the request.
    """
    pieces = tuple(chunks) if chunks is not None else cut(text)
    return ScriptedReply(
        pieces, reasoning=reasoning, finish=finish, delay=delay, interval=interval, input_tokens=input_tokens
    )


def tool_calls(
    calls: Iterable[ToolCall], *, text: str = "", delay: float = 0.0, interval: float = 0.0
) -> ScriptedReply:
    """Ask for these calls after `text`, with the arguments in pieces."""
    return ScriptedReply(cut(text), tuple(calls), delay=delay, interval=interval)


def slow_stream(interval: float, *, chunks: int = 100_000, text: str = "word ") -> ScriptedReply:
    """Stream `text` repeatedly, once every `interval` seconds."""
    return ScriptedReply((text,) * chunks, interval=interval)


def hang_before_first_byte() -> ScriptedReply:
    """Accept the request and send nothing, not even headers."""
    return ScriptedReply(fault="silent")


def hang_mid_stream(after: int = 1, *, text: str = "some words that are not the whole of it") -> ScriptedReply:
    """Stream `after` chunks and then send nothing more."""
    return ScriptedReply(cut(text, after), fault="hang", after=after)


def drop(after: int = 1, *, text: str = "some words that are not the whole of it") -> ScriptedReply:
    """Stream `after` chunks and then drop the connection."""
    return ScriptedReply(cut(text, after), fault="drop", after=after)


def status(
    code: int,
    message: str = "scripted failure",
    *,
    retry_after: float | None = None,
    headers: dict[str, str] | None = None,
    body: bytes | None = None,
) -> ScriptedReply:
    """Answer with an HTTP error: in the provider's format, or with `body` as it is."""
    sent = dict(headers or {})
    if retry_after is not None:
        sent["retry-after"] = f"{retry_after:g}"
    if body is None:
        kind = "rate_limit_error" if code == 429 else "api_error" if code >= 500 else "invalid_request_error"  # noqa: PLR2004
        body = json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()
    return ScriptedReply(status=code, headers=sent, body=body)


def raw(*pieces: bytes, interval: float = 0.0, content_type: str = "text/event-stream") -> ScriptedReply:
    """Send these bytes, each piece separately."""
    return ScriptedReply(pieces=pieces, interval=interval, headers={"content-type": content_type})
