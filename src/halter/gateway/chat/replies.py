"""Texts that the bridge sends to a chat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from halter.views.text import seconds
from halter.views.timeline import last_stop, render

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halter.events import Event
    from halter.gateway.http.errors import Problem
    from halter.gateway.http.schemas import ReceiptView
    from halter.views.timeline import Timeline

__all__ = ["HELP", "NOTHING_RAN", "not_allowed", "queued", "refusal", "stopped", "why"]

NOTHING_RAN: Final = "Nothing was running."
_WIDTH: Final = 64  # of the drawing, in columns

HELP: Final = """\
Send a text, a voice message or a picture, and an agent answers. While it works:

/stop – stop it now
/steer TEXT – send a message into the running turn
/queue TEXT – send a message when the turn ends
/new – start a new conversation
/deny REASON – deny the open request, and tell the model why
/why – show the last stop: what ended, and how fast"""  # noqa: RUF001  (dashes)


def not_allowed(platform: str, sender: str) -> str:
    """For a sender who is not in `users`."""
    return f"You may not use this bot. Its owner can allow you: add {sender} to `users` in [{platform}]."


def refusal(problem: Problem) -> str:
    """Why a message was not accepted."""
    later = f" Try again in {seconds(problem.retry_after)}." if problem.retry_after else ""
    return f"⚠️ Not accepted: {problem.detail}.{later}"


def queued(receipt: ReceiptView, command: str, *, is_busy: bool) -> str:
    """What became of a message, if that is worth a reply; else empty."""
    if command == "steer" and receipt.mode != "steer":
        return f"📥 {receipt.note or 'it waits for the next turn'}."
    if receipt.mode == "queue" and is_busy:
        return "📥 Queued for the next turn."
    return ""


def stopped(line: Timeline) -> str:
    """What was stopped, and how fast."""
    took = f"in {seconds(line.after)}" if line.after is not None else "but the turn has not ended yet"
    parts = _stopped_parts(line)
    return f"⏹ Stopped {took}{': ' + ', '.join(parts) if parts else ''}."


def _stopped_parts(line: Timeline) -> list[str]:
    """What was running when the stop came, and how each ended."""
    asked = line.asked_at or line.started
    cut = [span for span in line.spans if span.end is None or span.end >= asked]
    return [f"{span.kind} {span.name} ({span.how.replace('_', ' ') or 'still running'})" for span in cut]


def why(events: Sequence[Event]) -> tuple[str, bool]:
    """The timeline of the last stop, and whether it needs a monospace font."""
    line = last_stop(events)
    return (render(line, width=_WIDTH), True) if line is not None else ("Nothing was stopped here.", False)
