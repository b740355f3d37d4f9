"""The keys of the chat. Other keys (arrows, Ctrl+A, Ctrl+W, Ctrl+R) do what prompt_toolkit defines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prompt_toolkit.filters import Condition, is_searching
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.search import stop_search

if TYPE_CHECKING:
    from prompt_toolkit.key_binding.key_processor import KeyPressEvent

    from halter.cli.chat.chat_ui import ChatUI

__all__ = ["make_keys"]


def make_keys(ui: ChatUI) -> KeyBindings:
    """Bind the keys."""
    keys = KeyBindings()
    actions = ui.actions
    is_empty = Condition(lambda: not ui.line)
    is_typing = ~is_searching

    @keys.add("enter", filter=is_typing)
    def enter(event: KeyPressEvent) -> None:
        before = event.current_buffer.document.current_line_before_cursor
        if before.endswith("\\"):
            event.current_buffer.delete_before_cursor()
            event.current_buffer.newline(copy_margin=False)
        else:
            ui.enter()

    @keys.add("tab", filter=is_typing)
    def tab(_event: KeyPressEvent) -> None:
        ui.complete_line()

    @keys.add("escape", "enter", filter=is_typing)
    def alt_enter(_event: KeyPressEvent) -> None:
        ui.enter("queue")

    @keys.add("escape", "up", filter=is_typing)
    def alt_up(_event: KeyPressEvent) -> None:
        actions.edit_last()

    @keys.add("escape", filter=is_typing)
    def escape(_event: KeyPressEvent) -> None:
        actions.escape()

    @keys.add("c-c", filter=is_typing)
    def ctrl_c(_event: KeyPressEvent) -> None:
        actions.press_ctrl_c()

    @keys.add("c-o", filter=is_typing)
    def ctrl_o(_event: KeyPressEvent) -> None:
        ui.show_output()

    @keys.add("c-d", filter=is_empty)
    def ctrl_d(_event: KeyPressEvent) -> None:
        ui.quit(0, "Ctrl+D")

    _bind_search(keys)
    return keys


def _bind_search(keys: KeyBindings) -> None:
    """The keys that leave the search in the history; the others are prompt_toolkit's own."""

    @keys.add("escape", filter=is_searching, eager=True)
    @keys.add("c-c", filter=is_searching)
    def leave_search(_event: KeyPressEvent) -> None:
        stop_search()
