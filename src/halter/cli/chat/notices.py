"""Notices for the terminal chat: one sentence about each thing that happened."""

from __future__ import annotations

import collections
import functools
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from halter.cli.chat.styling import short
from halter.views.items import CallItem
from halter.views.text import retry_text
from halter.views.timeline import seconds

if TYPE_CHECKING:
    from halter.cli.chat.styling import Tone
    from halter.views.items import ChildItem, MessageItem, RetryItem, TurnDisplay

__all__ = [
    "Notice",
    "brief",
    "count",
    "of_call",
    "of_child",
    "of_late_end",
    "of_retry",
    "of_steer",
    "of_turn",
    "of_user",
]

_ARGUMENT: Final = 48
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
_ENDS: Final = {
    "stop": "stopped",
    "interrupt": "interrupted",
    "rollback": "stopped and rolled back",
    "shutdown": "stopped because the program exits",
    "pause": "paused after the step",
    "crash": "cut off when the program ended",
}


class Notice(NamedTuple):
    """A text that stays on the screen, its tone, and a mark in front of its first line."""

    text: str
    tone: Tone = ""
    lead: str = ""


def count(number: int, what: str, many: str = "") -> str:
    """A number and its noun: "2 tools"."""
    return f"{number:,} {what if number == 1 else many or what + 's'}"


@functools.lru_cache(maxsize=64)  # asked for in every frame
def brief(arguments: str, most: int = _ARGUMENT) -> str:
    """The arguments of a call, shortened."""
    try:
        values = msgspec.json.decode(arguments or "{}")
    except msgspec.DecodeError:
        return short(arguments, most)
    if isinstance(values, dict):
        return short(", ".join(str(value) for value in values.values()), most)
    return short(arguments, most)


def of_user(text: str) -> Notice:
    """A message of the user, shortened if it is long."""
    lines = text.split("\n")
    if len(lines) > _LINES + 1:
        lines[_LINES:] = [f"… and {len(lines) - _LINES:,} more lines"]
    return Notice("\n".join(lines), "user", "» ")


def of_call(call: CallItem) -> Notice:
    """How a call ended."""
    mark, tone = _MARKS[call.state]
    text = f"{call.name} {brief(call.arguments)}".rstrip()
    if call.state == "not_started":
        return Notice(f"{text} · not started", tone, f"{mark} ")
    parts = [text]
    if call.state != "completed":
        parts.append(_how(call))
    if call.started is not None and call.ended is not None:
        parts.append(seconds(call.ended - call.started))
    if call.after is not None:
        parts.append(f"stopped in {seconds(call.after)}")
    return Notice(" · ".join(parts), tone, f"{mark} ")


def _how(call: CallItem) -> str:
    if call.state == "abandoned":
        return "abandoned: it did not end, and may still have effects"
    if call.state == "partial":
        return "partial result kept"
    how = call.state.replace("_", " ")
    detail = call.detail if call.state in ("failed", "denied", "timed_out") else ""
    return f"{how}: {short(detail, _DETAIL)}" if detail else how


def of_late_end(call: CallItem) -> Notice:
    """An abandoned call has ended after all."""
    late = call.late
    when = f" {seconds(late.seconds)} after the stop" if late is not None else ""
    how = f", with an error: {short(late.error, _DETAIL)}" if late is not None and late.error else ""
    return Notice(f"{call.name}, which was abandoned, ended{when}{how}", "warn", "! ")


def of_retry(retry: RetryItem) -> Notice:
    """A request failed and is made again."""
    return Notice(retry_text(retry), "warn", "! ")


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
        why = turn.error or turn.detail or turn.reason
        return Notice(f"failed ({turn.reason}): {short(why, 4 * _DETAIL)}. /retry tries again.", "bad", "✗ ")
    how = _ENDS.get(turn.reason, f"stopped ({turn.reason})")
    parts = [f"{how} in {seconds(turn.after)}" if turn.after is not None else how]
    calls = [item for item in turn.items if isinstance(item, CallItem)]
    number = collections.Counter(call.state for call in calls if call.outcome is not None)
    if number["partial"]:
        parts.append(f"{count(number['partial'], 'call')} kept partial results")
    others = [each for each in ("cancelled", "abandoned", "not_started") if number[each]]
    parts += [f"{number[each]} {each.replace('_', ' ')}" for each in others]
    return Notice("; ".join(parts), "warn", "■ ")
