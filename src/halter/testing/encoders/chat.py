"""Replies as OpenAI's chat completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halter.testing.encoders.common import cut, sse, token_counts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from halter.testing.replies import ScriptedReply

__all__ = ["stream", "whole"]


def _finish(reply: ScriptedReply) -> str:
    return reply.finish or ("tool_calls" if reply.calls else "stop")


def stream(reply: ScriptedReply, model: str) -> tuple[bytes, Iterable[bytes], Iterable[bytes]]:
    """Encode a reply as a stream: its beginning, its chunks of content, its end."""

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return sse(_shell(model, "chat.completion.chunk", [choice]))

    usage = _shell(model, "chat.completion.chunk", []) | {"usage": _usage(reply)}
    ending = chunk({}, _finish(reply)) + sse(usage) + b"data: [DONE]\n\n"
    return chunk({"role": "assistant", "content": ""}), map(chunk, _deltas(reply)), [ending]


def _deltas(reply: ScriptedReply) -> Iterator[dict[str, Any]]:
    for piece in cut(reply.reasoning):
        yield {"reasoning_content": piece}
    for piece in reply.chunks:
        yield {"content": piece}
    for index, call in enumerate(reply.calls):
        function = {"name": call.name, "arguments": ""}
        yield {"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": function}]}
        for piece in cut(call.arguments):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def whole(reply: ScriptedReply, model: str) -> dict[str, Any]:
    """Encode a reply that is not streamed."""
    message: dict[str, Any] = {"role": "assistant", "content": "".join(reply.chunks) or None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.calls
        ]
    choice = {"index": 0, "message": message, "finish_reason": _finish(reply)}
    return _shell(model, "chat.completion", [choice]) | {"usage": _usage(reply)}


def _shell(model: str, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": "chatcmpl-scripted", "object": kind, "created": 0, "model": model, "choices": choices}


def _usage(reply: ScriptedReply) -> dict[str, int]:
    given, written = token_counts(reply)
    return {"prompt_tokens": given, "completion_tokens": written, "total_tokens": given + written}
