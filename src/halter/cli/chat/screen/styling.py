"""Markdown blocks and notices as lines for a terminal of a given width, with or without colour."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from prompt_toolkit.utils import get_cwidth

from halter.views.text import strip_controls

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console, RenderableType

    from halter.cli.chat.screen.markdown_blocks import Block

__all__ = ["THEMES", "Styler", "Tone", "cells", "find_theme", "fold", "short", "warm_up"]

Tone = str
_DARK: Final[dict[Tone, str]] = {
    "good": "32",
    "bad": "31",
    "warn": "33",
    "dim": "2",
    "user": "1;36",
    "head": "1",
    "": "",
    "added": "32",
    "removed": "31",
    "doing": "1;36",
}
# Yellow and bright cyan cannot be read on white.
THEMES: Final = {"dark": _DARK, "light": _DARK | {"warn": "35", "user": "1;34", "doing": "1;34"}}
"""The colours of each tone, for dark and for light terminals."""
_MIN_WIDTH: Final = 20  # columns
_TAB_WIDTH: Final = 4  # columns
_WHITE: Final = ("7", "15")  # the colour numbers of a light background


def find_theme(wanted: str, env: Mapping[str, str] = os.environ) -> str:
    """The theme of the setting; for "auto" that of the terminal's background, if the terminal reports it."""
    if wanted in THEMES:
        return wanted
    return "light" if env.get("COLORFGBG", "").rpartition(";")[2] in _WHITE else "dark"


def warm_up() -> None:
    """Import what drawing needs, in a thread, before the first answer comes.

    None of it ever becomes garbage, so it is frozen: a collection of it would delay a key noticeably.
    """
    import gc

    from halter.cli.chat.screen.markdown_blocks import MarkdownBlocks

    styler, answer = Styler(_MIN_WIDTH, color=True), MarkdownBlocks()
    answer.add("- **warm** `up`\n```python\npass\n```\n")
    for block in answer.end():
        styler.block(block)
    gc.freeze()


def short(text: str, width: int) -> str:
    """The start of a text, in one line of at most *width* columns."""
    line = " ".join(strip_controls(text[: width * 4]).split())
    return line if cells(line) <= width else f"{line[: _fitting(line, width - 1)]}…"


def cells(text: str) -> int:
    """The width of a text in columns: some characters take two, and some none."""
    return len(text) if text.isascii() else get_cwidth(text)


def fold(line: str, room: int) -> list[str]:
    """Break a line between words, and within a word that is too wide."""
    pieces: list[str] = []
    piece = ""
    for number, word in enumerate(line.split(" ")):
        joined = f"{piece} {word}" if number else word
        if cells(joined) <= room:
            piece = joined
            continue
        if piece.strip():
            pieces.append(piece.rstrip())
        piece = word
        while cells(piece) > room:
            cut = _fitting(piece, room)
            pieces.append(piece[:cut])
            piece = piece[cut:]
    return [*pieces, piece]


def _fitting(word: str, room: int) -> int:
    """How many characters of a word fit; at least one."""
    width = 0
    for number, each in enumerate(word):
        width += cells(each)
        if width > room:
            return max(number, 1)
    return len(word)


class Styler:
    """Draws for one width."""

    def __init__(self, width: int, *, color: bool, theme: str = "dark") -> None:
        self.width = max(width, _MIN_WIDTH)
        self._color = color
        self._theme = theme
        self._rich_console: Console | None = None

    def paint(self, text: str, tone: Tone) -> str:
        """One text in one tone."""
        code = THEMES[self._theme][tone]
        return f"\x1b[{code}m{text}\x1b[0m" if code and self._color and text else text

    def say(self, text: str, tone: Tone, lead: str = "") -> list[str]:
        """Lines of plain text, the first behind *lead* and the others below it.

        Of what went well only the lead has the colour: what did not must stand out.
        """
        indent = " " * cells(lead)
        lines: list[str] = []
        is_plain = tone == "good" and bool(lead.strip())
        for line in strip_controls(text).expandtabs(_TAB_WIDTH).split("\n"):
            for piece in fold(line, self.width - len(indent)):
                before = lead if not lines else indent
                lines.append(f"{self.paint(before, tone)}{piece}" if is_plain else self.paint(before + piece, tone))
        return lines

    def block(self, block: Block) -> list[str]:
        """A block of Markdown."""
        from rich.markdown import Markdown

        from halter.cli.chat.screen.markdown_blocks import markdown_parser

        text = strip_controls(block.text).expandtabs(_TAB_WIDTH)
        if block.kind == "code":
            return self._code(text, block.language)
        if block.kind == "heading":
            text = f"**{text}**" if text else ""
        drawn = Markdown("", code_theme=f"ansi_{self._theme}", hyperlinks=False)
        drawn.parsed = markdown_parser().parse(text)  # rich's own parser loses what looks like HTML
        return self._draw(drawn)

    def _code(self, text: str, language: str) -> list[str]:
        from rich.padding import Padding
        from rich.syntax import Syntax

        code = Syntax(text, language or "text", theme=f"ansi_{self._theme}", background_color="default", word_wrap=True)
        return self._draw(Padding(code, (0, 0, 0, 2)))

    def _draw(self, renderable: RenderableType) -> list[str]:
        console = self._console()
        with console.capture() as drawn:
            console.print(renderable)
        lines = [line.rstrip() for line in drawn.get().split("\n")]
        used = [number for number, line in enumerate(lines) if line]
        return lines[used[0] : used[-1] + 1] if used else []

    def _console(self) -> Console:
        if self._rich_console is None:
            import io

            from rich.console import Console

            self._rich_console = Console(
                file=io.StringIO(),
                width=self.width,
                force_terminal=self._color,
                color_system="standard" if self._color else None,
                no_color=not self._color,
                highlight=False,
                legacy_windows=False,
                force_interactive=False,
                force_jupyter=False,
                _environ={},
            )
        return self._rich_console
