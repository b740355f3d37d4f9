"""Record a stop as a moving picture: the real chat in a pseudo-terminal, against a provider that follows a script.

    python docs/stop_picture.py [docs/stop.svg]

Needs what the tests need. The screen is taken at some moments; how long each is shown is decided here, what it shows is
not. A line that several moments have in common is drawn once. The picture loads nothing, and needs no script.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.terminal_theme import SVG_EXPORT_THEME

from halter.models import ToolCall
from halter.testing import FakeProvider, answer, tool_calls
from tests.support.chat_screen import ENTER, ESC, ChatScreen
from tests.support.cli_program import Home

if TYPE_CHECKING:
    from rich.style import Style

    Line = tuple[tuple[str, Style], ...]
    Moment = tuple[float, list[Line]]  # for how many seconds it is shown, and the lines of the screen

_ROWS: Final = 16
_COLUMNS: Final = 78
_WIDTH, _HEIGHT, _MARGIN = 7.8, 17.0, 14.0  # of a cell, and around the screen
_TOOLS: Final = '''
from halter import ToolContext, run_process, tool


@tool
async def run_tests(folder: str, ctx: ToolContext) -> str:
    """Run the tests of a folder."""
    def show(piece: bytes) -> None:
        ctx.report(piece.decode().split("\\n")[-2])

    result = await run_process(f"echo 12 passed in {folder}; sleep 600", on_output=show)
    return result.stdout.decode()


tools = [run_tests]
'''


def record() -> list[Moment]:
    """Play the scene: a turn with three commands, Esc, and the turn after it."""
    calls = [ToolCall(str(n), "run_tests", f'{{"folder": "{name}"}}') for n, name in enumerate(("core", "web", "cli"))]
    script = (
        tool_calls(calls, text="I will run all three suites."),
        answer("The first suite has 12 passing tests so far; I did not wait for the rest."),
    )
    with tempfile.TemporaryDirectory() as folder, FakeProvider(*script) as provider:
        home = Home(Path(folder), provider)
        home.env |= {"HALTER_TOOLS": f"{home.write_module(_TOOLS)}:tools", "HALTER_MODEL": "openai:gpt-5"}
        with ChatScreen(home, rows=_ROWS, columns=_COLUMNS) as chat:
            return _play(chat)


def _play(chat: ChatScreen) -> list[Moment]:
    moments: list[Moment] = []

    def show(seconds: float) -> None:
        moments.append((seconds, [_runs(line) for line in chat.cells()]))

    def type_slowly(text: str) -> None:
        for end in range(8, len(text) + 8, 8):
            chat.type(text[end - 8 : end])
            chat.wait_for_line(text[:end])
            show(0.25)

    chat.wait_ready()
    chat.type("\x0c")  # Ctrl+L: the scene begins on an empty screen
    chat.wait_ready()
    show(0.8)
    type_slowly("Run all the tests.")
    chat.type(ENTER)
    chat.wait_for("12 passed in core", "12 passed in web", "12 passed in cli")
    show(2.5)
    chat.type(ESC)
    chat.wait_for("■ stopped in")
    chat.wait_ready()
    show(3.5)
    type_slowly("What do you know so far?")
    chat.type(ENTER)
    chat.wait_for("did not wait for the rest")
    chat.wait_ready()
    show(4.0)
    return moments


def _runs(line: list[tuple[str, Style]]) -> Line:
    """A line of the screen, with neighbours of one style together and without the spaces at its end."""
    runs = [
        ("".join(text for text, _ in group), style) for style, group in itertools.groupby(line, lambda cell: cell[1])
    ]
    while runs and not runs[-1][0].strip() and not runs[-1][1].reverse:
        runs.pop()
    return tuple(runs)


def draw(moments: list[Moment]) -> str:
    """The picture: each line is shown in the moments that have it."""
    total = sum(seconds for seconds, _ in moments)
    starts = [sum(seconds for seconds, _ in moments[:n]) for n in range(len(moments) + 1)]
    shown: dict[tuple[int, Line], list[int]] = {}
    for number, (_, lines) in enumerate(moments):
        for row, line in enumerate(lines):
            if line:
                shown.setdefault((row, line), []).append(number)
    rules: dict[tuple[int, ...], str] = {}
    texts = []
    for (row, line), numbers in shown.items():
        name = ""
        if len(numbers) < len(moments):
            name = rules.setdefault(tuple(numbers), f"m{len(rules)}")
        texts.append(_text(row, line, name))
    css = "".join(_rule(name, set(numbers), starts, total) for numbers, name in rules.items())
    width, height = _COLUMNS * _WIDTH + 2 * _MARGIN, _ROWS * _HEIGHT + 2 * _MARGIN
    back, front = SVG_EXPORT_THEME.background_color.hex, SVG_EXPORT_THEME.foreground_color.hex
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="Three commands run; Esc stops them at once; the conversation goes on.">\n'
        f"<style>text{{font:13px ui-monospace,Menlo,Consolas,monospace;fill:{front};white-space:pre}}\n{css}</style>\n"
        f'<rect width="100%" height="100%" rx="8" fill="{back}"/>\n' + "\n".join(texts) + "\n</svg>\n"
    )


def _rule(name: str, numbers: set[int], starts: list[float], total: float) -> str:
    """Keyframes that show something in these moments only. Without animation the last moment is shown."""
    last = len(starts) - 2
    frames = "".join(
        f"{100 * start / total:.2f}%{{visibility:{'visible' if number in numbers else 'hidden'}}}"
        for number, start in enumerate(starts[:-1])
        if number == 0 or (number in numbers) != (number - 1 in numbers)
    )
    rest = "visible" if last in numbers else "hidden"
    return (
        f"@keyframes {name}{{{frames}100%{{visibility:{rest}}}}}\n"
        f".{name}{{visibility:{rest};animation:{name} {total:g}s step-end infinite}}\n"
    )


def _text(row: int, line: Line, name: str) -> str:
    column, spans = 0, []
    for text, style in line:
        if text.strip() or style.reverse:
            spans.append(
                f'<tspan x="{_MARGIN + column * _WIDTH:.1f}"{_look(style)}>{escape(text.rstrip(), quote=False)}</tspan>'
            )
        column += len(text)
    of = f' class="{name}"' if name else ""
    return f'<text{of} y="{_MARGIN + (row + 0.75) * _HEIGHT:.1f}">{"".join(spans)}</text>'


def _look(style: Style) -> str:
    color = f' fill="{style.color.get_truecolor(SVG_EXPORT_THEME).hex}"' if style.color is not None else ""
    return color + (' font-weight="bold"' if style.bold else "")


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("stop.svg")
    path.write_text(draw(record()), encoding="utf-8")


if __name__ == "__main__":
    main()
