"""Where the cursor is while the live area has rows above the input line: in its first row, so that a resize is safe.

A terminal that becomes narrower wraps the rows again, or cuts them: no program can know how many there are then. But
every terminal keeps the cursor in its row. The first row is empty, so it stays one row, and below its beginning there
is the live area and nothing else. Erasing from there removes exactly the live area.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prompt_toolkit.data_structures import Point
from prompt_toolkit.layout import HSplit
from prompt_toolkit.layout.screen import Char

if TYPE_CHECKING:
    from prompt_toolkit.layout.mouse_handlers import MouseHandlers
    from prompt_toolkit.layout.screen import Screen, WritePosition

__all__ = ["LiveRows"]


class LiveRows(HSplit):
    """The rows of the live area, the first of which is empty.

    If there are rows between that one and the cursor, the cursor is hidden at the beginning of the first, and drawn
    as a reversed character where it belongs.
    """

    # An input method shows what is being composed at the real cursor. False once somebody has used one.
    may_move_cursor = True

    def write_to_screen(
        self,
        screen: Screen,
        mouse_handlers: MouseHandlers,
        write_position: WritePosition,
        parent_style: str,
        erase_bg: bool,  # noqa: FBT001  (the base class has it so)
        z_index: int | None,
    ) -> None:
        """Draw the rows, then place the cursor."""
        super().write_to_screen(screen, mouse_handlers, write_position, parent_style, erase_bg, z_index)
        if not self.may_move_cursor:
            return
        for window, place in list(screen.cursor_positions.items()):  # only the window with the focus has one
            if place.y > 1:
                row = screen.data_buffer[place.y]
                row[place.x] = Char(row[place.x].char, f"{row[place.x].style} reverse")
                screen.set_cursor_position(window, Point(x=0, y=0))
                screen.show_cursor = False
