"""Notices for the terminal chat: one sentence about each thing that happened."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Final, NamedTuple

from halter.cli.chat.styling import short
from halter.views.call_text import call_text, late_end_text
from halter.views.text import compaction_text, retry_text, seconds
from halter.views.turn_text import turn_end_text

if TYPE_CHECKING:
    from halter.cli.chat.styling import Tone
    from halter.views.items import CallItem, ChildItem, CompactionItem, MessageItem, RetryItem, TurnDisplay

__all__ = [
    "Notice",
    "of_call",
    "of_child",
    "of_late_end",
    "of_retry",
    "of_steer",
    "of_turn",
    "of_user",
]

_DETAIL: Final = 200
_LINES: Final = 20  # of a message
_MARKS: Final[dict[str, tuple[str, Tone]]] = {
    "completed": ("✓", "good"),
    "partial": ("◐", "warn"),
    "cancelled": ("■", "warn"),
    "not_started": ("·", "dim"),
    "failed": ("✗", "bad"),
    "timed_out": ("✗", "bad"),
    "denied": ("✗", "bad"),
    "abandoned": ("!", "bad"),
}


class Notice(NamedTuple):
    """A text that stays on the screen, its tone, and a mark in front of its first line."""

    text: str
    tone: Tone = ""
    lead: str = ""


def of_user(text: str) -> Notice:
    """A message of the user, shortened if it is long."""
    lines = text.split("\n")
    if len(lines) > _LINES + 1:
        lines[_LINES:] = [f"… and {len(lines) - _LINES:,} more lines"]
    return Notice("\n".join(lines), "user", "» ")


def of_call(call: CallItem) -> Notice:
    """How a call ended."""
    mark, tone = _MARKS[call.state]
    return Notice(call_text(call), tone, f"{mark} ")


def of_late_end(call: CallItem) -> Notice:
    """An abandoned call has ended after all."""
    return Notice(late_end_text(call), "warn", "! ")


def of_retry(retry: RetryItem) -> Notice:
    """A request failed and is made again."""
    return Notice(retry_text(retry), "warn", "! ")


def of_compaction(item: CompactionItem) -> Notice:
    """The model gets less of the conversation from here on."""
    return Notice(compaction_text(item), "dim", "⇣ ")


def of_child(child: ChildItem) -> Notice:
    """A delegated task has started or ended."""
    task = f": {short(child.task, _DETAIL)}" if child.task else ""
    if child.state == "running":
        return Notice(f"{child.agent} started{task}", "dim", "⑂ ")
    why = f" ({child.reason})" if child.reason else ""
    return Notice(f"{child.agent} {child.state}{why}", "dim", "⑂ ")


def of_steer(message: MessageItem) -> Notice:
    """A message reached the running turn; what was interrupted for it."""
    when = f" ({seconds(message.waited)})" if message.waited is not None else ""
    if not message.interrupted:
        return Notice(f"steered, between two steps{when}", "dim", "↳ ")
    names = collections.Counter(message.interrupted)
    what = [name if number == 1 else f"{name} ({number})" for name, number in names.items()]
    listed = what[0] if len(what) == 1 else f"{', '.join(what[:-1])} and {what[-1]}"
    return Notice(f"steered, interrupted {listed}{when}", "dim", "↳ ")


def of_turn(turn: TurnDisplay) -> Notice | None:
    """How a turn ended; None if it was simply done."""
    if turn.status == "done":
        return None
    if turn.status == "failed":
        return Notice(f"{turn_end_text(turn)}. /retry tries again.", "bad", "✗ ")
    return Notice(turn_end_text(turn), "warn", "■ ")
