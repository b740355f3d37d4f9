"""A stored conversation as updates for a client that loads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halter.events import MessageAccepted, MessageEdited
from halter.models.types import Text
from halter.protocols.acp.content import part_block, pieces, text_block
from halter.protocols.acp.tool_calls import ToolCallUpdates, plan_of
from halter.views.items import CallItem, MessageItem, ReasoningItem, TextItem
from halter.views.session_view import SessionDisplay

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from halter.events import Event
    from halter.models.types import Part, UserMessage
    from halter.views.items import Item, TurnDisplay

__all__ = ["chunk", "replay"]


def chunk(kind: str, block: dict[str, Any], message_id: str) -> dict[str, Any]:
    """A piece of a message. Pieces with the same *message_id* belong together."""
    return {"sessionUpdate": kind, "content": block, "messageId": message_id}


def replay(events: Iterable[Event], workspace: Path) -> Iterator[dict[str, Any]]:
    """The updates that show the whole conversation, without turns that were rolled back."""
    display = SessionDisplay()
    messages: dict[str, UserMessage] = {}
    for event in events:
        display.apply(event)
        if isinstance(event.data, (MessageAccepted, MessageEdited)):
            messages[event.data.id] = event.data.message
    calls = ToolCallUpdates(workspace)
    plan = None
    for turn in display.turns:
        if not turn.is_rolled_back:
            for number, item in enumerate(turn.items):
                yield from _updates(turn, item, f"{turn.id}-{number}", messages, calls)
                plan = (plan_of(item) if isinstance(item, CallItem) else None) or plan
    if plan is not None:
        yield plan


def _updates(
    turn: TurnDisplay, item: Item, message_id: str, messages: dict[str, UserMessage], calls: ToolCallUpdates
) -> Iterator[dict[str, Any]]:
    if isinstance(item, MessageItem):
        parts: list[Part] = messages[item.id].parts if item.id in messages else [Text(item.text)]
        yield from _chunks("user_message_chunk", parts, message_id)
    elif isinstance(item, TextItem) and not item.is_superseded:
        yield from _chunks("agent_message_chunk", [Text(item.text)], message_id)
    elif isinstance(item, ReasoningItem):
        yield from _chunks("agent_thought_chunk", [Text(item.text)], message_id)
    elif isinstance(item, CallItem):
        yield from calls.of_call(turn, item)


def _chunks(kind: str, parts: Iterable[Part], message_id: str) -> Iterator[dict[str, Any]]:
    for part in parts:
        if isinstance(part, Text):
            for piece in pieces(part.text):
                yield chunk(kind, text_block(piece), message_id)
        else:
            yield chunk(kind, part_block(part), message_id)
