"""Anthropic's messages API.

Only the fields that are used are decoded; unknown blocks and events are skipped. An answer is complete when
`message_stop` came. Requests follow the strict rules of this API: user and assistant alternate, the results of one
batch are in one user message and come first in it, no text block is empty, and thinking is sent back as it was signed.

The provider caches what stands before a mark. There are marks after the tools and instructions, which every request
has, and after each of the last two user messages: the older one is where the request before ended, so that its cache is
found however many blocks were added since; the newer one is where the next request will look.
"""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from halter.models.errors import StreamBroken, error_in_answer
from halter.models.http.reader import Reader, tokens
from halter.models.http.wire import HTTPModel
from halter.models.image_types import sendable
from halter.models.output_schema import is_overridden, is_recursive, strict_schema, with_schema
from halter.models.sanitize import arguments_object
from halter.models.types import (
    AssistantMessage,
    Audio,
    Finished,
    FinishReason,
    Message,
    ModelEvent,
    ModelRequest,
    ModelSettings,
    Part,
    Reasoning,
    ReasoningDelta,
    ReasoningDone,
    ReasoningEffort,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStarted,
    ToolMessage,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["AnthropicModel"]

_VERSION: Final = "2023-06-01"
_CACHE_MARK: Final = {"type": "ephemeral"}
# The field is required. Limits differ between models; all that are served today accept this one.
_MAX_TOKENS: Final = 8192
_THINKING_TOKENS: Final[dict[ReasoningEffort, int]] = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384}
_REASONS: Final[dict[str, FinishReason]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
    "pause_turn": "pause",
}


class _Block(Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None


class _StopDetails(Struct):
    explanation: str | None = None


class _Delta(Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None
    stop_details: _StopDetails | None = None


class _Message(Struct):
    type: str = ""
    model: str | None = None
    content: list[_Block] | None = None
    stop_reason: str | None = None
    stop_details: _StopDetails | None = None
    usage: Any = None


class _Event(Struct):
    type: str = ""
    index: int = 0
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: Any = None


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_message = msgspec.json.Decoder(_Message).decode


class AnthropicModel(HTTPModel):
    """A model of Anthropic's. Without `base_url` and key, the environment variables of the SDK are used."""

    default_provider = "anthropic"
    output_key = "output_config"

    def url(self) -> str:
        """The URL for requests."""
        return f"{self.base_url}/v1/messages"

    def auth_headers(self) -> dict[str, str]:
        """The headers with the key and the version of the API."""
        return {"anthropic-version": _VERSION, **super().auth_headers()}

    def reader(self) -> _Reader:
        """Make a reader for one answer."""
        return _Reader(self.name)

    def body(self, request: ModelRequest) -> dict[str, Any]:
        """The request body for the messages API."""
        output = _output(request)
        if request.output is not None and output is None:
            request = with_schema(request)
        body: dict[str, Any] = {"model": self.name, **_settings(request.settings)}
        if self.streaming:
            body["stream"] = True
        if output is not None:
            body["output_config"] = output
        if request.tools:
            body["tools"] = [
                {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
                for tool in request.tools
            ]
        if request.instructions.strip():
            body["system"] = [{"type": "text", "text": request.instructions}]
        body["messages"] = _messages(request.messages)
        _mark_for_cache(body)
        return body


def _mark_for_cache(body: dict[str, Any]) -> None:
    """Mark where the provider should cache: at most three of the four marks that it allows."""
    constant = body.get("system") or body.get("tools") or []
    users = [message["content"][-1] for message in body["messages"] if message["role"] == "user"]
    for block in constant[-1:] + users[-2:]:
        block["cache_control"] = _CACHE_MARK


def _output(request: ModelRequest) -> dict[str, Any] | None:
    """The `output_config`; None if the form of the answer can only be described. This API has no recursive schemas."""
    output = request.output
    if output is None or is_recursive(output.schema) or is_overridden(request, "output_config"):
        return None
    schema = strict_schema(output.schema, all_required=False)
    return None if schema is None else {"format": {"type": "json_schema", "schema": schema}}


def _settings(settings: ModelSettings) -> dict[str, Any]:
    """The settings in this API's words. The budget for thinking is part of `max_tokens`, so it comes on top."""
    budget = _THINKING_TOKENS[settings.reasoning] if settings.reasoning is not None else 0
    named = {
        "max_tokens": (settings.max_output_tokens or _MAX_TOKENS) + budget,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "stop_sequences": settings.stop or None,
        "thinking": {"type": "enabled", "budget_tokens": budget} if budget else None,
    }
    return {name: value for name, value in named.items() if value is not None}


class _OpenBlock:
    """A content block that has not ended yet."""

    __slots__ = ("block", "index", "pieces", "signature")

    def __init__(self, block: _Block, index: int) -> None:
        self.block = block
        self.index = index
        self.pieces: list[str] = []
        self.signature = block.signature or ""


class _Reader(Reader):
    def __init__(self, model: str) -> None:
        super().__init__(model)
        self._calls = 0
        self._open: dict[int, _OpenBlock] = {}
        self._reported: dict[str, Any] = {}

    def take(self, name: str, data: bytes) -> list[ModelEvent]:
        event = _decode_event(data)
        if event.type == "content_block_delta":
            return self._delta(event)
        if event.type == "error" or name == "error":
            raise error_in_answer(data)
        if event.type == "content_block_start" and event.content_block is not None:
            return self._start(event.index, event.content_block)
        if event.type == "content_block_stop":
            return self._stop(event.index)
        if event.type == "message_start" and event.message is not None:
            self._model = event.message.model or self._model
            return self._count(event.message.usage)
        if event.type == "message_delta":
            if event.delta is not None:
                self._ending(event.delta.stop_reason, event.delta.stop_details)
            return self._count(event.usage)
        if event.type == "message_stop":
            self.finished = True
        return []

    def read_complete(self, body: bytes) -> list[ModelEvent]:
        answer = _decode_message(body)
        if answer.type != "message" or answer.content is None:
            raise error_in_answer(body)
        self._model = answer.model or self._model
        events: list[ModelEvent] = []
        for index, block in enumerate(answer.content):
            events += self._start(index, block)
            events += self._stop(index)
        self._ending(answer.stop_reason, answer.stop_details)
        self.finished = True
        return events + self._count(answer.usage)

    def end(self) -> list[ModelEvent]:
        if not self.finished:
            raise StreamBroken("the answer was cut off: no message_stop was received")
        # Some servers do not end their blocks before they end the message.
        events = [event for index in list(self._open) for event in self._stop(index)]
        return [*events, Finished(_REASONS.get(self._raw, "other"), self._raw, self._model, self._detail)]

    def _ending(self, reason: str | None, details: _StopDetails | None) -> None:
        self._raw = reason or self._raw
        if details is not None and details.explanation:
            self._detail = details.explanation

    def _start(self, index: int, block: _Block) -> list[ModelEvent]:
        state = self._open[index] = _OpenBlock(block, self._calls)
        if block.type == "tool_use":
            self._calls += 1
            return [ToolCallStarted(state.index, block.id or "", block.name or "")]
        if block.type == "text" and block.text:
            return [TextDelta(block.text)]
        if block.type == "thinking" and block.thinking:
            state.pieces.append(block.thinking)
            return [ReasoningDelta(block.thinking)]
        return []

    def _delta(self, event: _Event) -> list[ModelEvent]:
        state = self._open.get(event.index)
        delta = event.delta
        if delta is None or state is None:
            return []
        if delta.type == "text_delta" and delta.text:
            return [TextDelta(delta.text)]
        if delta.type == "input_json_delta" and delta.partial_json and state.block.type == "tool_use":
            state.pieces.append(delta.partial_json)
            return [ToolCallDelta(state.index, delta.partial_json)]
        if delta.type == "thinking_delta" and delta.thinking:
            state.pieces.append(delta.thinking)
            return [ReasoningDelta(delta.thinking)]
        if delta.type == "signature_delta" and delta.signature:
            state.signature = delta.signature
        return []

    def _stop(self, index: int) -> list[ModelEvent]:
        state = self._open.pop(index, None)
        if state is None:
            return []
        block = state.block
        if block.type == "tool_use":
            events: list[ModelEvent] = []
            if not state.pieces and block.input:
                state.pieces.append(msgspec.json.encode(block.input).decode())
                events.append(ToolCallDelta(state.index, state.pieces[0]))
            call = ToolCall(block.id or "", block.name or "", "".join(state.pieces) or "{}")
            return [*events, ToolCallDone(state.index, call)]
        if block.type == "thinking":
            return [ReasoningDone(Reasoning("".join(state.pieces), state.signature))]
        if block.type == "redacted_thinking":
            return [ReasoningDone(Reasoning(redacted=block.data or ""))]
        return []

    def _count(self, reported: object) -> list[ModelEvent]:
        """Update the usage: reports are cumulative, and fields that are left out have not changed."""
        if not isinstance(reported, dict):
            return []
        known = self._reported
        known.update((key, value) for key, value in reported.items() if value is not None)
        cached, written = tokens(known, "cache_read_input_tokens"), tokens(known, "cache_creation_input_tokens")
        usage = Usage(
            input_tokens=tokens(known, "input_tokens") + cached + written,
            output_tokens=tokens(known, "output_tokens"),
            cached_tokens=cached,
            cache_write_tokens=written,
            reasoning_tokens=tokens(known, "output_tokens_details", "thinking_tokens"),
        )
        return self._update_usage(usage)


def _messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """The conversation with alternating roles, whatever the order in which it was recorded."""
    merged: list[tuple[str, list[dict[str, Any]]]] = []
    for message in messages:
        role = "assistant" if isinstance(message, AssistantMessage) else "user"
        blocks = _blocks(message)
        if not blocks:
            continue
        if merged and merged[-1][0] == role:
            merged[-1][1].extend(blocks)
        else:
            merged.append((role, blocks))
    for role, blocks in merged:
        if role == "user":
            blocks.sort(key=lambda block: block["type"] != "tool_result")
    if merged and merged[-1][0] == "assistant" and merged[-1][1][-1]["type"] == "text":
        # A final assistant message must not end in white space.
        last = merged[-1][1][-1]
        last["text"] = last["text"].rstrip()
    return [{"role": role, "content": blocks} for role, blocks in merged]


def _blocks(message: Message) -> list[dict[str, Any]]:
    if isinstance(message, AssistantMessage):
        blocks = [block for thought in message.reasoning if (block := _thought(thought))]
        if message.text.strip():
            blocks.append({"type": "text", "text": message.text})
        return blocks + [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments_object(call)}
            for call in message.calls
        ]
    content = [block for part in message.parts if (block := _part(part))]
    if isinstance(message, ToolMessage):
        result: dict[str, Any] = {"type": "tool_result", "tool_use_id": message.call_id}
        if content:
            result["content"] = content
        if message.is_error:
            result["is_error"] = True
        return [result]
    return content


def _thought(thought: Reasoning) -> dict[str, Any] | None:
    if thought.wire:
        return None  # another provider's
    if thought.redacted:
        return {"type": "redacted_thinking", "data": thought.redacted}
    if thought.signature:
        return {"type": "thinking", "thinking": thought.text, "signature": thought.signature}
    # Thinking of another provider's model has no signature, and would be refused.
    return None


def _part(part: Part) -> dict[str, Any] | None:
    part = sendable(part)
    if isinstance(part, Text):
        return {"type": "text", "text": part.text} if part.text.strip() else None
    if isinstance(part, Audio):
        # This API takes no audio. Tell the model, instead of making a request that always fails.
        return {"type": "text", "text": f"[an audio recording ({part.media_type}), which this model does not support]"}
    if part.url:
        return {"type": "image", "source": {"type": "url", "url": part.url}}
    data = b64encode(part.data or b"").decode("ascii")
    return {"type": "image", "source": {"type": "base64", "media_type": part.media_type, "data": data}}
