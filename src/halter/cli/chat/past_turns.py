"""The turns of a session, from its log: for /undo, for the greeting, and for /export."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halter.cli.commands.sessions import FREQUENT_EVENTS
from halter.events import (
    Event,
    MessageAccepted,
    MessageApplied,
    MessageEdited,
    TurnFinished,
    TurnRolledBack,
    TurnStarted,
)
from halter.models.types import AssistantMessage, ToolMessage, UserMessage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halter.models.types import Message
    from halter.stores.base import Store

__all__ = ["LoggedTurn", "read_turns", "to_markdown", "turns_of"]


class LoggedTurn:
    """One turn of the conversation, and its messages."""

    def __init__(self, turn_id: str) -> None:
        self.id = turn_id
        self.texts: list[str] = []
        self.status = "running"


def read_turns(store: Store, session_id: str) -> list[LoggedTurn]:
    """The turns of a session that were not rolled back, in order."""
    return turns_of(store.read(session_id, without=FREQUENT_EVENTS))


def turns_of(events: Iterable[Event]) -> list[LoggedTurn]:
    """The turns of a log that were not rolled back, in order."""
    turns: dict[str, LoggedTurn] = {}
    texts: dict[str, str] = {}
    for event in events:
        data = event.data
        if isinstance(data, (MessageAccepted, MessageEdited)):
            texts[data.id] = data.message.text
        elif isinstance(data, TurnStarted):
            turns[event.turn] = LoggedTurn(event.turn)
        elif isinstance(data, MessageApplied) and event.turn in turns and not data.question:
            turns[event.turn].texts.append(texts.get(data.id, ""))
        elif isinstance(data, TurnFinished) and event.turn in turns:
            turns[event.turn].status = data.status
        elif isinstance(data, TurnRolledBack):
            turns.pop(event.turn, None)
    return list(turns.values())


def to_markdown(messages: Iterable[Message]) -> str:
    """A conversation as Markdown."""
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
