"""Scripted replies for a `FakeProvider`, and how each is encoded for either API.

`answer`, `tool_calls` and `slow_stream` answer well; `hang_before_first_byte`, `hang_mid_stream`, `drop` and `status`
fail, each in its own way; `raw` sends any bytes at all.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

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

Wire = Literal["openai", "anthropic"]
_PIECE = 12


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


def answer(
    text: str = "",
    *,
    chunks: Sequence[str] | None = None,
    reasoning: str = "",
    finish: str = "",
    delay: float = 0.0,
    interval: float = 0.0,
) -> ScriptedReply:
    """Answer with `text`, in these `chunks` if given, the first after `delay` seconds and then one each `interval`."""
    pieces = tuple(chunks) if chunks is not None else _cut(text)
    return ScriptedReply(pieces, reasoning=reasoning, finish=finish, delay=delay, interval=interval)


def tool_calls(
    calls: Iterable[ToolCall], *, text: str = "", delay: float = 0.0, interval: float = 0.0
) -> ScriptedReply:
    """Ask for these calls after `text`, with the arguments in pieces."""
    return ScriptedReply(_cut(text), tuple(calls), delay=delay, interval=interval)


def slow_stream(interval: float, *, chunks: int = 100_000, text: str = "word ") -> ScriptedReply:
    """Stream `text` repeatedly, once every `interval` seconds."""
    return ScriptedReply((text,) * chunks, interval=interval)


def hang_before_first_byte() -> ScriptedReply:
    """Accept the request and send nothing, not even headers."""
    return ScriptedReply(fault="silent")


def hang_mid_stream(after: int = 1, *, text: str = "some words that are not the whole of it") -> ScriptedReply:
    """Stream `after` chunks and then send nothing more."""
    return ScriptedReply(_cut(text, after), fault="hang", after=after)


def drop(after: int = 1, *, text: str = "some words that are not the whole of it") -> ScriptedReply:
    """Stream `after` chunks and then drop the connection."""
    return ScriptedReply(_cut(text, after), fault="drop", after=after)


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


def stream_events(reply: ScriptedReply, wire: Wire, model: str) -> tuple[bytes, Iterable[bytes], bytes]:
    """Encode a reply as a stream: its beginning, its chunks of content, its end."""
    return _openai_stream(reply, model) if wire == "openai" else _anthropic_stream(reply, model)


def whole_answer(reply: ScriptedReply, wire: Wire, model: str) -> bytes:
    """Encode a reply that is not streamed."""
    body = _openai_whole(reply, model) if wire == "openai" else _anthropic_whole(reply, model)
    return json.dumps(body).encode()


def _cut(text: str, least: int = 0) -> tuple[str, ...]:
    """Split a text into pieces, repeated until there are at least *least*."""
    pieces = tuple(text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
    while pieces and len(pieces) < least:
        pieces += pieces
    return pieces


def _sse(data: dict[str, Any], name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def _usage(reply: ScriptedReply) -> tuple[int, int]:
    return 10, len(reply.chunks) + len(reply.calls)


def _openai_finish(reply: ScriptedReply) -> str:
    return reply.finish or ("tool_calls" if reply.calls else "stop")


def _openai_stream(reply: ScriptedReply, model: str) -> tuple[bytes, Iterable[bytes], bytes]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _sse(_openai_shell(model, "chat.completion.chunk", [choice]))

    usage = _openai_shell(model, "chat.completion.chunk", []) | {"usage": _openai_usage(reply)}
    ending = chunk({}, _openai_finish(reply)) + _sse(usage) + b"data: [DONE]\n\n"
    return chunk({"role": "assistant", "content": ""}), map(chunk, _openai_deltas(reply)), ending


def _openai_deltas(reply: ScriptedReply) -> Iterator[dict[str, Any]]:
    for piece in _cut(reply.reasoning):
        yield {"reasoning_content": piece}
    for piece in reply.chunks:
        yield {"content": piece}
    for index, call in enumerate(reply.calls):
        function = {"name": call.name, "arguments": ""}
        yield {"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": function}]}
        for piece in _cut(call.arguments):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _openai_whole(reply: ScriptedReply, model: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "".join(reply.chunks) or None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.calls
        ]
    choice = {"index": 0, "message": message, "finish_reason": _openai_finish(reply)}
    return _openai_shell(model, "chat.completion", [choice]) | {"usage": _openai_usage(reply)}


def _openai_shell(model: str, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": "chatcmpl-scripted", "object": kind, "created": 0, "model": model, "choices": choices}


def _openai_usage(reply: ScriptedReply) -> dict[str, int]:
    given, written = _usage(reply)
    return {"prompt_tokens": given, "completion_tokens": written, "total_tokens": given + written}


def _anthropic_blocks(reply: ScriptedReply) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each block as it starts, and the deltas that follow."""
    if reply.reasoning:
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _cut(reply.reasoning)]
        deltas.append({"type": "signature_delta", "signature": "scripted"})
        yield {"type": "thinking", "thinking": "", "signature": ""}, deltas
    if reply.chunks:
        yield {"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in reply.chunks]
    for call in reply.calls:
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in _cut(call.arguments)]
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}, deltas


def _anthropic_finish(reply: ScriptedReply) -> str:
    return reply.finish or ("tool_use" if reply.calls else "end_turn")


def _anthropic_event(kind: str, **data: object) -> bytes:
    return _sse({"type": kind, **data}, kind)


def _anthropic_stream(reply: ScriptedReply, model: str) -> tuple[bytes, Iterable[bytes], bytes]:
    given, written = _usage(reply)
    shell = _anthropic_shell(model, [], None) | {"usage": {"input_tokens": given, "output_tokens": 1}}
    delta = {"stop_reason": _anthropic_finish(reply), "stop_sequence": None}
    ending = _anthropic_event("message_delta", delta=delta, usage={"output_tokens": written})
    beginning = _anthropic_event("message_start", message=shell) + _anthropic_event("ping")
    return beginning, _anthropic_content(reply), ending + _anthropic_event("message_stop")


def _anthropic_content(reply: ScriptedReply) -> Iterator[bytes]:
    """Encode the blocks: the start goes with the first chunk and the stop with the last, so only content counts."""
    for index, (block, deltas) in enumerate(_anthropic_blocks(reply)):
        start = _anthropic_event("content_block_start", index=index, content_block=block)
        stop = _anthropic_event("content_block_stop", index=index)
        for number, delta in enumerate(deltas, 1):
            piece = _anthropic_event("content_block_delta", index=index, delta=delta)
            yield start + piece + (stop if number == len(deltas) else b"")
            start = b""
        if not deltas:
            yield start + stop


def _anthropic_whole(reply: ScriptedReply, model: str) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if reply.reasoning:
        content.append({"type": "thinking", "thinking": reply.reasoning, "signature": "scripted"})
    if reply.chunks:
        content.append({"type": "text", "text": "".join(reply.chunks)})
    content += [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
        for call in reply.calls
    ]
    given, written = _usage(reply)
    usage = {"input_tokens": given, "output_tokens": written}
    return _anthropic_shell(model, content, _anthropic_finish(reply)) | {"usage": usage}


def _anthropic_shell(model: str, content: list[dict[str, Any]], finish: str | None) -> dict[str, Any]:
    return {
        "id": "msg_scripted",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": finish,
        "stop_sequence": None,
    }
