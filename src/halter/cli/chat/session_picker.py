"""`halter --resume`: a list of the sessions to choose from, with the arrow keys or by typing a part of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prompt_toolkit.application import Application
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.layout import HSplit, Layout, Window
from prompt_toolkit.layout.controls import FormattedTextControl

from halter.cli.chat.screen.styling import short

if TYPE_CHECKING:
    from prompt_toolkit.formatted_text import StyleAndTextTuples
    from prompt_toolkit.key_binding.key_processor import KeyPressEvent

    from halter.cli.chat.screen.terminal import TerminalDevice

__all__ = ["pick_session"]

_TITLE: Final = "Which session? Up/Down: select · Enter: open · Esc: cancel · type to search\n"
_ESCAPE_TIMEOUT: Final = 0.025  # seconds until an Esc counts as a key of its own
_ROWS_FOR_OTHERS: Final = 4


def pick_session(rows: list[tuple[str, str]], terminal: TerminalDevice) -> str | None:
    """Let the user choose one of *rows*, each an id and a line; returns the id, None if none was chosen."""
    return _Picker(rows, terminal).run()


class _Picker:
    def __init__(self, rows: list[tuple[str, str]], terminal: TerminalDevice) -> None:
        self._rows = rows
        self._terminal = terminal
        self._filter = ""
        self._selected = 0

    def run(self) -> str | None:
        app: Application[str | None] = Application(
            layout=Layout(HSplit([Window(FormattedTextControl(self._text, focusable=True), wrap_lines=False)])),
            key_bindings=self._keys(),
            erase_when_done=True,
        )
        app.ttimeoutlen = app.timeoutlen = _ESCAPE_TIMEOUT
        return app.run(handle_sigint=False)

    @property
    def _shown(self) -> list[tuple[str, str]]:
        wanted = self._filter.casefold()
        return [row for row in self._rows if wanted in row[1].casefold()]

    def _text(self) -> StyleAndTextTuples:
        size = self._terminal.size()
        max_rows = max(3, size.rows - _ROWS_FOR_OTHERS)
        first = max(0, min(self._selected - max_rows // 2, len(self._shown) - max_rows))
        parts: StyleAndTextTuples = [("", _TITLE)]
        for number, (_, line) in enumerate(self._shown[first : first + max_rows], first):
            is_chosen = number == self._selected
            text = short(f"{'>' if is_chosen else ' '} {line}", size.columns - 1)
            parts.append(("bold" if is_chosen else "", f"{text}\n"))
        if not self._shown:
            parts.append(("", "  no match\n"))
        return [*parts, ("", f"search: {self._filter}")]

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("up")
        def up(_event: KeyPressEvent) -> None:
            self._selected = max(self._selected - 1, 0)

        @keys.add("down")
        def down(_event: KeyPressEvent) -> None:
            self._selected = min(self._selected + 1, max(len(self._shown) - 1, 0))

        @keys.add("enter")
        def enter(event: KeyPressEvent) -> None:
            if self._shown:
                event.app.exit(result=self._shown[self._selected][0])

        @keys.add("escape")
        @keys.add("c-c")
        @keys.add("c-d")
        def cancel(event: KeyPressEvent) -> None:
            event.app.exit(result=None)

        @keys.add("backspace")
        def backspace(_event: KeyPressEvent) -> None:
            self._search(self._filter[:-1])

        @keys.add("<any>")
        def letter(event: KeyPressEvent) -> None:
            if event.data.isprintable():
                self._search(self._filter + event.data)

        return keys

    def _search(self, text: str) -> None:
        self._filter, self._selected = text, 0
