"""Chat completions: a request as a turn to run, and the turn as one answer or as chunks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Literal

from halter.gateway.http.errors import Problem
from halter.gateway.http.schemas import decode
from halter.gateway.openai.answer_text import AnswerText
from halter.gateway.openai.chat_schemas import (
    ChatAssistantMessage,
    ChatAudioPart,
    ChatCompletion,
    ChatCompletionBody,
    ChatCompletionChoice,
    ChatDeveloperMessage,
    ChatImagePart,
    ChatRefusalPart,
    ChatSchemaFormat,
    ChatSystemMessage,
    ChatTextPart,
    ChatToolMessage,
    ChatUsage,
    CompletionMessage,
)
from halter.gateway.openai.content import audio_part, image_part
from halter.gateway.openai.conversation import read_conversation
from halter.gateway.openai.errors import error_body, problem_of_turn
from halter.gateway.openai.requested_output import read_format
from halter.gateway.openai.turn_request import TurnRequest, refuse_tools
from halter.models.sanitize import clean_text
from halter.models.types import AssistantMessage, Part, Text, ToolCall, ToolMessage, UserMessage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from halter.events import EventData, TurnFinished
    from halter.gateway.openai.chat_schemas import ChatMessage
    from halter.gateway.openai.chunk_stream import ChunkStream
    from halter.models.types import Message, Usage

__all__ = ["ChatAnswer", "read_chat"]

_REASONS: Final[dict[str, Literal["length", "content_filter"]]] = {
    "output_limit": "length",
    "content_filter": "content_filter",
    "refusal": "content_filter",
}


def read_chat(data: bytes) -> TurnRequest:
    """The turn that a body asks for. Raises `Problem`."""
    body: ChatCompletionBody = decode(data, ChatCompletionBody)
    if body.n not in (None, 1):
        raise Problem(422, "an agent gives one answer: n must be 1", field="n", kind="n")
    form = body.response_format
    output = read_format(form.json_schema if isinstance(form, ChatSchemaFormat) else form, "response_format")
    refuse_tools(body.tools, body.tool_choice, "tools")
    refuse_tools(body.functions, body.function_call, "functions")
    settings = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "max_output_tokens": body.max_completion_tokens or body.max_tokens,
        "stop": [body.stop] if isinstance(body.stop, str) else body.stop,
        "seed": body.seed,
        "reasoning": body.reasoning_effort,
    }
    texts: list[str] = []
    messages: list[Message] = []
    for number, message in enumerate(body.messages):
        if isinstance(message, (ChatSystemMessage, ChatDeveloperMessage)):
            texts.append(_text(message.content))
        else:
            messages.append(_message(message, f"messages[{number}].content"))
    return TurnRequest(
        model=body.model,
        conversation=read_conversation(messages, "messages"),
        instructions=clean_text("\n\n".join(filter(None, texts))),
        settings={name: value for name, value in settings.items() if value is not None},
        output=output,
        is_streamed=bool(body.stream),
        has_usage=body.stream_options is not None and bool(body.stream_options.include_usage),
    )


def _message(message: ChatMessage, field: str) -> Message:
    if isinstance(message, ChatAssistantMessage):
        calls = [ToolCall(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()]
        return AssistantMessage(_text(message.content) or message.refusal or "", calls)
    if isinstance(message, ChatToolMessage):
        return ToolMessage(message.tool_call_id, "", [Text(_text(message.content))])
    if isinstance(message.content, str):
        return UserMessage.of(message.content)
    return UserMessage([_part(part, f"{field}[{number}]") for number, part in enumerate(message.content)])


def _part(part: object, field: str) -> Part:
    if isinstance(part, ChatImagePart):
        return image_part(part.image_url.url, f"{field}.image_url.url")
    if isinstance(part, ChatAudioPart):
        return audio_part(part.input_audio.data, part.input_audio.format, f"{field}.input_audio")
    assert isinstance(part, ChatTextPart)
    return Text(part.text)


def _text(content: str | Sequence[ChatTextPart | ChatRefusalPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.refusal if isinstance(part, ChatRefusalPart) else part.text for part in content)


class ChatAnswer:
    """The answer to one request."""

    def __init__(self, name: str, asked: TurnRequest, *, last_only: bool) -> None:
        self._name = name
        self._asked = asked
        self._created = int(time.time())
        self._answer = AnswerText(last_only=last_only)

    async def collect(self, events: AsyncIterator[EventData]) -> ChatCompletion:
        """The whole answer. Raises `Problem` if the turn failed or was stopped."""
        async for data in events:
            self._answer.take(data)
        end = self._end()
        return ChatCompletion(
            id=self._name,
            created=self._created,
            model=self._asked.model,
            choices=[
                ChatCompletionChoice(
                    message=CompletionMessage(content=self._answer.text),
                    finish_reason=_REASONS.get(end.reason, "stop"),
                )
            ],
            usage=_usage(end.usage),
        )

    async def send(self, events: AsyncIterator[EventData], stream: ChunkStream) -> None:
        """Send the answer in chunks, or an error at its end."""
        await stream.send(self._chunk({"role": "assistant", "content": "", "refusal": None}))
        async for data in events:
            piece = self._answer.take(data)
            if piece:
                await stream.send(self._chunk({"content": piece}))
        try:
            end = self._end()
        except Problem as problem:
            await stream.send(error_body(problem))
            return
        await stream.send(self._chunk({}, _REASONS.get(end.reason, "stop")))
        if self._asked.has_usage:
            await stream.send(self._chunk(None) | {"usage": _usage(end.usage)})
        await stream.done()

    def _end(self) -> TurnFinished:
        end = self._answer.end
        assert end is not None  # the last event of a turn
        problem = problem_of_turn(end)
        if problem is not None:
            raise problem
        return end

    def _chunk(self, delta: dict[str, Any] | None, reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        chunk: dict[str, Any] = {
            "id": self._name,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._asked.model,
            "choices": [] if delta is None else [choice],
        }
        return chunk | {"usage": None} if self._asked.has_usage else chunk


def _usage(usage: Usage) -> ChatUsage:
    return ChatUsage(
        prompt_tokens=usage.input_tokens,
        completion_tokens=usage.output_tokens,
        total_tokens=usage.input_tokens + usage.output_tokens,
        prompt_tokens_details={"cached_tokens": usage.cached_tokens},
        completion_tokens_details={"reasoning_tokens": usage.reasoning_tokens},
    )
