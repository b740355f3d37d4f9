"""The area below the conversation: the unfinished answer, running calls, queued messages, the question, the status.

Lines for a terminal, drawn from the view and the inbox as they are at this moment; each part has a bound, so that the
line in which one types always has a place.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from halter.cli.chat.slash_commands import complete
from halter.cli.chat.styling import Styler, cells, short
from halter.views.approval_text import approval_answers, approval_title
from halter.views.call_text import call_text
from halter.views.text import count, elapsed

if TYPE_CHECKING:
    from halter.cli.chat.markdown_blocks import Block
    from halter.cli.chat.transcript import Transcript
    from halter.views.items import CallItem, Question, QueuedMessage

__all__ = ["LiveArea", "approval_hint"]

_TAIL: Final = 12
_QUEUE: Final = 5
_CALLS: Final = 8
_PROMPT: Final = 8
_DRAWN: Final = 2000  # characters of an unfinished block that are drawn as Markdown
_CLOCK: Final = 16  # columns for the duration
_LEAST: Final = 8  # columns a text needs to be shown at all


def approval_hint(question: Question, pages_left: int) -> str:
    """How an approval is answered."""
    if pages_left:
        return f"Enter: read on ({count(pages_left, 'more page')}) · n: Deny · n and why: Deny with a reason"
    said = [f"{each.key}: {each.label}" for each in approval_answers(question, may_keep=True)]
    return f"{' · '.join(said)} · n and why: Deny with a reason; then Enter"


class LiveArea:
    """Draws the parts for one size of the terminal."""

    def __init__(self, rows: int, columns: int, *, color: bool) -> None:
        self.styler = Styler(columns - 1, color=color)  # terminals differ in how they wrap at the last column
        self._rows = rows
        self._tail: tuple[Block | None, list[str]] = (None, [])

    def tail(self, transcript: Transcript) -> list[str]:
        """The last lines of the unfinished block."""
        block = transcript.answer.tail
        if block is None:
            return []
        if self._tail[0] != block:
            self._tail = (block, self._draw(block))
        return self._tail[1][-min(_TAIL, self._rows // 2) :]

    def _draw(self, block: Block) -> list[str]:
        if len(block.text) > _DRAWN:
            return self.styler.say(block.text[-_DRAWN:], "")
        return self.styler.block(block)

    def calls(self, transcript: Transcript) -> list[str]:
        """A line for each running call, as far as there is room."""
        turn = transcript.display.running
        calls = turn.running_calls if turn is not None else []
        most = max(3, min(_CALLS, self._rows // 3))
        shown = calls if len(calls) <= most else calls[: most - 1]
        now = time.time()
        lines = [self._call(call, now) for call in shown]
        if len(calls) > len(shown):
            lines.append(self.styler.paint(f"  … and {len(calls) - len(shown)} more", "dim"))
        return lines

    def _call(self, call: CallItem, now: float) -> str:
        mark, tone = ("■", "warn") if call.state == "stopping" else ("⋯", "")
        room = max(self.styler.width - cells(call.name) - _CLOCK, _LEAST)
        return self.styler.paint(short(f"{mark} {call_text(call, now, room)}", self.styler.width), tone)

    def queue(self, transcript: Transcript) -> list[str]:
        """The queued messages, and how they will be delivered."""
        display = transcript.display
        waiting = list(display.queue.values())
        if display.running is None:
            waiting = [each for each in waiting if each.state == "held"]  # the others are about to start a turn
        shown = waiting if len(waiting) <= _QUEUE else waiting[: _QUEUE - 1]
        lines = [self._queued(each) for each in shown]
        if len(waiting) > len(shown):
            lines.append(self.styler.paint(f"  … and {len(waiting) - len(shown)} more", "dim"))
        if any(each.state == "held" for each in waiting):
            lines += self.styler.say("Press Enter on an empty line to send held messages, Alt+Up to edit", "dim", "  ")
        return lines

    def _queued(self, message: QueuedMessage) -> str:
        mode = "held" if message.state == "held" else "queued" if message.mode == "queue" else message.mode
        line = f"  {mode:9} {short(message.text, self.styler.width - 12)}"
        return self.styler.paint(line, "warn" if mode == "held" else "dim")

    def question(self, question: Question | None, more: int, pages_left: int = 0) -> list[str]:
        """The open question. The arguments of a call that needs approval are above, in the conversation.

        It can be allowed once all of its pages were shown.
        """
        if question is None:
            return []
        is_approval = question.kind == "approval"
        lines = self.styler.say(approval_title(question) if is_approval else question.text, "warn", "? ")
        if question.choices:
            width = self.styler.width - 6
            lines += [f"  {number}. {short(each, width)}" for number, each in enumerate(question.choices, 1)]
        how = approval_hint(question, pages_left) if is_approval else "type the answer, then Enter"
        also = f"; {count(more, 'more question')} after this" if more else ""
        if len(lines) >= _PROMPT:
            lines = [*lines[: _PROMPT - 2], "  …"]
        return [*lines, *self.styler.say(f"{how}{also}", "dim", "  ")]

    def hint(self, line: str) -> list[str]:
        """The commands that the line may be completed to."""
        found = complete(line)
        return self.styler.say("  ".join(found), "dim", "  ") if found else []

    def status(self, transcript: Transcript, model: str, doing: str) -> str:
        """Model, state, tokens, cost and time, in one line."""
        display = transcript.display
        parts = [short(model, 30), doing or transcript.status]
        tokens = display.usage.input_tokens + display.usage.output_tokens
        if tokens:
            parts.append(count(tokens, "token"))
        if display.usage.cost:
            parts.append(f"${display.usage.cost:.4f}")
        if display.running is not None:
            parts.append(elapsed(time.time() - display.running.started))
        return self.styler.paint(short(" · ".join(parts), self.styler.width), "dim")
