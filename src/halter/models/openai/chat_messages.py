"""The messages of a request for chat completions."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from halter.models.image_types import sendable
from halter.models.types import AssistantMessage, Audio, Image, Part, Text, ToolMessage

if TYPE_CHECKING:
    from halter.models.providers import Provider
    from halter.models.types import ModelRequest

__all__ = ["write_messages"]

_ANSWER: Final = "OK."  # given for the model, where its own answer is missing


class _PlainMessage(Struct, gc=False):
    """A message in a request. A struct, because a long history has many, and a struct is made and encoded faster."""

    role: str
    content: Any


def write_messages(request: ModelRequest, provider: Provider) -> list[Any]:
    """The conversation, as `provider` takes it."""
    written = _messages(request, provider)
    if provider.call_id_length:
        _shorten_ids(written, provider.call_id_length)
    return _with_answers(written) if provider.answers_results else written


def _messages(request: ModelRequest, provider: Provider) -> list[Any]:
    """The conversation.

    Consecutive user messages are merged, because the templates of many models refuse two in a row. Images and audio of
    a tool's result go into the user message after the results, because a result can only hold text here.
    """
    written: list[Any] = []
    user_parts: list[Part] = []
    if request.instructions:
        written.append(_PlainMessage("system", request.instructions))
    for message in request.messages:  # the whole conversation, for each request: the common case must be fast
        if isinstance(message, AssistantMessage):
            if user_parts:
                written.append(_PlainMessage("user", _content(user_parts)))
                user_parts = []
            is_plain = not (message.calls or provider.needs_reasoning)
            written.append(_PlainMessage("assistant", message.text) if is_plain else _assistant(message, provider))
        elif isinstance(message, ToolMessage):
            user_parts = [*user_parts, *_result(message, written)]
        else:
            # A copy: without earlier parts, the list is the message's own.
            user_parts = [*user_parts, *message.parts] if user_parts else message.parts
    if user_parts:
        written.append(_PlainMessage("user", _content(user_parts)))
    return written


def _shorten_ids(written: list[Any], length: int) -> None:
    """Give the calls ids of this many letters and digits, the same ones in every request."""
    for message in written:
        if not isinstance(message, dict):
            continue
        if "tool_call_id" in message:
            message["tool_call_id"] = _short_id(message["tool_call_id"], length)
        for call in message.get("tool_calls", ()):
            call["id"] = _short_id(call["id"], length)


def _short_id(call_id: str, length: int) -> str:
    if len(call_id) == length and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:length]


def _with_answers(written: list[Any]) -> list[Any]:
    """The same messages with an answer between results and what the user says next."""
    filled: list[Any] = []
    for message in written:
        is_user = isinstance(message, _PlainMessage) and message.role == "user"
        if is_user and filled and isinstance(filled[-1], dict) and filled[-1]["role"] == "tool":
            filled.append(_PlainMessage("assistant", _ANSWER))
        filled.append(message)
    return filled


def _result(message: ToolMessage, written: list[Any]) -> list[Part]:
    shown: list[Part] = [part for part in message.parts if not isinstance(part, Text)]
    text = message.text or ("" if not shown else "(shown in the next user message)")
    written.append({"role": "tool", "tool_call_id": message.call_id, "content": text})
    if not shown:
        return []
    return [Text(f"What {message.name} returned (call {message.call_id}):"), *shown]


def _assistant(message: AssistantMessage, provider: Provider) -> dict[str, Any]:
    """A message with calls or reasoning; its content is null and not empty if there is no text."""
    written: dict[str, Any] = {"role": "assistant", "content": message.text or None}
    if provider.needs_reasoning:
        thoughts = [block.text for block in message.reasoning if not (block.signature or block.redacted)]
        written["reasoning_content"] = "\n".join(thoughts)
    if message.calls:
        written["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    return written


def _content(parts: list[Part]) -> str | list[dict[str, Any]]:
    if len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    texts = [part.text for part in parts if isinstance(part, Text)]
    if len(texts) == len(parts):
        return "\n\n".join(texts)
    return [_part(part) for part in parts]


def _part(part: Part) -> dict[str, Any]:
    part = sendable(part)
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Audio):
        return {"type": "input_audio", "input_audio": {"data": _base64(part.data), "format": _format(part.media_type)}}
    return {"type": "image_url", "image_url": {"url": _image_url(part)}}


def _image_url(image: Image) -> str:
    return image.url or f"data:{image.media_type};base64,{_base64(image.data or b'')}"


def _format(media_type: str) -> str:
    kind = media_type.partition(";")[0].rpartition("/")[2].removeprefix("x-")
    return {"mpeg": "mp3", "wave": "wav"}.get(kind, kind)


def _base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")
