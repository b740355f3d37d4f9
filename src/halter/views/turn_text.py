"""How a turn ended, in one line, for the terminal and for chat platforms."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Final

from halter.views.items import CallItem
from halter.views.text import count, seconds, shorten, strip_controls

if TYPE_CHECKING:
    from halter.views.items import TurnDisplay

__all__ = ["turn_end_text"]

_MAX_ERROR: Final = 800  # characters
_ENDS: Final = {
    "stop": "stopped",
    "interrupt": "interrupted",
    "rollback": "stopped and rolled back",
    "shutdown": "stopped because the program exits",
    "pause": "paused after the step",
    "lease_lost": "stopped because this machine lost the session",
    "crash": "cut off when the program ended",
}


def turn_end_text(turn: TurnDisplay) -> str:
    """Why it failed, or what was stopped and how fast; empty if it was simply done."""
    if turn.status == "done":
        return ""
    if turn.status == "failed":
        why = turn.error or turn.detail or turn.reason
        return f"failed ({turn.reason}): {shorten(strip_controls(why), _MAX_ERROR)}"
    how = _ENDS.get(turn.reason, f"stopped ({turn.reason})")
    parts = [f"{how} in {seconds(turn.after)}" if turn.after is not None else how]
    calls = [item for item in turn.items if isinstance(item, CallItem)]
    number = collections.Counter(call.state for call in calls if call.outcome is not None)
    if number["partial"]:
        parts.append(f"{count(number['partial'], 'call')} kept partial results")
    others = [each for each in ("cancelled", "abandoned", "not_started") if number[each]]
    parts += [f"{number[each]} {each.replace('_', ' ')}" for each in others]
    return "; ".join(parts)
