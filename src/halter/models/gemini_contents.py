"""Conversation and tools as Gemini's API takes them.

Roles alternate, and the results of one batch come first in the content right after their calls: the API counts them.
Schemas have only the keywords that it knows.
"""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any, Final

import msgspec

from halter.models.image_types import sendable
from halter.models.sanitize import arguments_object
from halter.models.types import AssistantMessage, Image, Part, Text, ToolMessage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halter.models.types import Message, ToolCall, ToolSpec

__all__ = ["WIRE", "write_contents", "write_schema", "write_tools"]

WIRE: Final = "gemini"
"""The mark of this API's reasoning."""

# The value by which the API lets a call pass that has no signature, because another provider's model made it.
_NO_SIGNATURE: Final = "skip_thought_signature_validator"
# Keywords that are written as they are.
_PLAIN: Final = frozenset(
    {"description", "enum", "maxItems", "maximum", "minItems", "minimum", "required", "title", "type"}
)
# Keywords that this API does not know. A model can follow them if the description has them.
_EXTRA: Final = ("format", "minLength", "maxLength", "pattern", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_OTHER_IMAGES: Final = frozenset({"image/heic", "image/heif"})  # beside those that every provider accepts
_FORMATS: Final = frozenset({"date-time", "date", "time", "enum", "int32", "int64", "float", "double"})


def write_contents(messages: Iterable[Message], *, needs_signatures: bool) -> list[dict[str, Any]]:
    """The conversation."""
    merged: list[tuple[str, list[dict[str, Any]]]] = []
    for message in messages:
        role = "model" if isinstance(message, AssistantMessage) else "user"
        parts = _parts(message, needs_signatures=needs_signatures)
        if not parts:
            continue
        if merged and merged[-1][0] == role:
            merged[-1][1].extend(parts)
        else:
            merged.append((role, parts))
    for role, parts in merged:
        if role == "user":
            parts.sort(key=lambda part: "functionResponse" not in part)
    return [{"role": role, "parts": parts} for role, parts in merged]


def write_tools(tools: Iterable[ToolSpec]) -> list[dict[str, Any]]:
    """The descriptions of the tools. One without parameters has no schema: an empty object would be refused."""
    declarations = []
    for tool in tools:
        declaration: dict[str, Any] = {"name": tool.name, "description": tool.description}
        if tool.parameters.get("properties"):
            declaration["parametersJsonSchema"] = write_schema(tool.parameters)
        declarations.append(declaration)
    return [{"functionDeclarations": declarations}]


def _parts(message: Message, *, needs_signatures: bool) -> list[dict[str, Any]]:
    if isinstance(message, AssistantMessage):
        return _answer(message, needs_signatures=needs_signatures)
    if isinstance(message, ToolMessage):
        return _result(message)
    return [part for each in message.parts if (part := _part(each))]


def _answer(message: AssistantMessage, *, needs_signatures: bool) -> list[dict[str, Any]]:
    """Text and calls with the signatures that they came with. Summaries of thoughts are not sent back."""
    calls = [
        _call(call, call.signature or (_NO_SIGNATURE if needs_signatures and not number else ""))
        for number, call in enumerate(message.calls)
    ]
    parts: list[dict[str, Any]] = []
    text = written = 0
    for block in message.reasoning:
        if block.wire == WIRE and block.signature:
            parts += calls[written : block.calls_before]
            parts.append({"text": message.text[text : block.text_before], "thoughtSignature": block.signature})
            text, written = max(text, block.text_before), max(written, block.calls_before)
    if message.text[text:].strip():
        parts.append({"text": message.text[text:]})
    return parts + calls[written:]


def _call(call: ToolCall, signature: str) -> dict[str, Any]:
    part: dict[str, Any] = {"functionCall": {"id": call.id, "name": call.name, "args": arguments_object(call)}}
    return part | {"thoughtSignature": signature} if signature else part


def _result(message: ToolMessage) -> list[dict[str, Any]]:
    """A result; what is not text follows the results of the batch, with words that say whose it is."""
    response = {"error" if message.is_error else "output": message.text}
    parts: list[dict[str, Any]] = [
        {"functionResponse": {"id": message.call_id, "name": message.name, "response": response}}
    ]
    shown = [_part(part) for part in message.parts if not isinstance(part, Text)]
    if shown:
        parts += [{"text": f"What {message.name} returned (call {message.call_id}):"}, *filter(None, shown)]
    return parts


def _part(part: Part) -> dict[str, Any] | None:
    part = sendable(part, others=_OTHER_IMAGES)
    if isinstance(part, Text):
        return {"text": part.text} if part.text.strip() else None
    if isinstance(part, Image) and part.url:
        return {"fileData": {"fileUri": part.url, "mimeType": part.media_type}}
    data = b64encode(part.data or b"").decode("ascii")
    return {"inlineData": {"mimeType": part.media_type, "data": data}}


def write_schema(schema: Any) -> Any:  # noqa: ANN401 - JSON
    """The same schema without the keywords that would be refused. What they require is added to the description.

    It is checked when a tool is called, or a typed answer has come.
    """
    if not isinstance(schema, dict):
        return schema
    written: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs", "definitions") and isinstance(value, dict):
            written["$defs" if key == "definitions" else key] = {
                name: write_schema(each) for name, each in value.items()
            }
        elif key in ("anyOf", "oneOf", "prefixItems") and isinstance(value, list):
            written["anyOf" if key == "oneOf" else key] = [write_schema(each) for each in value]
        elif key == "additionalProperties" or (key == "items" and value is not False):
            written[key] = write_schema(value)
        elif key == "$ref" and isinstance(value, str):
            written[key] = value.replace("#/definitions/", "#/$defs/")
        elif key == "const":
            written["enum"] = [value]
        elif key in _PLAIN or (key == "format" and value in _FORMATS):
            written[key] = value
    extra = [f"{key}: {msgspec.json.encode(schema[key]).decode()}" for key in _EXTRA if key in schema.keys() - written]
    if extra:
        written["description"] = f"{written.get('description', '')} ({', '.join(extra)})".lstrip()
    return written
