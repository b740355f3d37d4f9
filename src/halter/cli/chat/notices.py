"""Notices for the terminal chat: one sentence about each thing that happened."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Final, NamedTuple

from halter.cli.chat.screen.styling import short
from halter.views.approval_text import approval_pages, page_tones
from halter.views.call_details import call_details, full_output
from halter.views.call_text import call_text, late_end_text
from halter.views.diff_text import read_diff
from halter.views.text import compaction_text, retry_text, seconds
from halter.views.turn_text import turn_end_text

if TYPE_CHECKING:
    from halter.cli.chat.screen.styling import Tone
    from halter.tools.file_history import FileDiff
    from halter.views.items import CallItem, ChildItem, CompactionItem, MessageItem, Question, RetryItem, TurnDisplay

__all__ = [
    "Notice",
    "of_approval",
    "of_call",
    "of_child",
    "of_diff",
    "of_late_end",
    "of_output",
    "of_retry",
    "of_steer",
    "of_turn",
    "of_user",
]

_MAX_TASK: Final = 200  # characters of a delegated task
_LIMITS: Final = frozenset({"step_limit", "token_limit", "cost_limit"})
_REFUSED_KEY: Final = ("401:", "403:")  # how errors of providers begin
_MAX_LINES: Final = 20  # of a message
_MAX_DIFF_LINES: Final = 80  # of one file
_INDENT: Final = "    "
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
    if len(lines) > _MAX_LINES + 1:
        lines[_MAX_LINES:] = [f"… and {len(lines) - _MAX_LINES:,} more lines"]
    return Notice("\n".join(lines), "user", "» ")


def of_approval(question: Question) -> list[list[Notice]]:
    """What is asked, in pages: neighbouring lines that look the same are one notice."""
    texts = approval_pages(question)
    pages: list[list[Notice]] = []
    for text, tones in zip(texts, page_tones(question, texts), strict=True):
        page: list[Notice] = []
        for line, tone in zip(text.split("\n"), tones, strict=True):
            if page and page[-1].tone == tone:
                page[-1] = page[-1]._replace(text=f"{page[-1].text}\n{line}")
            else:
                page.append(Notice(line, tone, "  " if pages or page else "? "))
        pages.append(page)
    return pages


def of_call(call: CallItem) -> list[Notice]:
    """How a call ended, and the details below it: a diff, the last lines of output."""
    mark, tone = _mark(call)
    details = [Notice(each.text, each.tone, _INDENT) for each in call_details(call)]
    return [Notice(call_text(call), tone, f"{mark} "), *details]


def of_output(call: CallItem) -> list[Notice]:
    """The full output of a call."""
    mark, tone = _mark(call)
    lines = [Notice(each.text, each.tone, _INDENT) for each in full_output(call)]
    return [Notice(f"{call_text(call)}: full output", tone, f"{mark} "), *lines]


def _mark(call: CallItem) -> tuple[str, Tone]:
    return _MARKS["failed" if call.state == "completed" and call.has_failed else call.state]


def of_diff(diff: FileDiff) -> list[Notice]:
    """What a turn has changed in files: each with its name and counts, and the lines."""
    files = read_diff(diff.text)
    kept = {each.path: each.kept for each in diff.files if each.kept}
    shown: list[Notice] = []
    for each in files:
        why = f" (a rollback would not restore it: {kept[each.path]})" if each.path in kept else ""
        shown.append(Notice(f"{each.title}{why}", "head"))
        lines = each.lines[:_MAX_DIFF_LINES]
        shown += [Notice(line.text, line.tone, _INDENT) for line in lines]
        if len(each.lines) > len(lines):
            shown.append(Notice(f"… {len(each.lines) - len(lines):,} more lines", "dim", _INDENT))
    named = {each.path for each in files}
    shown += [Notice(f"{each.path} ({each.change})", "head") for each in diff.files if each.path not in named]
    notes = ["the diff is truncated" if diff.truncated else "", diff.note]
    return [*shown, *(Notice(f"({note})", "dim") for note in notes if note)]


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
    task = f": {short(child.task, _MAX_TASK)}" if child.task else ""
    if child.state == "running":
        return Notice(f"{child.agent} started{task}", "dim", "◇ ")
    why = f" ({child.reason})" if child.reason else ""
    return Notice(f"{child.agent} {child.state}{why}", "dim", "◇ ")


def of_steer(message: MessageItem) -> Notice:
    """A message reached the running turn; what was interrupted for it."""
    when = f" ({seconds(message.waited)})" if message.waited is not None else ""
    if not message.interrupted:
        return Notice(f"steered, between two steps{when}", "dim", "↳ ")
    names = collections.Counter(message.interrupted)
    calls = [name if number == 1 else f"{name} ({number})" for name, number in names.items()]
    listed = calls[0] if len(calls) == 1 else f"{', '.join(calls[:-1])} and {calls[-1]}"
    return Notice(f"steered, interrupted {listed}{when}", "dim", "↳ ")


def of_turn(turn: TurnDisplay) -> Notice | None:
    """How a turn ended; None if it was simply done."""
    if turn.status == "done":
        return None
    if turn.status == "failed":
        return Notice(f"{turn_end_text(turn)}. {_advice(turn)}", "bad", "✗ ")
    return Notice(turn_end_text(turn), "warn", "■ ")


def _advice(turn: TurnDisplay) -> str:
    """What the user can do about this failure. /retry only where the same request may succeed."""
    if turn.reason == "context_limit":
        return "/undo brings the message back to be shortened; /model switches to a larger context; /new starts over."
    if turn.reason in _LIMITS:
        return "Any message continues the turn; [limits] in the settings sets the limit."
    if turn.reason == "output_limit":
        return "Any message continues the turn."
    why = turn.error or turn.detail
    if "is not set" in why or why.startswith(_REFUSED_KEY):
        return "Store a key with `halter login PROVIDER` and restart, or switch with /model."
    return "/retry tries again."
