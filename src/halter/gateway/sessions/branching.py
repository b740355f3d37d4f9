"""The conversation before a turn, for a session that goes on differently; and the message that began a turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halter.events import (
    MessageAccepted,
    MessageApplied,
    MessageEdited,
    MessageHeld,
    MessageReleased,
    MessageRemoved,
    SessionChanged,
    SessionCreated,
    TurnRolledBack,
)
from halter.models.types import Text, UserMessage

if TYPE_CHECKING:
    from halter.events import Event
    from halter.models.types import Part

__all__ = ["before_turn", "opening_message", "with_text"]

_OF_MESSAGES = (MessageAccepted, MessageApplied, MessageEdited, MessageHeld, MessageReleased, MessageRemoved)


def opening_message(events: list[Event], turn: str) -> UserMessage | None:
    """The message that began a turn; the parts of several, if there were several. None if it continued another turn."""
    messages: dict[str, UserMessage] = {}
    parts: list[Part] = []
    for event in events:
        data = event.data
        if isinstance(data, (MessageAccepted, MessageEdited)):
            messages[data.id] = data.message
        elif isinstance(data, MessageApplied) and event.turn == turn and data.mode != "steer" and not data.question:
            parts += messages[data.id].parts
    return UserMessage(parts) if parts else None


def with_text(message: UserMessage, text: str | None) -> UserMessage:
    """A message with another text in place of its own, if there is one."""
    if text is None:
        return message
    return UserMessage([Text(text), *(part for part in message.parts if not isinstance(part, Text))])


def before_turn(events: list[Event], turn: str | None) -> list[Event]:
    """The events before a turn, or all, that make up the conversation: without what waits, and the session's name.

    A turn before it may have been rolled back later, after this one was.
    """
    first = next((at for at, event in enumerate(events) if turn is not None and event.turn == turn), len(events))
    kept, later = events[:first], events[first:]
    applied = {event.data.id for event in kept if isinstance(event.data, MessageApplied)}
    turns = {event.turn for event in kept}
    whole = [
        event
        for event in kept
        if not isinstance(event.data, (SessionCreated, SessionChanged))
        and (not isinstance(event.data, _OF_MESSAGES) or event.data.id in applied)
    ]
    return whole + [event for event in later if isinstance(event.data, TurnRolledBack) and event.turn in turns]
