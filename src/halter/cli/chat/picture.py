"""What stands below the conversation while it goes on: the tail of the answer, calls, what waits, what is asked, state.

Lines for a terminal, drawn from the view and the inbox as they are at this moment; each part has a bound, so that the
line in which one types always has a place.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from halter.cli.chat.commands import complete
from halter.cli.chat.drawing import Pen, cells, short
from halter.cli.chat.words import count

if TYPE_CHECKING:
    from halter.cli.chat.blocks import Block
    from halter.cli.chat.view import Call, Prompt, View
    from halter.inbox import Letter

__all__ = ["Picture"]

_TAIL: Final = 12
_QUEUE: Final = 5
_CALLS: Final = 8
_PROMPT: Final = 8
_DRAWN: Final = 2000  # characters of an unfinished block that are drawn as what they will be
_CLOCK: Final = 16  # columns for how long it runs, and what stands around that
_LEAST: Final = 8  # columns in which a text is worth showing
_MINUTE: Final = 60


class Picture:
    """Draws the parts for one size of the terminal."""

    def __init__(self, rows: int, columns: int, *, color: bool) -> None:
        self.pen = Pen(columns - 1, color=color)  # the last column is where terminals differ
        self._rows = rows
        self._tail: tuple[Block | None, list[str]] = (None, [])

    def tail(self, view: View) -> list[str]:
        """The last lines of the block that is still being written."""
        block = view.answer.tail
        if block is None:
            return []
        if self._tail[0] != block:
            self._tail = (block, self._draw(block))
        return self._tail[1][-min(_TAIL, self._rows // 2) :]

    def _draw(self, block: Block) -> list[str]:
        if len(block.text) > _DRAWN:
            return self.pen.say(block.text[-_DRAWN:], "")
        return self.pen.block(block)

    def calls(self, view: View) -> list[str]:
        """A line for each call that runs, as far as there is room."""
        most = max(3, min(_CALLS, self._rows // 3))
        calls = list(view.calls.values())
        shown = calls if len(calls) <= most else calls[: most - 1]
        now = time.time()
        lines = [self._call(call, now) for call in shown]
        if len(calls) > len(shown):
            lines.append(self.pen.paint(f"  … and {len(calls) - len(shown)} more", "dim"))
        return lines

    def _call(self, call: Call, now: float) -> str:
        mark, tone = ("■", "warn") if call.is_cancelling else ("⋯", "")
        room = max(self.pen.width - cells(call.name) - _CLOCK, _LEAST)
        text = f"{mark} {call.name} {short(call.arguments, room)}".rstrip() + f" · {elapsed(now - call.began)}"
        if call.is_cancelling:
            text += " · told to stop"
        room = self.pen.width - cells(text) - 3
        if call.progress and room > _LEAST:
            text += f" · {short(call.progress, room)}"
        return self.pen.paint(short(text, self.pen.width), tone)

    def queue(self, letters: list[Letter], view: View) -> list[str]:
        """What waits, and as what."""
        waiting = [each for each in letters if each.state in ("held", "accepted")]
        if not view.turn:
            waiting = [each for each in waiting if each.state == "held"]  # else it is about to begin
        shown = waiting if len(waiting) <= _QUEUE else waiting[: _QUEUE - 1]
        lines = []
        for each in shown:
            mode = "held" if each.state == "held" else "queued" if each.mode == "queue" else str(each.mode)
            line = f"  {mode:9} {short(each.text, self.pen.width - 12)}"
            lines.append(self.pen.paint(line, "warn" if mode == "held" else "dim"))
        if len(waiting) > len(shown):
            lines.append(self.pen.paint(f"  … and {len(waiting) - len(shown)} more", "dim"))
        if any(each.state == "held" for each in waiting):
            lines += self.pen.say("Enter on the empty line sends what is held, Alt+Up edits it", "dim", "  ")
        return lines

    def prompt(self, prompt: Prompt | None, more: int) -> list[str]:
        """What is asked."""
        if prompt is None:
            return []
        lines = self.pen.say(prompt.text, "warn", "? ")
        if prompt.choices:
            lines += [f"  {number}. {short(each, self.pen.width - 6)}" for number, each in enumerate(prompt.choices, 1)]
        how = "y or n, and Enter" if prompt.is_approval else "Enter answers"
        also = f"; {count(more, 'more question')} after this" if more else ""
        if len(lines) >= _PROMPT:
            lines = [*lines[: _PROMPT - 2], "  …"]
        return [*lines, self.pen.paint(f"  {how}{also}", "dim")]

    def hint(self, line: str) -> list[str]:
        """The commands that the line may become."""
        found = complete(line)
        return self.pen.say("  ".join(found), "dim", "  ") if found else []

    def status(self, view: View, model: str, doing: str) -> str:
        """Model, state, tokens and time, in one line."""
        parts = [short(model, 30), doing or view.state]
        if view.tokens:
            parts.append(count(view.tokens, "token"))
        if view.turn:
            parts.append(elapsed(time.time() - view.began))
        return self.pen.paint(short(" · ".join(parts), self.pen.width), "dim")


def elapsed(seconds: float) -> str:
    """How long something takes by now, as a clock shows it."""
    seconds = max(seconds, 0.0)
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // _MINUTE}:{int(seconds) % _MINUTE:02} min"
