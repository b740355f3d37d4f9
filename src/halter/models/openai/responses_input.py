"""The conversation as input items of the Responses API.

Items have no ids, except reasoning: an id would have the server look for an item that it did not store. What the API
refuses is not written: a result without its call before it, reasoning without its encrypted content, and reasoning
that nothing of the same answer follows.
"""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any, Final

from halter.models.image_types import sendable
from halter.models.types import AssistantMessage, Audio, Part, Reasoning, Text, ToolMessage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halter.models.types import Message

__all__ = ["WIRE", "write_input"]

WIRE: Final = "openai-responses"
"""The mark of this API's reasoning."""


def write_input(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """The input items. What a person said between two results of one batch comes after the last of them."""
    written: list[dict[str, Any]] = []
    said: list[dict[str, Any]] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            written.append(_result(message))
            continue
        if isinstance(message, AssistantMessage):
            written += said
            said = []
            written += _answer(message)
        elif content := _content(message.parts):
            said.append({"type": "message", "role": "user", "content": content})
    return written + said


def _answer(message: AssistantMessage) -> list[dict[str, Any]]:
    """The items of one answer, in the order in which they came."""
    items: list[dict[str, Any]] = []
    text = calls = 0

    def write_until(text_end: int, calls_end: int) -> None:
        nonlocal text, calls
        piece = message.text[text:text_end]
        if piece.strip():
            items.append({"type": "message", "role": "assistant", "content": piece})
        for call in message.calls[calls:calls_end]:
            item = {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
            items.append(item)
        text, calls = max(text, text_end), max(calls, calls_end)

    for block in message.reasoning:
        if block.wire == WIRE and block.signature:
            write_until(block.text_before, block.calls_before)
            items.append(_reasoning(block))
    write_until(len(message.text), len(message.calls))
    while items and items[-1]["type"] == "reasoning":
        items.pop()
    return items


def _reasoning(block: Reasoning) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": block.text}] if block.text else []
    return {"type": "reasoning", "id": block.id, "summary": summary, "encrypted_content": block.signature}


def _result(message: ToolMessage) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": message.call_id, "output": _content(message.parts)}


def _content(parts: list[Part]) -> str | list[dict[str, Any]]:
    if len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    return [_part(part) for part in parts if not isinstance(part, Text) or part.text] or ""


def _part(part: Part) -> dict[str, Any]:
    part = sendable(part)
    if isinstance(part, Text):
        return {"type": "input_text", "text": part.text}
    if isinstance(part, Audio):
        # This API takes no audio. Tell the model, instead of making a request that always fails.
        return {"type": "input_text", "text": f"[an audio recording ({part.media_type}), which this API does not take]"}
    url = part.url or f"data:{part.media_type};base64,{b64encode(part.data or b'').decode('ascii')}"
    return {"type": "input_image", "image_url": url, "detail": "auto"}
