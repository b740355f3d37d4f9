"""What people are told in a chat, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from halter.cli.timeline import last_stop, render, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halter.cli.timeline import Timeline
    from halter.events import Event
    from halter.gateway.messages import ReceiptView
    from halter.gateway.problems import Problem

__all__ = ["HELP", "NOTHING_RAN", "no_user", "queued", "refusal", "stopped", "why"]

NOTHING_RAN: Final = "Nothing was running."
_WIDTH: Final = 64  # of a drawing

HELP: Final = """\
Write, speak or send a picture, and an agent answers. While it works:

/stop – stop it, now
/steer TEXT – say something into what it does
/queue TEXT – say something for afterwards
/new – begin a new conversation
/why – what the last stop has stopped, and how fast"""  # noqa: RUF001  (dashes)


def no_user(platform: str, sender: str) -> str:
    """For somebody who is not on the list."""
    return f"You may not speak to this agent. Its owner can change that: add {sender} to `users` in [{platform}]."


def refusal(problem: Problem) -> str:
    """Why something was not accepted."""
    later = f" Try again in {seconds(problem.retry_after)}." if problem.retry_after else ""
    return f"⚠️ Not accepted: {problem.detail}.{later}"


def queued(receipt: ReceiptView, command: str, *, is_busy: bool) -> str:
    """What became of a message, if there is something to be said about it."""
    if command == "steer" and receipt.mode != "steer":
        return f"📥 {receipt.note or 'it waits for the next turn'}."
    if receipt.mode == "queue" and is_busy:
        return "📥 Queued: it comes next."
    return ""


def stopped(line: Timeline) -> str:
    """What a stop has stopped, and in how long."""
    took = f"in {seconds(line.after)}" if line.after is not None else "and it has not ended yet"
    parts = _stopped_parts(line)
    return f"⏹ Stopped {took}{': ' + ', '.join(parts) if parts else ''}."


def _stopped_parts(line: Timeline) -> list[str]:
    """What was at work when the stop came, and how each ended."""
    asked = line.asked_at or line.started
    cut = [span for span in line.spans if span.end is None or span.end >= asked]
    return [f"{span.kind} {span.name} ({span.how.replace('_', ' ') or 'goes on'})" for span in cut]


def why(events: Sequence[Event]) -> tuple[str, bool]:
    """The timeline of the last stop, and whether it is a drawing."""
    line = last_stop(events)
    return (render(line, width=_WIDTH), True) if line is not None else ("Nothing was stopped here.", False)
