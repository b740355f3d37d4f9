"""The keys of the chat. What is not here does what it does in other lines: arrows, Ctrl+A, Ctrl+W and their kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prompt_toolkit.filters import Condition
from prompt_toolkit.key_binding import KeyBindings

from halter.cli.chat.commands import complete

if TYPE_CHECKING:
    from prompt_toolkit.key_binding.key_processor import KeyPressEvent

    from halter.cli.chat.face import Face

__all__ = ["make_keys"]


def make_keys(face: Face) -> KeyBindings:
    """Bind the keys to what they do."""
    keys = KeyBindings()
    actions = face.actions
    is_empty = Condition(lambda: not face.line)

    @keys.add("enter")
    def enter(event: KeyPressEvent) -> None:
        before = event.current_buffer.document.current_line_before_cursor
        if before.endswith("\\"):
            event.current_buffer.delete_before_cursor()
            event.current_buffer.newline(copy_margin=False)
        else:
            face.enter()

    @keys.add("tab")
    def tab(_event: KeyPressEvent) -> None:
        found = complete(face.line)
        if found:
            face.line = _common(found) + (" " if len(found) == 1 else "")
        else:
            face.enter("queue")

    @keys.add("escape", "enter")
    def alt_enter(_event: KeyPressEvent) -> None:
        face.enter("queue")

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
        face.leave(0, "Ctrl+D")

    return keys


def _common(words: list[str]) -> str:
    """How all of them begin."""
    first, last = min(words), max(words)
    same = 0
    while same < len(first) and first[same] == last[same]:
        same += 1
    return first[:same]
