"""The Responses API: a request as a turn to run, and the turn as one answer or as typed events."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from halter.gateway.http.errors import Problem, problem_of_validation
from halter.gateway.http.schemas import decode
from halter.gateway.openai.answer_text import AnswerText
from halter.gateway.openai.content import image_part
from halter.gateway.openai.conversation import read_conversation
from halter.gateway.openai.errors import problem_of_turn
from halter.gateway.openai.requested_output import read_format
from halter.gateway.openai.response_schemas import (
    ResponseBody,
    ResponseCall,
    ResponseCallOutput,
    ResponseImage,
    ResponseItem,
    ResponseMessage,
    ResponseRefusal,
    ResponseView,
)
from halter.gateway.openai.turn_request import TurnRequest, refuse_tools
from halter.models.sanitize import clean_text
from halter.models.types import AssistantMessage, Text, ToolCall, ToolMessage, UserMessage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from halter.events import EventData, TurnFinished
    from halter.gateway.openai.chunk_stream import ChunkStream
    from halter.gateway.openai.response_schemas import ResponseContent
    from halter.models.types import Message, Part, Usage

__all__ = ["ResponseAnswer", "read_response"]

_STORED: Final = "nothing is stored here: send the whole conversation as input"
_INCOMPLETE: Final = {
    "output_limit": "max_output_tokens",
    "content_filter": "content_filter",
    "refusal": "content_filter",
}


def read_response(data: bytes) -> TurnRequest:
    """The turn that a body asks for. Raises `Problem`."""
    body: ResponseBody = decode(data, ResponseBody)
    for name in ("previous_response_id", "conversation"):
        if getattr(body, name) is not None:
            raise Problem(422, _STORED, field=name, kind="stored")
    if body.background:
        raise Problem(422, _STORED, field="background", kind="stored")
    refuse_tools(body.tools, body.tool_choice, "tools")
    settings = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "max_output_tokens": body.max_output_tokens,
        "reasoning": body.reasoning.effort if body.reasoning is not None else None,
    }
    texts, messages = _read_input(body.input)
    return TurnRequest(
        model=body.model,
        conversation=read_conversation(messages, "input"),
        instructions=clean_text("\n\n".join(filter(None, (body.instructions or "", *texts)))),
        settings={name: value for name, value in settings.items() if value is not None},
        output=read_format(body.text.format, "text.format") if body.text is not None else None,
        is_streamed=bool(body.stream),
    )


def _read_input(sent: str | list[dict[str, Any]]) -> tuple[list[str], list[Message]]:
    """The instructions and the messages."""
    if isinstance(sent, str):
        return [], [UserMessage.of(sent)]
    texts: list[str] = []
    messages: list[Message] = []
    for number, item in enumerate(sent):
        field = f"input[{number}]"
        read = _item(item, field)
        if isinstance(read, ResponseCallOutput):
            messages.append(ToolMessage(read.call_id, "", _parts(read.output, field)))
        elif isinstance(read, ResponseCall):
            # The calls of one answer are items of their own, behind its text.
            last = messages.pop() if messages and isinstance(messages[-1], AssistantMessage) else AssistantMessage()
            assert isinstance(last, AssistantMessage)
            call = ToolCall(read.call_id, read.name, read.arguments)
            messages.append(AssistantMessage(last.text, [*last.calls, call]))
        elif isinstance(read, ResponseMessage):
            parts = _parts(read.content, field)
            if read.role == "user":
                messages.append(UserMessage(parts))
            elif read.role == "assistant":
                messages.append(AssistantMessage(_text(parts)))
            else:
                texts.append(_text(parts))
    return texts, messages


def _item(item: dict[str, Any], field: str) -> ResponseItem:
    try:
        read: ResponseItem = msgspec.convert({"type": "message", **item}, ResponseItem)
    except msgspec.ValidationError as error:
        problem = problem_of_validation(error)
        inside = "" if problem.field in (None, "body") else f".{problem.field}"
        raise Problem(422, problem.detail, field=f"{field}{inside}", kind="field") from error
    return read


def _parts(content: str | list[ResponseContent], field: str) -> list[Part]:
    if isinstance(content, str):
        return [Text(content)]
    return [_part(part, f"{field}.content[{number}]") for number, part in enumerate(content)]


def _part(part: ResponseContent, field: str) -> Part:
    if isinstance(part, ResponseImage):
        return image_part(part.image_url, f"{field}.image_url")
    return Text(part.refusal if isinstance(part, ResponseRefusal) else part.text)


def _text(parts: list[Part]) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, Text))


class ResponseAnswer:
    """The answer to one request."""

    def __init__(self, name: str, asked: TurnRequest, *, last_only: bool) -> None:
        self._name = name
        self._asked = asked
        self._created = int(time.time())
        self._answer = AnswerText(last_only=last_only)

    async def collect(self, events: AsyncIterator[EventData]) -> ResponseView:
        """The whole answer. Raises `Problem` if the turn failed or was stopped."""
        async for data in events:
            self._answer.take(data)
        end = self._end()
        problem = problem_of_turn(end)
        if problem is not None:
            raise problem
        return self._view(end, self._answer.text)

    async def send(self, events: AsyncIterator[EventData], stream: ChunkStream) -> None:
        """Send the answer as events. The last one says how it ended."""
        sender = _EventSender(stream, f"msg_{self._name.partition('_')[2]}")
        await sender.send("response.created", response=self._view())
        await sender.send("response.in_progress", response=self._view())
        async for data in events:
            piece = self._answer.take(data)
            if piece:
                await sender.send_text(piece)
        end = self._end()
        problem = problem_of_turn(end)
        await sender.end_text(is_complete=problem is None and end.reason not in _INCOMPLETE)
        view = self._view(end, sender.text)
        if problem is not None:
            view.status = "failed"
            view.error = {"code": "server_error", "message": problem.detail}
        await sender.send(f"response.{view.status}", response=view)

    def _end(self) -> TurnFinished:
        end = self._answer.end
        assert end is not None  # the last event of a turn
        return end

    def _view(self, end: TurnFinished | None = None, text: str = "") -> ResponseView:
        settings = self._asked.settings
        view = ResponseView(
            id=self._name,
            created_at=self._created,
            status="in_progress",
            model=self._asked.model,
            max_output_tokens=settings.get("max_output_tokens"),
            temperature=settings.get("temperature"),
            top_p=settings.get("top_p"),
        )
        if end is not None:
            view.status = "incomplete" if end.reason in _INCOMPLETE else "completed"
            view.usage = _usage(end.usage)
            if view.status == "incomplete":
                view.incomplete_details = {"reason": _INCOMPLETE[end.reason]}
            if text:
                view.output = [_message(f"msg_{self._name.partition('_')[2]}", view.status, text)]
        return view


class _EventSender:
    """Sends the events of one answer: all text is one part of one message."""

    def __init__(self, stream: ChunkStream, item: str) -> None:
        self._stream = stream
        self._item = item
        self._number = 0
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """What was sent."""
        return "".join(self._pieces)

    async def send(self, kind: str, **fields: object) -> None:
        """Send an event."""
        data = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        await self._stream.send(data, kind)

    async def send_text(self, piece: str) -> None:
        """Send a piece of text; before the first one, that its message begins."""
        if not self._pieces:
            item = _message(self._item, "in_progress", None)
            await self.send("response.output_item.added", output_index=0, item=item)
            await self._send_part("response.content_part.added", part=_output_text(""))
        self._pieces.append(piece)
        await self._send_part("response.output_text.delta", delta=piece, logprobs=[])

    async def end_text(self, *, is_complete: bool) -> None:
        """Send that the message has ended, if it has begun."""
        if not self._pieces:
            return
        text = self.text
        await self._send_part("response.output_text.done", text=text, logprobs=[])
        await self._send_part("response.content_part.done", part=_output_text(text))
        item = _message(self._item, "completed" if is_complete else "incomplete", text)
        await self.send("response.output_item.done", output_index=0, item=item)

    async def _send_part(self, kind: str, **fields: object) -> None:
        await self.send(kind, item_id=self._item, output_index=0, content_index=0, **fields)


def _message(item: str, status: str, text: str | None) -> dict[str, Any]:
    content = [] if text is None else [_output_text(text)]
    return {"id": item, "type": "message", "status": status, "role": "assistant", "content": content}


def _output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
