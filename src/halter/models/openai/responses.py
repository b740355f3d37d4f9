"""OpenAI's Responses API, without state on the server.

Only the fields that are used are decoded; unknown items and events are skipped. An answer is complete when
`response.completed` or `response.incomplete` came. Nothing is stored there (`store: false`), so the reasoning comes
encrypted, and each of its items is sent back complete and in its place, or not at all.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from halter.models.errors import StreamBroken, error_in_answer
from halter.models.http.reader import Reader, tokens
from halter.models.http.wire import HTTPModel
from halter.models.openai.cache_key import prompt_cache_key
from halter.models.openai.responses_input import WIRE, write_input
from halter.models.output_schema import is_overridden, openai_schema, with_schema
from halter.models.types import (
    Finished,
    FinishReason,
    ModelEvent,
    ModelRequest,
    ModelSettings,
    Reasoning,
    ReasoningDelta,
    ReasoningDone,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStarted,
    Usage,
)

__all__ = ["OpenAIResponsesModel"]

# These do not think, and refuse to be asked for encrypted reasoning.
_WITHOUT_REASONING: Final = ("gpt-3", "gpt-4", "chatgpt-")
_REASONS: Final[dict[str, FinishReason]] = {"max_output_tokens": "length", "content_filter": "content_filter"}


class _Item(Struct):
    type: str = ""
    id: str | None = None
    status: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: Any = None
    content: Any = None
    summary: Any = None
    encrypted_content: str | None = None


class _Incomplete(Struct):
    reason: str | None = None


class _Response(Struct):
    model: str | None = None
    status: str | None = None
    error: Any = None
    output: list[_Item] | None = None
    incomplete_details: _Incomplete | None = None
    usage: Any = None


class _Event(Struct):
    type: str = ""
    output_index: int = 0
    summary_index: int = 0
    delta: Any = None
    item: _Item | None = None
    response: _Response | None = None


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_response = msgspec.json.Decoder(_Response).decode


class OpenAIResponsesModel(HTTPModel):
    """A model behind OpenAI's Responses API. Without `base_url` and key, the SDK's environment variables are used."""

    default_provider = "openai-responses"
    output_key = "text"

    def url(self) -> str:
        """The URL for requests."""
        return f"{self.base_url}/responses"

    def reader(self) -> _Reader:
        """Make a reader for one answer."""
        return _Reader(self.name)

    def body(self, request: ModelRequest) -> dict[str, Any]:
        """The request body for the Responses API."""
        form = _output_format(request)
        if request.output is not None and form is None:
            request = with_schema(request)
        body: dict[str, Any] = {"model": self.name, "store": False, **_settings(request.settings)}
        if not self.name.startswith(_WITHOUT_REASONING):
            body["include"] = ["reasoning.encrypted_content"]
        if self.streaming:
            body["stream"] = True
        if request.cache_key:
            body["prompt_cache_key"] = prompt_cache_key(request.cache_key)
        if request.instructions:
            body["instructions"] = request.instructions
        if form is not None:
            body["text"] = {"format": form}
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                    # Its default would refuse schemas with optional parameters.
                    "strict": False,
                }
                for tool in request.tools
            ]
        body["input"] = write_input(request.messages)
        return body


def _output_format(request: ModelRequest) -> dict[str, Any] | None:
    """The format of a typed answer; None if it can only be described to the model."""
    if request.output is None or is_overridden(request, "text"):
        return None
    return {"type": "json_schema", **openai_schema(request.output)}


def _settings(settings: ModelSettings) -> dict[str, Any]:
    """The settings in this API's words; it has no stop sequences and no seed."""
    named = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_output_tokens": settings.max_output_tokens,
        "reasoning": {"effort": settings.reasoning} if settings.reasoning else None,
    }
    return {name: value for name, value in named.items() if value is not None}


class _OpenItem:
    """An item of the output that has not ended yet."""

    __slots__ = ("has_text", "index", "item", "part", "pieces")

    def __init__(self, item: _Item, index: int) -> None:
        self.item = item
        self.index = index
        self.pieces: list[str] = []
        self.part = 0
        self.has_text = False


class _Reader(Reader):
    def __init__(self, model: str) -> None:
        super().__init__(model)
        self._is_refusal = False
        self._calls = 0
        self._text = 0  # characters so far
        self._has_message = False
        self._open: dict[int, _OpenItem] = {}
        self._call_ids: set[str | None] = set()

    def take(self, name: str, data: bytes) -> list[ModelEvent]:
        event = _decode_event(data)
        kind = event.type or name
        if kind.endswith(".delta"):
            return self._delta(kind, event)
        if kind == "error":
            raise error_in_answer(data)
        if kind == "response.output_item.added" and event.item is not None:
            return self._start(event.output_index, event.item)
        if kind == "response.output_item.done" and event.item is not None:
            return self._stop_or_take(event.output_index, event.item)
        response = event.response
        if response is None:
            return []
        self._model = response.model or self._model
        if kind == "response.failed":
            raise error_in_answer(msgspec.json.encode({"error": response.error}) if response.error else data)
        if kind in ("response.completed", "response.incomplete"):
            return self._end(response)
        return []

    def read_complete(self, body: bytes) -> list[ModelEvent]:
        response = _decode_response(body)
        if response.error or response.output is None or response.status == "failed":
            raise error_in_answer(msgspec.json.encode({"error": response.error}) if response.error else body)
        self._model = response.model or self._model
        events: list[ModelEvent] = []
        for index, item in enumerate(response.output):
            events += self._start(index, item)
            events += self._stop(index, item)
        return events + self._end(response)

    def end(self) -> list[ModelEvent]:
        if not self.finished:
            raise StreamBroken(
                "the answer was cut off: neither response.completed nor response.incomplete was received"
            )
        # Some servers do not end their items before they end the answer.
        events: list[ModelEvent] = []
        for index, state in list(self._open.items()):
            state.item.status = "incomplete"
            events += self._stop(index, state.item)
        return [*events, Finished(self._reason(), self._raw, self._model)]

    def _end(self, response: _Response) -> list[ModelEvent]:
        self.finished = True
        details = response.incomplete_details
        self._raw = (details.reason if details is not None else None) or response.status or "completed"
        return self._count(response.usage)

    def _reason(self) -> FinishReason:
        if self._is_refusal:
            return "refusal"
        if self._raw == "completed":
            return "tool_calls" if self._calls else "stop"
        return _REASONS.get(self._raw, "other")

    def _start(self, index: int, item: _Item) -> list[ModelEvent]:
        state = self._open[index] = _OpenItem(item, self._calls)
        if item.type == "function_call":
            self._calls += 1
            self._call_ids.add(item.call_id)
            return [ToolCallStarted(state.index, item.call_id or "", item.name or "")]
        return []

    def _delta(self, kind: str, event: _Event) -> list[ModelEvent]:
        state, delta = self._open.get(event.output_index), event.delta
        if not isinstance(delta, str) or not delta:
            return []
        if state is None:
            # Some servers do not announce the message.
            state = self._open[event.output_index] = _OpenItem(_Item("message"), self._calls)
        if kind in ("response.output_text.delta", "response.refusal.delta"):
            self._is_refusal = self._is_refusal or kind == "response.refusal.delta"
            return self._message_text(state, delta)
        if kind == "response.function_call_arguments.delta" and state.item.type == "function_call":
            state.pieces.append(delta)
            return [ToolCallDelta(state.index, delta)]
        if kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
            if event.summary_index != state.part:
                state.part = event.summary_index
                delta = f"\n\n{delta}"
            state.pieces.append(delta)
            return [ReasoningDelta(delta)]
        return []

    def _message_text(self, state: _OpenItem, text: str) -> list[ModelEvent]:
        """Text of a message. A second message of the same answer is a paragraph of its own."""
        if not state.has_text:
            state.has_text = True
            text = f"\n\n{text}" if self._has_message else text
            self._has_message = True
        self._text += len(text)
        return [TextDelta(text)]

    def _stop_or_take(self, index: int, item: _Item) -> list[ModelEvent]:
        """End an item. Some servers do not announce their calls, others end them twice."""
        is_new = item.type == "function_call" and index not in self._open and item.call_id not in self._call_ids
        return [*(self._start(index, item) if is_new else ()), *self._stop(index, item)]

    def _stop(self, index: int, item: _Item) -> list[ModelEvent]:
        """End an item. What was not streamed of it is in its last form."""
        state = self._open.pop(index, None)
        if state is None:
            return []
        if item.type == "function_call":
            return self._call_done(state, item)
        if item.type == "reasoning":
            return self._reasoning_done(state, item)
        if item.type != "message" or state.has_text:
            return []
        events: list[ModelEvent] = []
        for part in _parts(item.content):
            self._is_refusal = self._is_refusal or part.get("type") == "refusal"
            text = part.get("text") or part.get("refusal")
            if isinstance(text, str) and text:
                events += self._message_text(state, text)
        return events

    def _call_done(self, state: _OpenItem, item: _Item) -> list[ModelEvent]:
        events: list[ModelEvent] = []
        if not state.pieces and isinstance(item.arguments, str) and item.arguments:
            state.pieces.append(item.arguments)
            events.append(ToolCallDelta(state.index, item.arguments))
        begun = state.item
        call = ToolCall(
            item.call_id or begun.call_id or "", item.name or begun.name or "", "".join(state.pieces) or "{}"
        )
        return [*events, ToolCallDone(state.index, call)]

    def _reasoning_done(self, state: _OpenItem, item: _Item) -> list[ModelEvent]:
        """Only the complete item counts: until then its encrypted content may be a part, which would be refused."""
        events: list[ModelEvent] = []
        if not state.pieces:
            texts = [text for part in _parts(item.summary) if isinstance(text := part.get("text"), str) and text]
            if texts:
                state.pieces.append("\n\n".join(texts))
                events.append(ReasoningDelta(state.pieces[0]))
        block = Reasoning(
            "".join(state.pieces),
            (item.encrypted_content or "") if item.status in (None, "completed") else "",
            wire=WIRE,
            id=item.id or "",
            text_before=self._text,
            calls_before=self._calls,
        )
        return [*events, ReasoningDone(block)]

    def _count(self, usage: object) -> list[ModelEvent]:
        if usage is None:
            return []
        return [
            Usage(
                input_tokens=tokens(usage, "input_tokens"),
                output_tokens=tokens(usage, "output_tokens"),
                cached_tokens=tokens(usage, "input_tokens_details", "cached_tokens"),
                cache_write_tokens=tokens(usage, "input_tokens_details", "cache_write_tokens"),
                reasoning_tokens=tokens(usage, "output_tokens_details", "reasoning_tokens"),
            )
        ]


def _parts(parts: object) -> list[dict[str, Any]]:
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
