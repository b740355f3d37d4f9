"""What enters the log is fit for every provider: the one place that makes it so.

A model may invent tool names and ids that strict providers refuse, and arguments that are not JSON; a text may hold
half of a surrogate pair, which cannot be encoded. Once in the history, each of them makes every later request fail.
So they are replaced here, and what the model really sent is kept beside it, in `ToolCall.sent`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from halter.models.errors import UNREADABLE
from halter.models.types import Image, Part, Reasoning, ReasoningDelta, Text, TextDelta, ToolCall, ToolCallAsSent

if TYPE_CHECKING:
    from collections.abc import Container

    from halter.models.answer import Answer
    from halter.models.types import ModelEvent, UserMessage

__all__ = ["arguments_object", "clean_answer", "clean_event", "clean_message", "clean_text"]

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_NOT_ALLOWED: Final = re.compile(r"[^a-zA-Z0-9_-]")
_NAMESPACE: Final = re.compile(r"^.*[.:/]", re.DOTALL)
_MAX_NAME: Final = 64
_MAX_ID: Final = 40  # OpenAI refuses longer ones
_MAX_SHOWN: Final = 2_000  # characters of unreadable arguments that the model is shown again


def clean_text(text: str) -> str:
    """The same text with U+FFFD in place of each lone surrogate."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def clean_message(message: UserMessage) -> UserMessage:
    """The same message with clean texts."""
    return type(message)([_clean_part(part) for part in message.parts])


def clean_event(event: ModelEvent) -> ModelEvent:
    """The same event with clean text. Only text and reasoning are logged as they stream; the rest is in the answer."""
    kind = event.__class__
    if (kind is TextDelta or kind is ReasoningDelta) and not event.text.isascii():  # type: ignore[union-attr]
        return kind(clean_text(event.text))  # type: ignore[union-attr]
    return event


def clean_answer(answer: Answer, used_ids: Container[str], tools: Container[str] = ()) -> Answer:
    """The same answer as every provider takes it back.

    Its calls have valid names, JSON objects as arguments, and ids that are valid, unique, and not in *used_ids*. A name
    with a namespace, such as "functions.search", means the tool "search" if *tools* has that and nothing closer.
    """
    if answer.text.isascii() and not (answer.calls or answer.reasoning or answer.unfinished or answer.detail):
        return answer  # as most are; and a stop waits for this
    seen: set[str] = set()
    return msgspec.structs.replace(
        answer,
        text=clean_text(answer.text),
        detail=clean_text(answer.detail),
        reasoning=[_clean_reasoning(block) for block in answer.reasoning],
        calls=[_clean_call(call, used_ids, seen, tools) for call in answer.calls],
        unfinished=[
            ToolCall(clean_text(call.id), clean_text(call.name), clean_text(call.arguments))
            for call in answer.unfinished
        ],
    )


def _clean_part(part: Part) -> Part:
    if isinstance(part, Text):
        return Text(clean_text(part.text))
    media_type = clean_text(part.media_type)
    if isinstance(part, Image):
        return Image(part.data, None if part.url is None else clean_text(part.url), media_type)
    return type(part)(part.data, media_type)


def _clean_reasoning(block: Reasoning) -> Reasoning:
    """A clean block; one that had to be changed loses its signature, which would not fit any more."""
    cleaned = msgspec.structs.replace(
        block,
        text=clean_text(block.text),
        signature=clean_text(block.signature),
        redacted=clean_text(block.redacted),
        id=clean_text(block.id),
    )
    return block if cleaned == block else Reasoning(cleaned.text)


def _clean_call(call: ToolCall, used_ids: Container[str], seen: set[str], tools: Container[str]) -> ToolCall:
    cleaned = ToolCall(
        _clean_id(call.id, used_ids, seen),
        _clean_name(call.name, tools),
        _clean_arguments(call.arguments),
        signature=clean_text(call.signature),
    )
    seen.add(cleaned.id)
    if cleaned == msgspec.structs.replace(call, sent=None):
        return call
    sent = ToolCallAsSent(clean_text(call.id), clean_text(call.name), clean_text(call.arguments))
    return msgspec.structs.replace(cleaned, sent=sent)


def _clean_id(call_id: str, used_ids: Container[str], seen: set[str]) -> str:
    base = cleaned = _NOT_ALLOWED.sub("_", call_id)[:_MAX_ID] or "call"
    number = 1
    while cleaned in seen or cleaned in used_ids:
        number += 1
        suffix = f"-{number}"
        cleaned = base[: _MAX_ID - len(suffix)] + suffix
    return cleaned


def _clean_name(name: str, tools: Container[str]) -> str:
    cleaned = _NOT_ALLOWED.sub("_", name.strip())[:_MAX_NAME] or "unnamed"
    last = _NAMESPACE.sub("", name.strip())
    return last if cleaned not in tools and last in tools else cleaned


def arguments_object(call: ToolCall) -> dict[str, Any]:
    """The arguments of a call as an object, for an API that takes no text. Logs of older versions may hold others."""
    try:
        arguments = msgspec.json.decode(call.arguments)
    except UNREADABLE:
        arguments = None
    return arguments if isinstance(arguments, dict) else {"unreadable_arguments": call.arguments}


def _clean_arguments(arguments: str) -> str:
    """Text of a JSON object. No arguments are an empty one, and an object inside a string is that object."""
    arguments = clean_text(arguments)
    if not arguments.strip():
        return "{}"
    try:
        value = msgspec.json.decode(arguments)
        if isinstance(value, str):
            arguments, value = value, msgspec.json.decode(value) if value.strip() else None
    except UNREADABLE:
        value = arguments
    if value is None:
        return "{}"
    if isinstance(value, dict):
        return arguments
    return msgspec.json.encode({"unreadable_arguments": arguments[:_MAX_SHOWN]}).decode()
