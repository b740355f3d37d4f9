"""The conversation that a client has sent, as the log of a session: earlier turns, and the message to be answered.

The history that follows from it is valid for every provider, as that of any session is, or the request is refused: each
call has exactly one result, directly after the answer that asked for it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from halter.events import (
    Event,
    MessageAccepted,
    MessageApplied,
    RequestFinished,
    ToolFinished,
    TurnFinished,
    TurnStarted,
)
from halter.gateway.http.errors import Problem
from halter.models.answer import Answer
from halter.models.sanitize import clean_answer
from halter.models.types import AssistantMessage, Text, ToolMessage, UserMessage
from halter.session.inbox import to_message
from halter.tools.outcome import ToolOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halter.events import EventData
    from halter.models.types import FinishReason, Message, Part, ToolCall

__all__ = ["SentConversation", "read_conversation"]

_BEGINNING: Final = "[The conversation begins with your message.]"  # providers want a message of the user first


class SentConversation(NamedTuple):
    """The log of the earlier turns, and the message to be answered.

    Without a message the model goes on from the end of the log: with results of tools, or with its own words.
    """

    events: list[Event]
    prompt: UserMessage | None


def read_conversation(messages: Sequence[Message], field: str) -> SentConversation:
    """The conversation of these messages. Raises `Problem`, for this field, if they are not a valid one."""
    said = [message for message in messages if not isinstance(message, UserMessage) or _has_content(message.parts)]
    last = len(said)
    while last and isinstance(said[last - 1], UserMessage):
        last -= 1
    parts: list[Part] = []
    for message in said[last:]:
        parts += message.parts if isinstance(message, UserMessage) else ()
    if not said:
        raise Problem(422, "there is no message to answer", field=field, kind="empty")
    past = _PastTurns(field)
    for message in said[:last]:
        past.add(message)
    past.end(is_answered=bool(parts))
    return SentConversation(past.events, to_message(UserMessage(parts)) if parts else None)


class _PastTurns:
    """Writes the events of earlier turns: each begins with what the user has said."""

    def __init__(self, field: str) -> None:
        self.events: list[Event] = []
        self._field = field
        self._now = time.time()
        self._turn = ""
        self._is_answered = False  # the turn has an answer
        self._used: set[str] = set()  # ids of calls
        self._open: dict[str, ToolCall] = {}  # calls without a result, by the ids that the client has for them

    def add(self, message: Message) -> None:
        if isinstance(message, ToolMessage):
            self._add_result(message)
            return
        self._check_results()
        if isinstance(message, UserMessage):
            if self._is_answered or not self._turn:
                self._begin()
            self._add_user(to_message(message))
        else:
            self._add_answer(message)

    def end(self, *, is_answered: bool) -> None:
        """End the last turn: done, if another message follows; else as one that is continued."""
        self._check_results()
        if self._turn:
            self._write(TurnFinished("done") if is_answered else TurnFinished("interrupted", "pause"))

    def _begin(self) -> None:
        if self._turn:
            self._write(TurnFinished("done"))
        self._turn = f"earlier-{len(self.events)}"
        self._is_answered = False
        self._write(TurnStarted(""))

    def _add_user(self, message: UserMessage) -> None:
        name = f"message-{len(self.events)}"
        self._write(MessageAccepted(name, "queue", message), MessageApplied(name, "queue"))

    def _add_answer(self, message: AssistantMessage) -> None:
        if not self._turn:
            self._begin()
            self._add_user(UserMessage.of(_BEGINNING))
        ids = [call.id for call in message.calls]
        if len(set(ids)) < len(ids):
            raise self._problem("two calls of one message have the same id")
        text = message.text if message.text.strip() else ""
        reason: FinishReason = "tool_calls" if ids else "stop"
        answer = clean_answer(
            Answer(text, calls=message.calls, reason=reason, attempts=1, status="complete"), self._used
        )
        self._open = dict(zip(ids, answer.calls, strict=True))
        self._used.update(call.id for call in answer.calls)
        self._is_answered = True
        self._write(RequestFinished("", 1, "complete", reason, answer=answer))

    def _add_result(self, message: ToolMessage) -> None:
        call = self._open.pop(message.call_id, None)
        if call is None:
            raise self._problem(f"there is no open call {message.call_id!r} for this result")
        content = to_message(UserMessage(message.parts)).parts if _has_content(message.parts) else ""
        self._write(ToolFinished(ToolOutcome(call_id=call.id, name=call.name, status="completed", content=content)))

    def _check_results(self) -> None:
        if self._open:
            raise self._problem(f"the call {next(iter(self._open))!r} has no result directly after it")

    def _write(self, *data: EventData) -> None:
        for each in data:
            turn = "" if isinstance(each, MessageAccepted) else self._turn
            self.events.append(Event(0, self._now, "", turn, each))

    def _problem(self, text: str) -> Problem:
        return Problem(422, text, field=self._field, kind="conversation")


def _has_content(parts: list[Part]) -> bool:
    return any(not isinstance(part, Text) or part.text.strip() for part in parts)
