"""Anthropic's messages.

Only the fields that are used are decoded, blocks and events of unknown kinds are skipped. An answer is whole when
`message_stop` came. What is sent keeps this wire's strict rules: user and assistant take turns, the results of one
batch are in one user message and come first in it, no block of text is empty, and thinking goes back as it was
signed.
"""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from halter.models.errors import UNREADABLE, ProviderError, StreamBroken
from halter.models.model import (
    AssistantMessage,
    Audio,
    Finished,
    FinishReason,
    Message,
    ModelEvent,
    ModelRequest,
    Part,
    Reasoning,
    ReasoningDelta,
    ReasoningDone,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStarted,
    ToolMessage,
    Usage,
)
from halter.models.wire import HTTPModel

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["AnthropicModel"]

_VERSION: Final = "2023-06-01"
# The field is required. The models' own limits differ; this is what all that are served today accept.
_MAX_TOKENS: Final = 8192
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


class _OutputTokens(Struct):
    thinking_tokens: int | None = None


class _Usage(Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens_details: _OutputTokens | None = None


class _Whole(Struct):
    type: str = ""
    model: str | None = None
    content: list[_Block] | None = None
    stop_reason: str | None = None
    stop_details: _StopDetails | None = None
    usage: _Usage | None = None


class _Event(Struct):
    type: str = ""
    index: int = 0
    message: _Whole | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_whole = msgspec.json.Decoder(_Whole).decode


class AnthropicModel(HTTPModel):
    """One of Anthropic's models. Without `base_url` and key, the SDK's environment variables hold."""

    key_variable = "ANTHROPIC_API_KEY"
    url_variable = "ANTHROPIC_BASE_URL"
    default_url = "https://api.anthropic.com"

    def url(self) -> str:
        """Where requests go."""
        return f"{self.base_url}/v1/messages"

    def auth_headers(self) -> dict[str, str]:
        """Say who asks, and which version of the protocol is meant."""
        headers = {"anthropic-version": _VERSION}
        if self._api_key:
            headers["x-api-key"] = self._api_key
        return headers

    def reader(self) -> _Reader:
        """Make a reader for one answer."""
        return _Reader(self.name)

    def body(self, request: ModelRequest) -> dict[str, Any]:
        """Write `request` as the messages API wants it."""
        body: dict[str, Any] = {
            "model": self.name,
            "max_tokens": request.max_tokens or _MAX_TOKENS,
            "messages": _messages(request.messages),
        }
        if request.instructions.strip():
            body["system"] = request.instructions
        if request.tools:
            body["tools"] = [
                {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
                for tool in request.tools
            ]
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if self.streaming:
            body["stream"] = True
        return body


class _Open:
    """A block that is being written."""

    __slots__ = ("block", "index", "pieces", "signature")

    def __init__(self, block: _Block, index: int) -> None:
        self.block = block
        self.index = index
        self.pieces: list[str] = []
        self.signature = block.signature or ""


class _Reader:
    """Reads one answer."""

    def __init__(self, name: str) -> None:
        self.finished = False
        self._model = name
        self._raw = ""
        self._detail = ""
        self._calls = 0
        self._open: dict[int, _Open] = {}
        self._usage = Usage()
        self._tokens = _Usage()

    def take(self, name: str, data: bytes) -> list[ModelEvent]:
        event = _decode_event(data)
        if event.type == "content_block_delta":
            return self._delta(event)
        if event.type == "error" or name == "error":
            message = "an error inside the answer"
            raise ProviderError(message, body=data.decode("utf-8", "replace"))
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

    def whole(self, body: bytes) -> list[ModelEvent]:
        answer = _decode_whole(body)
        if answer.type != "message" or answer.content is None:
            message = "an error instead of an answer"
            raise ProviderError(message, body=body.decode("utf-8", "replace"))
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
            message = "the answer ended in the middle: no message_stop came"
            raise StreamBroken(message)
        # A server that forgets to end its blocks has still ended the message.
        events = [event for index in list(self._open) for event in self._stop(index)]
        return [*events, Finished(_REASONS.get(self._raw, "other"), self._raw, self._model, self._detail)]

    def _ending(self, reason: str | None, details: _StopDetails | None) -> None:
        self._raw = reason or self._raw
        if details is not None and details.explanation:
            self._detail = details.explanation

    def _start(self, index: int, block: _Block) -> list[ModelEvent]:
        state = self._open[index] = _Open(block, self._calls)
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

    def _count(self, tokens: _Usage | None) -> list[ModelEvent]:
        """Count tokens: each report is cumulative, and what it leaves out is as it was."""
        if tokens is None:
            return []
        known = self._tokens
        for key in tokens.__struct_fields__:
            value = getattr(tokens, key)
            if value is not None:
                setattr(known, key, value)
        cached, written = known.cache_read_input_tokens or 0, known.cache_creation_input_tokens or 0
        thought = known.output_tokens_details
        usage = Usage(
            input_tokens=(known.input_tokens or 0) + cached + written,
            output_tokens=known.output_tokens or 0,
            cached_tokens=cached,
            cache_write_tokens=written,
            reasoning_tokens=(thought.thinking_tokens or 0) if thought else 0,
        )
        if usage == self._usage:
            return []
        self._usage = usage
        return [usage]


def _messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Write the conversation as turns that alternate, whatever the order in which it was recorded."""
    turns: list[tuple[str, list[dict[str, Any]]]] = []
    for message in messages:
        role = "assistant" if isinstance(message, AssistantMessage) else "user"
        blocks = _blocks(message)
        if not blocks:
            continue
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(blocks)
        else:
            turns.append((role, blocks))
    for role, blocks in turns:
        if role == "user":
            blocks.sort(key=lambda block: block["type"] != "tool_result")
    if turns and turns[-1][0] == "assistant" and turns[-1][1][-1]["type"] == "text":
        # An answer to be continued must not end in white space.
        last = turns[-1][1][-1]
        last["text"] = last["text"].rstrip()
    return [{"role": role, "content": blocks} for role, blocks in turns]


def _blocks(message: Message) -> list[dict[str, Any]]:
    if isinstance(message, AssistantMessage):
        blocks = [block for thought in message.reasoning if (block := _thought(thought))]
        if message.text.strip():
            blocks.append({"type": "text", "text": message.text})
        return blocks + [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call)} for call in message.calls
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
    if thought.redacted:
        return {"type": "redacted_thinking", "data": thought.redacted}
    if thought.signature:
        return {"type": "thinking", "thinking": thought.text, "signature": thought.signature}
    # Thinking of another provider's model: nobody here has signed it.
    return None


def _input(call: ToolCall) -> dict[str, Any]:
    """Read a call's arguments. They have to be an object here, even if what the model wrote was none."""
    try:
        arguments = msgspec.json.decode(call.arguments)
    except UNREADABLE:
        arguments = None
    return arguments if isinstance(arguments, dict) else {"unreadable_arguments": call.arguments}


def _part(part: Part) -> dict[str, Any] | None:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text} if part.text.strip() else None
    if isinstance(part, Audio):
        # This wire carries no sound. The model is told, so that it can say so, instead of a request that always fails.
        return {"type": "text", "text": f"[a sound recording ({part.media_type}) that this model can not hear]"}
    if part.url:
        return {"type": "image", "source": {"type": "url", "url": part.url}}
    data = b64encode(part.data or b"").decode("ascii")
    return {"type": "image", "source": {"type": "base64", "media_type": part.media_type, "data": data}}
