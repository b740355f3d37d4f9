"""Replies as Gemini's own API sends them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from halter.testing.encoders.common import cut, sse, token_counts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from halter.testing.replies import ScriptedReply

__all__ = ["stream", "whole"]


def stream(reply: ScriptedReply, model: str) -> tuple[bytes, Iterable[bytes], Iterable[bytes]]:
    """Encode a reply as a stream: its beginning, its chunks of content, its end."""
    pieces = (sse(_chunk(model, [part])) for part in _parts(reply, in_pieces=True))
    return sse(_chunk(model, [])), pieces, [sse(_chunk(model, [{"text": ""}], reply))]


def whole(reply: ScriptedReply, model: str) -> dict[str, Any]:
    """Encode a reply that is not streamed."""
    return _chunk(model, list(_parts(reply, in_pieces=False)), reply)


def _parts(reply: ScriptedReply, *, in_pieces: bool) -> Iterator[dict[str, Any]]:
    for piece in cut(reply.reasoning) if in_pieces else [reply.reasoning] if reply.reasoning else []:
        yield {"text": piece, "thought": True}
    for piece in reply.chunks if in_pieces else ["".join(reply.chunks)] if reply.chunks else []:
        yield {"text": piece}
    for number, call in enumerate(reply.calls):
        part = {"functionCall": {"id": call.id, "name": call.name, "args": json.loads(call.arguments)}}
        yield part if number or not reply.reasoning else part | {"thoughtSignature": "scripted"}


def _chunk(model: str, parts: list[dict[str, Any]], ended: ScriptedReply | None = None) -> dict[str, Any]:
    """One chunk; the last one says why the answer has ended."""
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    chunk = {"candidates": [candidate], "modelVersion": model, "responseId": "scripted"}
    if ended is None:
        return chunk
    candidate["finishReason"] = ended.finish or "STOP"
    given, written = token_counts(ended)
    usage = {"promptTokenCount": given, "candidatesTokenCount": written, "totalTokenCount": given + written}
    return chunk | {"usageMetadata": usage}
