"""A conversation as its log tells it: for taking back, for showing where one was, and for a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halter.cli.listing import PASSING
from halter.events import (
    Event,
    MessageAccepted,
    MessageApplied,
    MessageEdited,
    TurnFinished,
    TurnRolledBack,
    TurnStarted,
)
from halter.models.model import AssistantMessage, ToolMessage, UserMessage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halter.models.model import Message
    from halter.stores.store import Store

__all__ = ["PastTurn", "read_turns", "to_markdown", "turns_of"]


class PastTurn:
    """One turn that is part of the conversation: what was said to the model in it."""

    def __init__(self, turn_id: str) -> None:
        self.id = turn_id
        self.texts: list[str] = []
        self.status = "running"


def read_turns(store: Store, session_id: str) -> list[PastTurn]:
    """The turns of a session that have not been taken back, in order."""
    return turns_of(store.read(session_id, without=PASSING))


def turns_of(events: Iterable[Event]) -> list[PastTurn]:
    """The turns that a log tells of and that have not been taken back, in order."""
    turns: dict[str, PastTurn] = {}
    texts: dict[str, str] = {}
    for event in events:
        data = event.data
        if isinstance(data, (MessageAccepted, MessageEdited)):
            texts[data.id] = data.message.text
        elif isinstance(data, TurnStarted):
            turns[event.turn] = PastTurn(event.turn)
        elif isinstance(data, MessageApplied) and event.turn in turns and not data.question:
            turns[event.turn].texts.append(texts.get(data.id, ""))
        elif isinstance(data, TurnFinished) and event.turn in turns:
            turns[event.turn].status = data.status
        elif isinstance(data, TurnRolledBack):
            turns.pop(event.turn, None)
    return list(turns.values())


def to_markdown(messages: Iterable[Message]) -> str:
    """A conversation as a page."""
    pieces: list[str] = []
    for message in messages:
        if isinstance(message, UserMessage):
            pieces.append(f"## You\n\n{message.text}")
        elif isinstance(message, AssistantMessage):
            if message.text:
                pieces.append(f"## Halter\n\n{message.text}")
            pieces += [f"*calls* `{call.name}` `{call.arguments}`" for call in message.calls]
        elif isinstance(message, ToolMessage):
            pieces.append(f"### {message.name}\n\n{_fenced(message.text)}")
    return "\n\n".join(pieces) + "\n"


def _fenced(text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"
