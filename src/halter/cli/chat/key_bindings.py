"""The keys of the chat. Other keys (arrows, Ctrl+A, Ctrl+W) do what prompt_toolkit defines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prompt_toolkit.filters import Condition
from prompt_toolkit.key_binding import KeyBindings

from halter.cli.chat.slash_commands import complete

if TYPE_CHECKING:
    from prompt_toolkit.key_binding.key_processor import KeyPressEvent

    from halter.cli.chat.chat_ui import ChatUI

__all__ = ["make_keys"]


def make_keys(ui: ChatUI) -> KeyBindings:
    """Bind the keys."""
    keys = KeyBindings()
    actions = ui.actions
    is_empty = Condition(lambda: not ui.line)

    @keys.add("enter")
    def enter(event: KeyPressEvent) -> None:
        before = event.current_buffer.document.current_line_before_cursor
        if before.endswith("\\"):
            event.current_buffer.delete_before_cursor()
            event.current_buffer.newline(copy_margin=False)
        else:
            ui.enter()

    @keys.add("tab")
    def tab(_event: KeyPressEvent) -> None:
        found = complete(ui.line)
        if found:
            ui.line = _common(found) + (" " if len(found) == 1 else "")
        else:
            ui.enter("queue")

    @keys.add("escape", "enter")
    def alt_enter(_event: KeyPressEvent) -> None:
        ui.enter("queue")

    @keys.add("escape", "up")
    def alt_up(_event: KeyPressEvent) -> None:
        actions.edit_last()

    @keys.add("escape")
    def escape(_event: KeyPressEvent) -> None:
        actions.escape()

    @keys.add("c-c")
    def ctrl_c(_event: KeyPressEvent) -> None:
        actions.press_ctrl_c()

    @keys.add("c-d", filter=is_empty)
    def ctrl_d(_event: KeyPressEvent) -> None:
        ui.leave(0, "Ctrl+D")

    return keys


def _common(words: list[str]) -> str:
    """Their common prefix."""
    first, last = min(words), max(words)
    same = 0
    while same < len(first) and first[same] == last[same]:
        same += 1
    return first[:same]
