"""Gemini's own API: `streamGenerateContent` as server-sent events.

Only the fields that are used are decoded; unknown parts are skipped. An answer is complete when a `finishReason` or a
`blockReason` came and the stream has ended: there is no other mark of its end. Thought signatures are sent back with
the part that they came with: newer models refuse a call without its own.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from halter.models.errors import ProviderError, StreamBroken, error_in_answer
from halter.models.gemini_contents import WIRE, write_contents, write_schema, write_tools
from halter.models.http.reader import Reader, tokens
from halter.models.http.wire import HTTPModel
from halter.models.output_schema import is_recursive, with_schema
from halter.models.types import (
    Finished,
    FinishReason,
    ModelEvent,
    ModelRequest,
    ModelSettings,
    Reasoning,
    ReasoningDelta,
    ReasoningDone,
    ReasoningEffort,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStarted,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["GeminiModel"]

_BLOCKED: Final[FinishReason] = "content_filter"
_REASONS: Final[dict[str, FinishReason]] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "SAFETY": _BLOCKED,
    "RECITATION": _BLOCKED,
    "LANGUAGE": _BLOCKED,
    "BLOCKLIST": _BLOCKED,
    "PROHIBITED_CONTENT": _BLOCKED,
    "SPII": _BLOCKED,
    "IMAGE_SAFETY": _BLOCKED,
}
# The model has written something that the API itself could not read. It may do better the next time.
_MALFORMED: Final = frozenset({"MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL"})
_SETTINGS: Final = "generationConfig"
_FORMAT_KEYS: Final = frozenset({"responseMimeType", "responseSchema", "responseJsonSchema"})
_THINKING_TOKENS: Final[dict[ReasoningEffort, int]] = {"minimal": 512, "low": 2048, "medium": 8192, "high": 16384}


class _FunctionCall(Struct):
    id: str | None = None
    name: str | None = None
    args: msgspec.Raw = msgspec.Raw(b"")


class _Part(Struct, rename="camel"):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: _FunctionCall | None = None


class _Content(Struct):
    parts: list[_Part] | None = None


class _Candidate(Struct, rename="camel"):
    index: int | None = None
    content: _Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None


class _Feedback(Struct, rename="camel"):
    block_reason: str | None = None
    block_reason_message: str | None = None


class _Chunk(Struct, rename="camel"):
    candidates: list[_Candidate] | None = None
    prompt_feedback: _Feedback | None = None
    usage_metadata: Any = None
    model_version: str | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class GeminiModel(HTTPModel):
    """A model behind Gemini's own API. Without `base_url` and key, the environment variables of the SDK are used."""

    default_provider = "gemini"
    output_key = "responseJsonSchema"

    def url(self) -> str:
        """The URL for requests."""
        method = "streamGenerateContent?alt=sse" if self.streaming else "generateContent"
        return f"{self.base_url}/v1beta/models/{self.name}:{method}"

    def reader(self) -> _Reader:
        """Make a reader for one answer."""
        return _Reader(self.name)

    def body(self, request: ModelRequest) -> dict[str, Any]:
        """The request body for generateContent."""
        form = self._output_format(request)
        if request.output is not None and not form:
            request = with_schema(request)
        body: dict[str, Any] = {}
        if request.instructions.strip():
            body["systemInstruction"] = {"parts": [{"text": request.instructions}]}
        if request.tools:
            body["tools"] = write_tools(request.tools)
        if settings := self._settings(request.settings) | form:
            body[_SETTINGS] = settings
        body["contents"] = write_contents(request.messages, needs_signatures=not self._is_old)
        return body

    def _output_format(self, request: ModelRequest) -> dict[str, Any]:
        """The settings for a typed answer; empty if it can only be described to the model."""
        if request.output is None or _FORMAT_KEYS & _own_settings(request.settings.extra).keys():
            return {}
        if is_recursive(request.output.schema):
            return {}  # refused where it is required
        if self._is_old and request.tools:
            return {}  # these models refuse a schema beside tools
        return {"responseMimeType": "application/json", self.output_key: write_schema(request.output.schema)}

    def with_extra(self, body: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
        """The body with the user's own keys. Those of generationConfig are put beside ours."""
        settings = body.get(_SETTINGS, {}) | _own_settings(extra)
        merged = super().with_extra(body, extra)
        if settings and extra.get(_SETTINGS, settings) is not None:
            merged[_SETTINGS] = {key: value for key, value in settings.items() if value is not None}
        return merged

    def has_output_key(self, body: dict[str, Any]) -> bool:
        """Whether a body has the schema of a typed answer."""
        return self.output_key in body.get(_SETTINGS, {})

    @property
    def without_output_key(self) -> dict[str, Any]:
        """The user's own keys by which the schema of a typed answer is only described."""
        return {_SETTINGS: super().without_output_key}

    @property
    def _is_old(self) -> bool:
        """Whether this is a model of before Gemini 3: these have a budget for thinking, and check no signatures."""
        return self.name.startswith(("gemini-1", "gemini-2"))

    def _settings(self, settings: ModelSettings) -> dict[str, Any]:
        thinking: dict[str, Any] | None = None
        if settings.reasoning is not None:
            effort = settings.reasoning
            depth = {"thinkingBudget": _THINKING_TOKENS[effort]} if self._is_old else {"thinkingLevel": effort}
            thinking = {"includeThoughts": True, **depth}
        named = {
            "temperature": settings.temperature,
            "topP": settings.top_p,
            "maxOutputTokens": settings.max_output_tokens,
            "stopSequences": settings.stop or None,
            "seed": settings.seed,
            "thinkingConfig": thinking,
        }
        return {name: value for name, value in named.items() if value is not None}


class _Reader(Reader):
    """Never `finished` before the end of the stream: more may follow a finishReason."""

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self._is_blocked = False
        self._calls = 0
        self._text = 0  # characters so far
        self._thinking: list[str] = []

    def take(self, name: str, data: bytes) -> list[ModelEvent]:  # noqa: ARG002  (this API does not name its events)
        return self._chunk(_decode(data), data)

    def read_complete(self, body: bytes) -> list[ModelEvent]:
        return self._chunk(_decode(body), body)

    def end(self) -> list[ModelEvent]:
        if not self._raw:
            raise StreamBroken("the answer was cut off: no finishReason was received")
        reason: FinishReason = _BLOCKED if self._is_blocked else _REASONS.get(self._raw, "other")
        if reason == "stop" and self._calls:
            reason = "tool_calls"
        return [*self._thinking_done(), Finished(reason, self._raw, self._model, self._detail)]

    def _chunk(self, chunk: _Chunk, data: bytes) -> list[ModelEvent]:
        if chunk.error:
            raise error_in_answer(data, chunk.error)
        self._model = chunk.model_version or self._model
        events: list[ModelEvent] = []
        for candidate in chunk.candidates or ():
            if not candidate.index:  # we ask for one answer; if `extra` asks for more, the first one counts
                self._candidate(candidate, events)
        feedback = chunk.prompt_feedback
        if feedback is not None and feedback.block_reason:
            self._is_blocked = True
            self._raw, self._detail = feedback.block_reason, feedback.block_reason_message or ""
        return events + self._count(chunk.usage_metadata)

    def _candidate(self, candidate: _Candidate, events: list[ModelEvent]) -> None:
        parts = (candidate.content.parts if candidate.content is not None else None) or ()
        for part in parts:
            self._part(part, events)
        reason = candidate.finish_reason
        if not reason:
            return
        detail = candidate.finish_message or ""
        if reason in _MALFORMED:
            message = detail or "the model wrote a call that could not be read"
            raise ProviderError(
                "", body=msgspec.json.encode({"error": {"message": message, "status": reason}}).decode()
            )
        self._raw, self._detail = reason, detail or self._detail

    def _part(self, part: _Part, events: list[ModelEvent]) -> None:
        if part.function_call is not None:
            events += [*self._thinking_done(), *self._call(part.function_call, part.thought_signature or "")]
            return
        text = part.text or ""
        if part.thought:
            if text:
                self._thinking.append(text)
                events.append(ReasoningDelta(text))
            return
        if text:
            events += [*self._thinking_done(), TextDelta(text)]
            self._text += len(text)
        if part.thought_signature:
            events += [*self._thinking_done(), ReasoningDone(self._block("", part.thought_signature))]

    def _call(self, call: _FunctionCall, signature: str) -> list[ModelEvent]:
        """A call, which comes in one piece. It may come without an id."""
        call_id, name = call.id or f"call_{os.urandom(12).hex()}", call.name or ""
        written = bytes(call.args).decode()
        arguments = written if written not in ("", "null") else "{}"
        index, self._calls = self._calls, self._calls + 1
        return [
            ToolCallStarted(index, call_id, name),
            ToolCallDelta(index, arguments),
            ToolCallDone(index, ToolCall(call_id, name, arguments, signature=signature)),
        ]

    def _thinking_done(self) -> list[ModelEvent]:
        if not self._thinking:
            return []
        text = "".join(self._thinking)
        self._thinking.clear()
        return [ReasoningDone(self._block(text))]

    def _block(self, text: str, signature: str = "") -> Reasoning:
        return Reasoning(text, signature, wire=WIRE, text_before=self._text, calls_before=self._calls)

    def _count(self, reported: object) -> list[ModelEvent]:
        if reported is None:
            return []
        thoughts = tokens(reported, "thoughtsTokenCount")
        usage = Usage(
            input_tokens=tokens(reported, "promptTokenCount") + tokens(reported, "toolUsePromptTokenCount"),
            output_tokens=tokens(reported, "candidatesTokenCount") + thoughts,
            cached_tokens=tokens(reported, "cachedContentTokenCount"),
            reasoning_tokens=thoughts,
        )
        return self._update_usage(usage)


def _own_settings(extra: Mapping[str, Any]) -> dict[str, Any]:
    """What the user has set of generationConfig."""
    own = extra.get(_SETTINGS)
    return dict(own) if isinstance(own, dict) else {}
