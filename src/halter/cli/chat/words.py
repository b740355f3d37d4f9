"""What is said of what happened: one sentence each, with the figures of the events."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from halter.cli.chat.drawing import short
from halter.cli.timeline import seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halter.cli.chat.drawing import Tone
    from halter.events import TurnFinished
    from halter.tools.events import ToolFinished
    from halter.tools.outcome import ToolOutcome

__all__ = ["Said", "brief", "count", "of_late_end", "of_outcome", "of_steer", "of_turn", "of_user"]

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
    "rollback": "stopped and taken back",
    "shutdown": "stopped, as the program ends",
    "pause": "paused after its step",
    "crash": "broken off by the end of the program",
}


class Said(NamedTuple):
    """A text that stays on the screen, its tone, and what stands in front of its first line."""

    text: str
    tone: Tone = ""
    lead: str = ""


def count(number: int, what: str, many: str = "") -> str:
    """How many of something there are."""
    return f"{number:,} {what if number == 1 else many or what + 's'}"


def brief(arguments: str, most: int = _ARGUMENT) -> str:
    """The arguments of a call, as far as they fit."""
    try:
        values = msgspec.json.decode(arguments or "{}")
    except msgspec.DecodeError:
        return short(arguments, most)
    if isinstance(values, dict):
        return short(", ".join(str(value) for value in values.values()), most)
    return short(arguments, most)


def of_user(text: str) -> Said:
    """What a person has said, as far as they need to see it again."""
    lines = text.split("\n")
    if len(lines) > _LINES + 1:
        lines[_LINES:] = [f"… and {len(lines) - _LINES:,} more lines"]
    return Said("\n".join(lines), "user", "» ")


def of_outcome(event: ToolFinished, arguments: str) -> Said:
    """How a call ended."""
    outcome = event.outcome
    mark, tone = _MARKS[outcome.status]
    text = f"{outcome.name} {arguments}".rstrip()
    if outcome.status == "not_started":
        return Said(f"{text} · not started", tone, f"{mark} ")
    took = ""
    if outcome.started_at is not None and outcome.ended_at is not None:
        took = seconds(outcome.ended_at - outcome.started_at)
    parts = [text]
    if outcome.status != "completed":
        parts.append(_how(outcome))
    if took:
        parts.append(took)
    if event.after is not None:
        parts.append(f"stopped in {seconds(event.after)}")
    return Said(" · ".join(parts), tone, f"{mark} ")


def _how(outcome: ToolOutcome) -> str:
    if outcome.status == "abandoned":
        return "abandoned: it did not end, and may still have effects"
    how = outcome.status.replace("_", " ")
    if outcome.status == "partial":
        return "partial result kept"
    detail = outcome.detail if outcome.status in ("failed", "denied", "timed_out") else ""
    return f"{how}: {short(detail, _DETAIL)}" if detail else how


def of_late_end(outcome: ToolOutcome) -> Said:
    """That a call which was left behind has ended after all."""
    late = outcome.late
    when = f" {seconds(late.seconds)} after the stop" if late is not None else ""
    how = f", with an error: {short(late.error, _DETAIL)}" if late is not None and late.error else ""
    return Said(f"{outcome.name}, which was abandoned, has ended after all{when}{how}", "warn", "! ")


def of_steer(broken: Sequence[str], took: float | None) -> Said:
    """That a message reached the running turn, and what was broken off for it."""
    when = f" ({seconds(took)})" if took is not None else ""
    if not broken:
        return Said(f"steered, applied between two steps{when}", "dim", "↳ ")
    names = collections.Counter(broken)
    what = [name if number == 1 else f"{name} ({number})" for name, number in names.items()]
    listed = what[0] if len(what) == 1 else f"{', '.join(what[:-1])} and {what[-1]}"
    verb = "was" if len(broken) == 1 else "were"
    return Said(f"steered, applied after {listed} {verb} broken off{when}", "dim", "↳ ")


def of_turn(finished: TurnFinished, outcomes: Sequence[ToolOutcome]) -> Said | None:
    """How a turn ended; nothing if it was simply done."""
    if finished.status == "done":
        return None
    if finished.status == "failed":
        why = finished.error or finished.detail or finished.reason
        return Said(f"failed ({finished.reason}): {short(why, 4 * _DETAIL)}. /retry tries again.", "bad", "✗ ")
    how = _ENDS.get(finished.reason, f"stopped ({finished.reason})")
    parts = [f"{how} in {seconds(finished.after)}" if finished.after is not None else how]
    number = collections.Counter[str](outcome.status for outcome in outcomes)
    if number["partial"]:
        parts.append(f"{count(number['partial'], 'call')} kept partial results")
    others = [each for each in ("cancelled", "abandoned", "not_started") if number[each]]
    parts += [f"{number[each]} {each.replace('_', ' ')}" for each in others]
    return Said("; ".join(parts), "warn", "■ ")
