"""The area below the conversation: the unfinished answer, running calls, queued messages, the question, the status.

Lines for a terminal, drawn from the current state of the session. Each part has a maximum height, so that there is
always room for the input line.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from halter.cli.chat.input_line.completion import complete
from halter.cli.chat.screen.status_line import status_line
from halter.cli.chat.screen.styling import Styler, cells, short
from halter.views.approval_text import approval_answers, approval_title
from halter.views.call_details import live_output
from halter.views.call_text import brief_arguments, call_text
from halter.views.text import count

if TYPE_CHECKING:
    from halter.cli.chat.screen.markdown_blocks import Block
    from halter.cli.chat.screen.status_line import SessionFigures
    from halter.cli.chat.screen.transcript import ChatTranscript
    from halter.views.items import CallItem, Question, QueuedMessage

__all__ = ["LiveArea", "approval_hint"]

# Lines.
_MAX_TAIL: Final = 12  # and at most a third of the screen: in a terminal that becomes narrower, each row becomes two
_MAX_QUEUE: Final = 5
_MAX_CALLS: Final = 8
_MAX_CHILDREN: Final = 6
_MAX_OUTPUT: Final = 4  # of a running command
_MAX_QUESTION: Final = 8
_MAX_HINTS: Final = 4
_MAX_CALLS_WITH_OUTPUT: Final = 3  # with more running calls, none of them shows output
_MAX_MARKDOWN: Final = 2000  # characters of an unfinished block that are drawn as Markdown
# Columns.
_ARGUMENTS_WIDTH: Final = 30  # of a child's call
_MIN_TASK_WIDTH: Final = 24
_CLOCK_WIDTH: Final = 16
_MIN_CALL_WIDTH: Final = 8


def approval_hint(question: Question, pages_left: int) -> str:
    """How an approval is answered."""
    if pages_left:
        return f"Enter: next page ({pages_left} more) · n: Deny · n REASON: Deny with a reason"
    answers = [f"{each.key}: {each.label}" for each in approval_answers(question, may_keep=True)]
    return f"{' · '.join(answers)} · n REASON: Deny with a reason; then Enter"


class LiveArea:
    """Draws the parts for one size of the terminal."""

    def __init__(self, rows: int, columns: int, *, color: bool, theme: str = "dark") -> None:
        # Terminals differ in how they wrap at the last column.
        self.styler = Styler(columns - 1, color=color, theme=theme)
        self._rows = rows
        self._tail: tuple[Block | None, list[str]] = (None, [])

    def tail(self, transcript: ChatTranscript) -> list[str]:
        """The last lines of the unfinished block."""
        block = transcript.answer.tail
        if block is None:
            return []
        if self._tail[0] != block:
            self._tail = (block, self._draw(block))
        return self._tail[1][-min(_MAX_TAIL, self._rows // 3) :]

    def _draw(self, block: Block) -> list[str]:
        if len(block.text) > _MAX_MARKDOWN:
            return self.styler.say(block.text[-_MAX_MARKDOWN:], "")
        return self.styler.block(block)

    def calls(self, transcript: ChatTranscript) -> list[str]:
        """A line for each running call, as far as there is room."""
        turn = transcript.display.running
        calls = turn.running_calls if turn is not None else []
        max_lines = max(3, min(_MAX_CALLS, self._rows // 3))
        shown = calls if len(calls) <= max_lines else calls[: max_lines - 1]
        now = time.time()
        room = 0 if len(calls) > _MAX_CALLS_WITH_OUTPUT else max(1, min(_MAX_OUTPUT, self._rows // 8))
        lines = [line for call in shown for line in (self._call(call, now), *self._output(call, room))]
        if len(calls) > len(shown):
            lines.append(self.styler.paint(f"  … and {len(calls) - len(shown)} more", "dim"))
        return lines

    def children(self, transcript: ChatTranscript) -> list[str]:
        """A line for each child that is running: its task, and what it does."""
        turns = transcript.display.turns
        children = [child for turn in turns for child in turn.children.values() if child.state == "running"]
        lines: list[str] = []
        for child in children[:_MAX_CHILDREN]:
            arguments = brief_arguments(child.arguments, _ARGUMENTS_WIDTH)
            doing = f" · {child.tool} {arguments}".rstrip() if child.tool else ""
            calls = f" · {count(child.calls, 'call')}" if child.calls else ""
            room = max(self.styler.width - len(doing) - len(calls), _MIN_TASK_WIDTH)
            text = short(f"◇ {child.agent}: {child.task}", room)
            lines.append(self.styler.paint(short(f"{text}{calls}{doing}", self.styler.width), "dim"))
        if len(children) > _MAX_CHILDREN:
            lines.append(self.styler.paint(f"  … and {len(children) - _MAX_CHILDREN} more", "dim"))
        return lines

    def _output(self, call: CallItem, max_lines: int) -> list[str]:
        """The last lines of a running command."""
        lines = live_output(call, max_lines) if max_lines else []
        return [self.styler.paint(f"    {short(line, self.styler.width - 4)}", "dim") for line in lines]

    def _call(self, call: CallItem, now: float) -> str:
        mark, tone = ("■", "warn") if call.state == "stopping" else ("⋯", "")
        room = max(self.styler.width - cells(call.name) - _CLOCK_WIDTH, _MIN_CALL_WIDTH)
        return self.styler.paint(short(f"{mark} {call_text(call, now, room)}", self.styler.width), tone)

    def queue(self, transcript: ChatTranscript) -> list[str]:
        """The queued messages, and how they will be delivered."""
        display = transcript.display
        waiting = list(display.queue.values())
        if display.running is None:
            waiting = [each for each in waiting if each.state == "held"]  # the others are about to start a turn
        shown = waiting if len(waiting) <= _MAX_QUEUE else waiting[: _MAX_QUEUE - 1]
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
        if len(lines) >= _MAX_QUESTION:
            lines = [*lines[: _MAX_QUESTION - 2], "  …"]
        return [*lines, *self.styler.say(f"{how}{also}", "dim", "  ")]

    def hint(self, before: str) -> list[str]:
        """The commands or files that Tab may complete the text before the cursor to."""
        found = complete(before)
        if found is None or not found.found:
            return []
        lines = self.styler.say("  ".join(found.found), "dim", "  ")
        return lines if len(lines) <= _MAX_HINTS else [*lines[: _MAX_HINTS - 1], self.styler.paint("  …", "dim")]

    def status(self, transcript: ChatTranscript, figures: SessionFigures, doing: str) -> str:
        """Model, state, context, tokens and cost, sandbox and approvals, in one line."""
        line, tone = status_line(transcript, figures, doing, self.styler.width)
        return self.styler.paint(line, tone)
