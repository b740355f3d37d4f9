"""The terminal as it is drawn on: what stays above, and below it the picture with the line in which one types.

What stays is written once, into the terminal's own scrollback, together with the picture that follows it. A picture is
drawn when something has changed; for a mere key only what a key can change is made anew.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_input
from prompt_toolkit.layout import ConditionalContainer, Dimension, HSplit, Layout, Window
from prompt_toolkit.layout.controls import BufferControl, FormattedTextControl
from prompt_toolkit.output.color_depth import ColorDepth

from halter.cli.chat.blocks import Block
from halter.cli.chat.picture import Picture
from halter.cli.chat.terminal import Paper

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from prompt_toolkit.key_binding import KeyBindings

    from halter.cli.chat.terminal import Terminal
    from halter.cli.chat.view import Shown

__all__ = ["Canvas"]

# Seconds until an Esc is one, and not the beginning of another key; there are two looks, one behind the other.
_ESCAPE: Final = 0.025
_LEAST_LINES: Final = 3


class Canvas:
    """Draws parts above and below the line, each given as a function that makes its lines."""

    def __init__(
        self,
        terminal: Terminal,
        above: Sequence[Callable[[], list[str]]],
        below: Sequence[Callable[[], list[str]]],
        *,
        color: bool,
        on_begin: Callable[[], object],
        on_gone: Callable[[], object],
    ) -> None:
        """*on_begin* is told when somebody begins to type a line, and *on_gone* that the terminal takes no more."""
        self._terminal = terminal
        self._color = color
        self._above = [_Part(part) for part in above]
        self._below = [_Part(part) for part in below]
        self._on_begin = on_begin
        self._is_stale = True  # what is drawn is not how things stand
        self._height = 0
        self._last_kind = ""  # of what was written last
        self._was_empty = True
        self._paper = Paper(terminal, on_gone)
        self._buffer = Buffer(history=InMemoryHistory(), multiline=True, on_text_changed=self._on_text)
        self.picture = self._make_picture()

    def make_app(self, keys: KeyBindings) -> Application[None]:
        """Make what draws it and hears the keys."""
        self._app: Application[None] = Application(
            layout=self._layout(),
            key_bindings=keys,
            input=create_input(),
            output=self._paper,
            color_depth=ColorDepth.DEPTH_4_BIT if self._color else ColorDepth.DEPTH_1_BIT,
            erase_when_done=True,
            terminal_size_polling_interval=None,
            before_render=self._before_drawing,
        )
        self._app.ttimeoutlen = self._app.timeoutlen = _ESCAPE
        return self._app

    def _layout(self) -> Layout:
        typing = Window(
            BufferControl(self._buffer),
            wrap_lines=True,
            dont_extend_height=True,
            height=lambda: Dimension(min=1, max=self._most_lines()),
            get_line_prefix=lambda number, wrapped: "> " if not number and not wrapped else "  ",
        )
        above = [part.container() for part in self._above]
        return Layout(HSplit([*above, typing, *(part.container() for part in self._below)]), focused_element=typing)

    def _most_lines(self) -> int:
        """How many lines of what is typed are shown at once."""
        return max(_LEAST_LINES, self._terminal.size().rows // 3)

    def _make_picture(self) -> Picture:
        size = self._terminal.size()
        return Picture(size.rows, size.columns, color=self._color)

    # -- the line ----------------------------------------------------------------------------------------------------

    @property
    def line(self) -> str:
        """What is being typed."""
        return self._buffer.text

    @line.setter
    def line(self, text: str) -> None:
        self._buffer.set_document(Document(text, len(text)), bypass_readonly=True)

    def empty_line(self, remembered: str) -> None:
        """Begin a new line; what is *remembered* comes back by the arrow keys."""
        if remembered.strip():
            self._buffer.history.append_string(remembered)
        self._buffer.reset()  # the arrow keys begin at the end again; and nobody is told that the text has changed
        self._was_empty = True

    def _on_text(self, _buffer: Buffer) -> None:
        is_empty = not self.line
        if self._was_empty and not is_empty:
            self._on_begin()
        self._was_empty = is_empty

    # -- drawing -----------------------------------------------------------------------------------------------------

    def draw(self) -> None:
        """Have the picture drawn, soon."""
        self._is_stale = True
        self._app.invalidate()

    def resize(self) -> None:
        """Draw for another size."""
        self.picture = self._make_picture()
        self._erase()
        self.draw()

    def write(self, shown: Sequence[Shown], seconds: float = math.inf) -> list[Shown]:
        """Write what is to stay, above the picture; gives what could not be drawn in time: somebody may be typing."""
        lines: list[str] = []
        pen = self.picture.pen
        end = time.monotonic() + seconds
        left = list(shown)
        while left and (not lines or time.monotonic() < end):
            each = left.pop(0)
            kind = "block" if isinstance(each, Block) else "user" if each.tone == "user" else "note"
            if self._last_kind and _needs_gap(self._last_kind, kind, each):
                lines.append("")
            self._last_kind = kind
            lines += pen.block(each) if isinstance(each, Block) else pen.say(each.text, each.tone, each.lead)
        if lines:
            self._erase()
            self._paper.write_raw("\r\n".join([*lines, ""]))
        return left

    def _erase(self) -> None:
        """Take the picture away; what takes its place is written together with that, by the next drawing."""
        self._paper.is_held = True
        self._app.renderer.erase(leave_alternate_screen=False)
        self._height = 0

    def _before_drawing(self, _app: Application[None]) -> None:
        """Have each part made once, or for a mere key none but those below the line.

        A picture that has become lower would keep its height, with empty lines at its end: it is taken away before.
        """
        for part in [*self._above, *self._below] if self._is_stale else self._below:
            part.draw()
        self._is_stale = False
        typed = self._buffer.document.line_count + len(self.line) // self.picture.pen.width
        height = sum(part.height for part in [*self._above, *self._below]) + min(typed, self._most_lines())
        if height < self._height:
            self._erase()
        self._height = height
        self._paper.is_held = False


def _needs_gap(last: str, kind: str, shown: Shown) -> bool:
    """Whether there is an empty line in front of something, by what was written last."""
    if isinstance(shown, Block):
        return not shown.continues
    return last != kind and not (last == "user" and shown.lead == "↳ ")


class _Part:
    """Some lines of the picture, which may be none."""

    def __init__(self, lines: Callable[[], list[str]]) -> None:
        self._lines = lines
        self._drawn: list[str] = []
        self._text = ANSI("")

    @property
    def height(self) -> int:
        """The number of its lines."""
        return len(self._drawn)

    def draw(self) -> None:
        """Draw it anew. Reading colours takes longer than comparing."""
        drawn = self._lines()
        if drawn != self._drawn:
            self._drawn, self._text = drawn, ANSI("\n".join(drawn))

    def container(self) -> ConditionalContainer:
        """Its place in the layout."""
        control = FormattedTextControl(lambda: self._text)
        window = Window(control, height=Dimension(min=0), dont_extend_height=True)
        return ConditionalContainer(window, filter=Condition(lambda: bool(self._drawn)))
