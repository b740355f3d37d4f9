"""The layout of the terminal: the conversation in the scrollback, below it the live area with the input line.

The conversation is written once, into the terminal's own scrollback, together with the live area that follows it. The
live area is drawn when something has changed; after a mere key only what a key can change is made again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from typing import TYPE_CHECKING, Final

from prompt_toolkit.application import Application, in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.input import create_input
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.layout import ConditionalContainer, Dimension, Layout, Window
from prompt_toolkit.layout.controls import BufferControl, FormattedTextControl
from prompt_toolkit.output.color_depth import ColorDepth
from prompt_toolkit.widgets import SearchToolbar

from halter.cli.chat.screen.buffered_output import BufferedOutput
from halter.cli.chat.screen.live_area import LiveArea
from halter.cli.chat.screen.live_rows import LiveRows
from halter.cli.chat.screen.markdown_blocks import Block
from halter.cli.chat.screen.styling import cells
from halter.cli.chat.screen.terminal_images import image_protocol, image_sequence
from halter.models.types import Image

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings

    from halter.cli.chat.notices import Notice
    from halter.cli.chat.screen.terminal import TerminalDevice
    from halter.cli.chat.screen.transcript import Finished

__all__ = ["ScreenLayout"]

# Seconds until an Esc counts as a key of its own, not as the start of a sequence; prompt_toolkit waits that long twice.
_ESCAPE_TIMEOUT: Final = 0.025
_MIN_LINES: Final = 3
_ESC: Final = "\x1b"
# Seconds without a further resize before it is drawn again. A terminal that wraps rows moves the live area up when it
# becomes narrower; with a drawing for each step of a dragged window it would arrive at the top, and scroll away.
_RESIZE_DELAY: Final = 0.1


class ScreenLayout:
    """Draws parts above and below the input line; each part is a function that returns its lines."""

    def __init__(
        self,
        terminal: TerminalDevice,
        above: Sequence[Callable[[], list[str]]],
        below: Sequence[Callable[[], list[str]]],
        *,
        color: bool,
        theme: str,
        history: History,
        on_begin: Callable[[], object],
        on_closed: Callable[[], object],
    ) -> None:
        """*on_begin* is called when the user starts to type a line, *on_closed* when the terminal accepts no output."""
        self._terminal = terminal
        self._color = color
        self._theme = theme
        self._above = [_LayoutPart(part) for part in above]
        self._below = [_LayoutPart(part) for part in below]
        self._on_begin = on_begin
        self._is_stale = True  # something has changed since the last drawing
        self._height = 0
        self._drawn_for = terminal.size()
        self._settling: asyncio.TimerHandle | None = None
        self._last_kind = ""  # of what was written last
        self._images = image_protocol()
        self._was_empty = True
        self._output = BufferedOutput(terminal, on_closed)
        self._buffer = Buffer(history=history, multiline=True, on_text_changed=self._on_text)
        self._search = SearchToolbar(
            backward_search_prompt="  search your input (Ctrl+R: older, Enter: use it, Esc: cancel): "
        )
        self.live_area = self._make_live_area()

    def make_app(self, keys: KeyBindings) -> Application[None]:
        """Make the prompt_toolkit application."""
        self._input = create_input()
        self._app: Application[None] = Application(
            layout=self._layout(),
            key_bindings=keys,
            input=self._input,
            output=self._output,
            color_depth=ColorDepth.DEPTH_4_BIT if self._color else ColorDepth.DEPTH_1_BIT,
            erase_when_done=True,
            terminal_size_polling_interval=None,
            before_render=self._before_drawing,
        )
        self._app.ttimeoutlen = self._app.timeoutlen = _ESCAPE_TIMEOUT
        return self._app

    def feed_keys(self, typed: str) -> None:
        """Queue keys that were typed earlier: they are handled first when the application starts."""
        if typed and isinstance(self._input, Vt100Input):
            self._input.vt100_parser.feed(typed)  # the rest of a key that was cut here comes by the same parser
            keys = self._input.read_keys()
            store_typeahead(self._input, [*keys, *(self._input.flush_keys() if typed.endswith(_ESC) else [])])

    def _layout(self) -> Layout:
        typing = Window(
            BufferControl(self._buffer, search_buffer_control=self._search.control, preview_search=True),
            wrap_lines=True,
            dont_extend_height=True,
            height=lambda: Dimension(min=1, max=self._max_lines()),
            get_line_prefix=lambda number, wrapped: "> " if not number and not wrapped else "  ",
        )
        above = [part.container() for part in self._above]
        below = [part.container() for part in self._below]
        self._rows = LiveRows([*above, typing, self._search, *below])
        return Layout(self._rows, focused_element=typing)

    def _max_lines(self) -> int:
        """The maximum height of the input line."""
        return max(_MIN_LINES, self._terminal.size().rows // 3)

    def _make_live_area(self) -> LiveArea:
        size = self._terminal.size()
        return LiveArea(size.rows, size.columns, color=self._color, theme=self._theme)

    @property
    def theme(self) -> str:
        """The theme of the colours."""
        return self._theme

    @theme.setter
    def theme(self, theme: str) -> None:
        self._theme = theme
        self.live_area = self._make_live_area()
        self.draw()

    # -- the line ----------------------------------------------------------------------------------------------------

    @property
    def line(self) -> str:
        """The text of the input line."""
        return self._buffer.text

    @line.setter
    def line(self, text: str) -> None:
        self._buffer.set_document(Document(text, len(text)), bypass_readonly=True)

    def empty_line(self, remembered: str) -> None:
        """Start a new line; the arrow keys bring back *remembered*."""
        if remembered.strip():
            self._buffer.history.append_string(remembered)
        self._buffer.reset()  # the arrow keys start at the end again; `on_text_changed` is not called
        self._was_empty = True

    def _on_text(self, _buffer: Buffer) -> None:
        is_empty = not self.line
        if self._rows.may_move_cursor and not self.line.isascii():
            self._rows.may_move_cursor = not any(each.isalpha() and cells(each) > 1 for each in self.line)
        if self._was_empty and not is_empty:
            self._on_begin()
        self._was_empty = is_empty

    @property
    def before_cursor(self) -> str:
        """The text of the input line as far as the cursor."""
        return self._buffer.document.text_before_cursor

    def replace_before_cursor(self, start: int, text: str) -> None:
        """Replace what is before the cursor, from *start* on."""
        document = self._buffer.document
        after = document.text_after_cursor
        whole = f"{document.text[:start]}{text}"
        self._buffer.set_document(Document(f"{whole}{after}", len(whole)), bypass_readonly=True)

    @contextlib.asynccontextmanager
    async def suspended(self) -> AsyncIterator[None]:
        """Hand the terminal to another program, with the live area erased."""
        async with in_terminal():
            self._output.is_held = False
            self._output.flush()
            self._height = 0
            yield

    # -- drawing -----------------------------------------------------------------------------------------------------

    def draw(self) -> None:
        """Draw the live area, soon."""
        self._is_stale = True
        self._app.invalidate()

    def resize(self) -> None:
        """Draw for a new size, as soon as that stays."""
        if self._settling is not None:
            self._settling.cancel()
        self._drawn_for = self._terminal.size()
        self._output.is_held = True
        self._settling = asyncio.get_running_loop().call_later(_RESIZE_DELAY, self._settle)

    def _settle(self) -> None:
        self._settling = None
        self.live_area = self._make_live_area()
        self._erase()
        self.draw()

    def write(self, shown: Sequence[Finished], seconds: float = math.inf) -> list[Finished]:
        """Write what is finished above the live area; returns what did not fit into the time: keys come first."""
        lines: list[str] = []
        styler = self.live_area.styler
        end = time.monotonic() + seconds
        left = list(shown)
        while left and (not lines or time.monotonic() < end):
            each = left.pop(0)
            if isinstance(each, Image):
                lines += [image] if (image := image_sequence(each, self._images)) else []
                continue
            kind = "block" if isinstance(each, Block) else "user" if each.tone == "user" else "note"
            if self._last_kind and _needs_gap(self._last_kind, kind, each):
                lines.append("")
            self._last_kind = kind
            lines += styler.block(each) if isinstance(each, Block) else styler.say(each.text, each.tone, each.lead)
        if lines:
            self._erase()
            self._output.write_raw("\r\n".join([*lines, ""]))
        return left

    def _erase(self) -> None:
        """Erase the live area; what replaces it is written together with that by the next drawing."""
        self._output.is_held = True
        self._app.renderer.erase(leave_alternate_screen=False)
        self._height = 0

    def _before_drawing(self, _app: Application[None]) -> None:
        """Make each part once; after a mere key only those below the input line.

        A live area that has become lower would keep its height, with empty lines at its end: it is erased first.
        """
        if self._terminal.size() != self._drawn_for:  # and SIGWINCH is still on its way
            self.resize()
        for part in [*self._above, *self._below] if self._is_stale else self._below:
            part.draw()
        self._is_stale = False
        typed = self._buffer.document.line_count + len(self.line) // self.live_area.styler.width
        height = sum(part.height for part in [*self._above, *self._below]) + min(typed, self._max_lines())
        if height < self._height:
            self._erase()
        self._height = height
        self._output.is_held = self._settling is not None and not self._app.is_done


def _needs_gap(last: str, kind: str, shown: Notice | Block) -> bool:
    """Whether an empty line is needed between what was written last and this."""
    if isinstance(shown, Block):
        return not shown.continues
    return last != kind and not (last == "user" and shown.lead == "↳ ")


class _LayoutPart:
    """Some lines of the live area, possibly none."""

    def __init__(self, lines: Callable[[], list[str]]) -> None:
        self._lines = lines
        self._drawn: list[str] = []
        self._text = ANSI("")

    @property
    def height(self) -> int:
        """The number of its lines."""
        return len(self._drawn)

    def draw(self) -> None:
        """Draw it again, if it has changed: parsing colours is slower than comparing."""
        drawn = self._lines()
        if drawn != self._drawn:
            self._drawn, self._text = drawn, ANSI("\n".join(drawn))

    def container(self) -> ConditionalContainer:
        """Its place in the layout."""
        control = FormattedTextControl(lambda: self._text)
        window = Window(control, height=Dimension(min=0), dont_extend_height=True)
        return ConditionalContainer(window, filter=Condition(lambda: bool(self._drawn)))
