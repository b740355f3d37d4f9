"""Replies as Anthropic's messages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from halter.testing.encoders.common import cut, sse, token_counts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from halter.testing.replies import ScriptedReply

__all__ = ["stream", "whole"]


def _blocks(reply: ScriptedReply) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each block as it starts, and the deltas that follow."""
    if reply.reasoning:
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in cut(reply.reasoning)]
        deltas.append({"type": "signature_delta", "signature": "scripted"})
        yield {"type": "thinking", "thinking": "", "signature": ""}, deltas
    if reply.chunks:
        yield {"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in reply.chunks]
    for call in reply.calls:
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in cut(call.arguments)]
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}, deltas


def _finish(reply: ScriptedReply) -> str:
    return reply.finish or ("tool_use" if reply.calls else "end_turn")


def _event(kind: str, **data: object) -> bytes:
    return sse({"type": kind, **data}, kind)


def stream(reply: ScriptedReply, model: str) -> tuple[bytes, Iterable[bytes], Iterable[bytes]]:
    """Encode a reply as a stream: its beginning, its chunks of content, its end."""
    given, written = token_counts(reply)
    shell = _shell(model, [], None) | {"usage": {"input_tokens": given, "output_tokens": 1}}
    delta = {"stop_reason": _finish(reply), "stop_sequence": None}
    ending = _event("message_delta", delta=delta, usage={"output_tokens": written})
    beginning = _event("message_start", message=shell) + _event("ping")
    return beginning, _content(reply), [ending, _event("message_stop")]


def _content(reply: ScriptedReply) -> Iterator[bytes]:
    """Encode the blocks: the start goes with the first chunk and the stop with the last, so only content counts."""
    for index, (block, deltas) in enumerate(_blocks(reply)):
        start = _event("content_block_start", index=index, content_block=block)
        stop = _event("content_block_stop", index=index)
        for number, delta in enumerate(deltas, 1):
            piece = _event("content_block_delta", index=index, delta=delta)
            yield start + piece + (stop if number == len(deltas) else b"")
            start = b""
        if not deltas:
            yield start + stop


def whole(reply: ScriptedReply, model: str) -> dict[str, Any]:
    """Encode a reply that is not streamed."""
    content: list[dict[str, Any]] = []
    if reply.reasoning:
        content.append({"type": "thinking", "thinking": reply.reasoning, "signature": "scripted"})
    if reply.chunks:
        content.append({"type": "text", "text": "".join(reply.chunks)})
    content += [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
        for call in reply.calls
    ]
    given, written = token_counts(reply)
    usage = {"input_tokens": given, "output_tokens": written}
    return _shell(model, content, _finish(reply)) | {"usage": usage}


def _shell(model: str, content: list[dict[str, Any]], finish: str | None) -> dict[str, Any]:
    return {
        "id": "msg_scripted",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": finish,
        "stop_sequence": None,
    }
