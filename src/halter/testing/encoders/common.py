"""What the encoders of all APIs share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halter.testing.replies import ScriptedReply

__all__ = ["cut", "sse", "token_counts"]

_PIECE_SIZE = 12  # characters


def cut(text: str, least: int = 0) -> tuple[str, ...]:
    """Split a text into pieces, repeated until there are at least *least*."""
    pieces = tuple(text[at : at + _PIECE_SIZE] for at in range(0, len(text), _PIECE_SIZE))
    while pieces and len(pieces) < least:
        pieces += pieces
    return pieces


def sse(data: dict[str, Any], name: str = "") -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def token_counts(reply: ScriptedReply) -> tuple[int, int]:
    """The tokens of the request and of the answer."""
    return reply.input_tokens, len(reply.chunks) + len(reply.calls)
