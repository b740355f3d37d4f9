"""The area below the conversation: the unfinished answer, running calls, queued messages, the question, the status.

Lines for a terminal, drawn from the view and the inbox as they are at this moment; each part has a bound, so that the
line in which one types always has a place.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from halter.cli.chat.completion import complete
from halter.cli.chat.status_line import status_line
from halter.cli.chat.styling import Styler, cells, short
from halter.views.approval_text import approval_answers, approval_title
from halter.views.call_details import live_output
from halter.views.call_text import brief_arguments, call_text
from halter.views.text import count

if TYPE_CHECKING:
    from halter.cli.chat.markdown_blocks import Block
    from halter.cli.chat.status_line import SessionFigures
    from halter.cli.chat.transcript import Transcript
    from halter.views.items import CallItem, Question, QueuedMessage

__all__ = ["LiveArea", "approval_hint"]

_TAIL: Final = 12  # and no more than a third of the screen: each row is two in a terminal that becomes narrower
_QUEUE: Final = 5
_CALLS: Final = 8
_CHILDREN: Final = 6
_OUTPUT: Final = 4  # lines of a running command
_WITH_OUTPUT: Final = 3  # more running calls than these have no lines of output
_ARGUMENTS: Final = 30  # characters of a child's call
_TASK: Final = 24
_PROMPT: Final = 8
_HINTS: Final = 4  # lines
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

    def __init__(self, rows: int, columns: int, *, color: bool, theme: str = "dark") -> None:
        # Terminals differ in how they wrap at the last column.
        self.styler = Styler(columns - 1, color=color, theme=theme)
        self._rows = rows
        self._tail: tuple[Block | None, list[str]] = (None, [])

    def tail(self, transcript: Transcript) -> list[str]:
        """The last lines of the unfinished block."""
        block = transcript.answer.tail
        if block is None:
            return []
        if self._tail[0] != block:
            self._tail = (block, self._draw(block))
        return self._tail[1][-min(_TAIL, self._rows // 3) :]

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
        room = 0 if len(calls) > _WITH_OUTPUT else max(1, min(_OUTPUT, self._rows // 8))
        lines = [line for call in shown for line in (self._call(call, now), *self._output(call, room))]
        if len(calls) > len(shown):
            lines.append(self.styler.paint(f"  … and {len(calls) - len(shown)} more", "dim"))
        return lines

    def children(self, transcript: Transcript) -> list[str]:
        """A line for each child that is running: its task, and what it does."""
        turns = transcript.display.turns
        children = [child for turn in turns for child in turn.children.values() if child.state == "running"]
        lines: list[str] = []
        for child in children[:_CHILDREN]:
            doing = f" · {child.tool} {brief_arguments(child.arguments, _ARGUMENTS)}".rstrip() if child.tool else ""
            calls = f" · {count(child.calls, 'call')}" if child.calls else ""
            text = short(f"◇ {child.agent}: {child.task}", max(self.styler.width - len(doing) - len(calls), _TASK))
            lines.append(self.styler.paint(short(f"{text}{calls}{doing}", self.styler.width), "dim"))
        if len(children) > _CHILDREN:
            lines.append(self.styler.paint(f"  … and {len(children) - _CHILDREN} more", "dim"))
        return lines

    def _output(self, call: CallItem, most: int) -> list[str]:
        """The last lines of a running command."""
        lines = live_output(call, most) if most else []
        return [self.styler.paint(f"    {short(line, self.styler.width - 4)}", "dim") for line in lines]

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

    def hint(self, before: str) -> list[str]:
        """The commands or files that Tab may complete the text before the cursor to."""
        found = complete(before)
        if found is None or not found.found:
            return []
        lines = self.styler.say("  ".join(found.found), "dim", "  ")
        return lines if len(lines) <= _HINTS else [*lines[: _HINTS - 1], self.styler.paint("  …", "dim")]

    def status(self, transcript: Transcript, figures: SessionFigures, doing: str) -> str:
        """Model, state, context, tokens and cost, sandbox and approvals, in one line."""
        line, tone = status_line(transcript, figures, doing, self.styler.width)
        return self.styler.paint(line, tone)
