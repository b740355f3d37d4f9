"""Chat completions, as OpenAI, Ollama, vLLM, OpenRouter, llama.cpp and most others implement them.

Only the fields that are used are decoded; unknown ones are skipped, and each may be missing or null. An answer is
complete when the server sent a `finish_reason` or `[DONE]`; a stream without either is broken.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from halter.models.errors import ProviderError, StreamBroken, error_in_answer
from halter.models.http.reader import Reader, tokens
from halter.models.http.wire import HTTPModel
from halter.models.openai.cache_key import prompt_cache_key
from halter.models.openai.chat_messages import write_messages
from halter.models.openai.server_window import ask_server
from halter.models.openai.tool_calls import CallAssembler
from halter.models.output_schema import is_overridden, openai_schema, with_schema
from halter.models.providers import PROVIDERS, azure_url
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
    Usage,
)

__all__ = ["OpenAIModel"]

_MAX_WINDOW_QUESTIONS: Final = 3
_REASONS: Final[dict[str, FinishReason]] = {
    "stop": "stop",
    "eos": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
    "refusal": "refusal",
}


class _Function(Struct):
    name: str | None = None
    arguments: Any = None


class _Call(Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(Struct):
    content: Any = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: Any = None
    tool_calls: list[_Call] | None = None


class _Choice(Struct):
    index: int | None = None
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None
    error: Any = None


class _Chunk(Struct):
    choices: list[_Choice] | None = None
    model: str | None = None
    usage: Any = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class OpenAIModel(HTTPModel):
    """A model on an OpenAI-compatible server. Without `base_url` and key, the SDK's environment variables are used."""

    default_provider = "openai"
    output_key = "response_format"
    _window_questions = 0  # a server may not know it yet: Ollama loads a model with its first request

    def url(self) -> str:
        """The URL for requests."""
        if self.provider is PROVIDERS["azure"]:
            return azure_url(self.base_url, self.name)
        return f"{self.base_url}/chat/completions"

    def reader(self) -> _Reader:
        """Make a reader for one answer."""
        return _Reader(self.name)

    async def ask_context_window(self) -> int | None:
        """Ask the server for the model's context window, a few times at most if it does not know it."""
        may_know = self.base_url != PROVIDERS["openai"].url
        if self.context_window is None and may_know and self._window_questions < _MAX_WINDOW_QUESTIONS:
            self._window_questions += 1
            self.context_window = await ask_server(self.base_url, self.name, self._headers(), tls=self._ssl)
        return self.context_window

    def body(self, request: ModelRequest) -> dict[str, Any]:
        """The request body for chat completions."""
        output = self._output(request)
        if request.output is not None and (output is None or not self._is_openai):
            # Other servers constrain the answer by the schema, and do not show it to the model.
            request = with_schema(request)
        body: dict[str, Any] = {"model": self.name, "messages": write_messages(request, self.provider)}
        if output is not None:
            body["response_format"] = output
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
                }
                for tool in request.tools
            ]
        body |= self._settings(request.settings)
        if request.cache_key and self._is_openai:
            body["prompt_cache_key"] = prompt_cache_key(request.cache_key)  # others may refuse the field
        if self.streaming:
            body["stream"] = True
            if self.provider.has_stream_options:
                body["stream_options"] = {"include_usage": True}
        return body

    @property
    def _is_openai(self) -> bool:
        """Whether this is OpenAI's own server."""
        return self.base_url == PROVIDERS["openai"].url

    def _output(self, request: ModelRequest) -> dict[str, Any] | None:
        """The `response_format`; None if the form of the answer can only be described to the model.

        Servers other than OpenAI's own apply the schema to everything that the model writes, so that it could not call
        tools; llama.cpp even crashes on requests with both.
        """
        output = request.output
        if output is None or is_overridden(request, "response_format"):
            return None
        if request.tools and not self._is_openai:
            return None
        return {"type": "json_schema", "json_schema": openai_schema(output)}

    def _settings(self, settings: ModelSettings) -> dict[str, Any]:
        provider = self.provider
        # OpenAI's newer models refuse the old name of the limit; most other servers do not know the new one.
        is_other = provider is PROVIDERS["openai"] and not self._is_openai
        limit = "max_tokens" if is_other else provider.limit
        named = {
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            limit: settings.max_output_tokens,
            "reasoning_effort": settings.reasoning,
            "stop": settings.stop or None,
            provider.seed: settings.seed,
        }
        return {name: value for name, value in named.items() if value is not None}


class _Reader(Reader):
    def __init__(self, model: str) -> None:
        super().__init__(model)
        self._is_refusal = False
        self._is_last = False  # the newest chunk had a reason or came after it, and had nothing else
        self._thinking: list[str] = []
        self._calls = CallAssembler()

    def take(self, name: str, data: bytes) -> list[ModelEvent]:
        if data.startswith(b"[DONE]"):
            self.finished = True
            return []
        chunk = _decode(data)
        if chunk.error or name == "error":
            raise _error(chunk.error, data)
        return self._chunk(chunk)

    def read_complete(self, body: bytes) -> list[ModelEvent]:
        chunk = _decode(body)
        if chunk.error or not chunk.choices:
            raise _error(chunk.error, body)
        events = self._chunk(chunk)
        self.finished = True
        return events

    @property
    def has_ended(self) -> bool:
        """Whether a `finish_reason` came after everything else: some servers send one with each piece."""
        return self.finished or (self._is_last and self._calls.are_complete)

    def end(self) -> list[ModelEvent]:
        if not (self._raw or self.finished):
            raise StreamBroken("the answer was cut off: neither finish_reason nor [DONE] was received")
        calls = self._calls.done()
        reason = _REASONS.get(self._raw, "other" if self._raw else "stop")
        if self._is_refusal:
            reason = "refusal"
        elif calls and reason == "stop":
            # Some servers send "stop" after calls as well.
            reason = "tool_calls"
        return [*self._thinking_done(), *calls, Finished(reason, self._raw, self._model)]

    def _chunk(self, chunk: _Chunk) -> list[ModelEvent]:
        events: list[ModelEvent] = []
        if chunk.model:
            self._model = chunk.model
        for choice in chunk.choices or ():
            if choice.index:
                # We ask for one answer. If `extra` asks for more, the first one counts.
                continue
            delta = choice.delta or choice.message
            if delta is not None:
                self._delta(delta, events)
            if choice.finish_reason:
                if choice.error or choice.finish_reason == "error":
                    raise _error(choice.error, b"the provider ended the answer with an error")
                self._raw = choice.finish_reason  # not the end yet: some servers send it with each call
            self._is_last = bool(self._raw) and not events
        return events + self._update_usage(_usage(chunk.usage)) if chunk.usage is not None else events

    def _delta(self, delta: _Delta, events: list[ModelEvent]) -> None:
        thinking = delta.reasoning_content or delta.reasoning
        if thinking and isinstance(thinking, str):
            self._thinking.append(thinking)
            events.append(ReasoningDelta(thinking))
        if delta.content:
            if isinstance(delta.content, str):
                events += [*self._thinking_done(), TextDelta(delta.content)]
            else:
                self._parts(delta.content, events)
        if delta.refusal:
            self._is_refusal = True
            events.append(TextDelta(delta.refusal))
        if not delta.tool_calls:
            return
        for call in delta.tool_calls:
            function = call.function or _Function()
            events += self._calls.piece(call.index, call.id or "", function.name or "", function.arguments)

    def _parts(self, content: object, events: list[ModelEvent]) -> None:
        """Read content that is a list of parts, as some servers send it; Mistral's have thinking in them."""
        for part in content if isinstance(content, list) else ():
            if not isinstance(part, dict):
                continue
            if part.get("type") == "thinking":
                thoughts = _texts(part.get("thinking"))
                self._thinking += thoughts
                events += map(ReasoningDelta, thoughts)
            elif texts := _texts([part]):
                events += [*self._thinking_done(), *map(TextDelta, texts)]

    def _thinking_done(self) -> list[ModelEvent]:
        if not self._thinking:
            return []
        text = "".join(self._thinking)
        self._thinking.clear()
        return [ReasoningDone(Reasoning(text))]


def _texts(parts: object) -> list[str]:
    """The texts of a list of parts."""
    parts = parts if isinstance(parts, list) else ()
    return [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]


def _usage(usage: object) -> Usage:
    return Usage(
        input_tokens=tokens(usage, "prompt_tokens"),
        output_tokens=tokens(usage, "completion_tokens"),
        cached_tokens=tokens(usage, "prompt_tokens_details", "cached_tokens"),
        reasoning_tokens=tokens(usage, "completion_tokens_details", "reasoning_tokens"),
    )


def _error(error: object, data: bytes) -> ProviderError:
    return error_in_answer(msgspec.json.encode({"error": error}) if error else data, error)
