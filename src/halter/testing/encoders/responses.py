"""Replies as OpenAI's Responses API sends them."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Final

from halter.testing.encoders.common import cut, sse, token_counts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from halter.testing.replies import ScriptedReply

__all__ = ["stream", "whole"]

_CACHED: Final = 4
_LAST: Final = 1_000_000  # the number of the last event: more than all before it


def stream(reply: ScriptedReply, model: str) -> tuple[bytes, Iterable[bytes], Iterable[bytes]]:
    """Encode a reply as a stream: its beginning, its chunks of content, its end."""
    shell = _response(model, [], "in_progress")
    beginning = _event("response.created", 0, response=shell) + _event("response.in_progress", 1, response=shell)
    return beginning, _content(reply), _ending(reply, model)


def whole(reply: ScriptedReply, model: str) -> dict[str, Any]:
    """Encode a reply that is not streamed."""
    given, written = token_counts(reply)
    usage = {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": _CACHED, "cache_write_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": given + written,
    }
    details = {"reason": reply.finish} if reply.finish else None
    done = _response(model, [item for item, _, _ in _items(reply)], "incomplete" if reply.finish else "completed")
    return done | {"usage": usage, "incomplete_details": details}


def _ending(reply: ScriptedReply, model: str) -> Iterator[bytes]:
    """Encode the end, which has the whole answer: made only when it is sent."""
    done = whole(reply, model)
    yield _event(f"response.{done['status']}", _LAST, response=done)


def _items(reply: ScriptedReply) -> Iterator[tuple[dict[str, Any], dict[str, Any], Iterable[dict[str, Any]]]]:
    """Each item as it ends, what is different when it begins, and the events in between."""
    if reply.reasoning:
        summary = [{"type": "summary_text", "text": reply.reasoning}]
        item = {"id": "rs_scripted", "type": "reasoning", "summary": summary, "encrypted_content": "scripted"}
        kind = "response.reasoning_summary_text.delta"
        deltas = ({"type": kind, "summary_index": 0, "delta": piece} for piece in cut(reply.reasoning))
        yield item, {"summary": [], "encrypted_content": "incomplete"}, deltas
    if reply.chunks:
        part = {"type": "output_text", "text": "".join(reply.chunks), "annotations": []}
        item = {"id": "msg_scripted", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
        kind = "response.output_text.delta"
        texts = ({"type": kind, "content_index": 0, "logprobs": [], "delta": piece} for piece in reply.chunks)
        yield item, {"status": "in_progress", "content": []}, texts
    for number, call in enumerate(reply.calls):
        item = {"id": f"fc_{number}", "type": "function_call", "status": "completed"}
        item |= {"call_id": call.id, "name": call.name, "arguments": call.arguments}
        kind = "response.function_call_arguments.delta"
        pieces = cut(call.arguments)
        yield item, {"status": "in_progress", "arguments": ""}, [{"type": kind, "delta": piece} for piece in pieces]


def _content(reply: ScriptedReply) -> Iterator[bytes]:
    """Encode the items: the start goes with the first chunk and the end with the last, so only content counts."""
    number = count(2)
    for index, (item, at_first, deltas) in enumerate(_items(reply)):
        start = _event("response.output_item.added", next(number), output_index=index, item=item | at_first)
        for delta in deltas:
            fields = {key: value for key, value in delta.items() if key != "type"}
            yield start + _event(delta["type"], next(number), output_index=index, item_id=item["id"], **fields)
            start = b""
        yield start + _event("response.output_item.done", next(number), output_index=index, item=item)


def _event(kind: str, number: int, **fields: object) -> bytes:
    return sse({"type": kind, "sequence_number": number, **fields}, kind)


def _response(model: str, output: list[dict[str, Any]], status: str) -> dict[str, Any]:
    return {
        "id": "resp_scripted",
        "object": "response",
        "created_at": 0,
        "model": model,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "output": output,
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
    }
