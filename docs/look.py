"""Record how the terminal looks: the real program in a pseudo-terminal, against a provider that follows a script.

    python docs/look.py [SCENE ...] [--folder docs/terminal]

Each scene is played twice, for a dark and for a light terminal. A picture is what a terminal shows, drawn by rich.
Needs what the tests need. As root it is played as another user, in a namespace: what the program says is then what it
says to most people.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import sys
import tempfile
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pyte
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from halter.models import ToolCall
from halter.testing import FakeProvider, answer, tool_calls
from tests.support import chat_screen
from tests.support.chat_screen import ALT_ENTER, CTRL_U, ESC, ChatScreen
from tests.support.cli_program import Home

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.style import Style

_ROWS: Final = 40
_COLUMNS: Final = 88
_CODE: Final = (
    "def total(prices):\n    result = 0\n    for price in prices:\n        result -= price\n    return result\n"
)
_TEST: Final = "from prices import total\n\nassert total([1, 2]) == 3, total([1, 2])\nprint('all passed')\n"
_CHANGE: Final = "<<<<<<< SEARCH\n        result -= price\n=======\n        result += float(price)\n>>>>>>> REPLACE"
_ANSWER: Final = """The test is **right**, and `total()` subtracts:

1. `result` starts at 0.
2. Each price is taken *off* it.

```python
result -= price  # should be +=
```
"""
_DARK: Final = TerminalTheme(
    (30, 30, 34),
    (208, 208, 204),
    [(60, 60, 66), (224, 108, 117), (130, 190, 110), (222, 184, 98), (97, 158, 230), (198, 120, 221), (86, 182, 194),
     (208, 208, 204)],
    [(92, 92, 99), (232, 138, 145), (152, 208, 132), (236, 204, 126), (127, 180, 240), (214, 146, 234),
     (114, 202, 213), (240, 240, 238)],
)  # fmt: skip
_LIGHT: Final = TerminalTheme(
    (252, 252, 250),
    (40, 42, 46),
    [(40, 42, 46), (184, 36, 44), (36, 124, 46), (146, 98, 0), (26, 82, 190), (136, 40, 150), (0, 116, 128),
     (120, 122, 126)],
    [(90, 92, 96), (204, 50, 58), (46, 142, 58), (166, 116, 10), (40, 100, 214), (156, 56, 170), (10, 136, 148),
     (70, 72, 76)],
)  # fmt: skip
_THEMES: Final = {"dark": _DARK, "light": _LIGHT}
chat_screen.WAIT = 120.0
pyte.graphics.TEXT[2] = "+blink"  # pyte has no faint text, and nothing here blinks


def _call(number: int, name: str, **given: object) -> ToolCall:
    return ToolCall(f"call-{number}", name, json.dumps(given))


class Stage:
    """A home and a small repository, and the terminal of one scene."""

    def __init__(self, folder: Path, provider: FakeProvider, theme: str) -> None:
        self.provider = provider
        self.work = folder / "shop"
        self.work.mkdir()
        (self.work / "prices.py").write_text(_CODE)
        (self.work / "test_prices.py").write_text(_TEST)
        self.home = Home(folder / ".halter", provider)
        self.home.path.mkdir()
        as_user = ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.geteuid() == 0 else []
        self.home.launcher = [*as_user, "env", "-C", str(self.work)]
        self.home.env |= {
            "HOME": str(folder),
            "HALTER_THEME": theme,
            "HALTER_MODEL": "openai:gpt-5",
            "HALTER_APPROVE": "auto",
        }

    def open(self, *args: str, rows: int = _ROWS) -> ChatScreen:
        return ChatScreen(self.home, *args, rows=rows, columns=_COLUMNS)


def first_run(stage: Stage) -> ChatScreen:
    """The first lines."""
    stage.home.env["HALTER_APPROVE"] = "ask"
    with stage.open() as chat:
        chat.wait_for("Tools: ", "Type a message and press Enter.")
        chat.wait_ready()
    return chat


def diff(stage: Stage) -> ChatScreen:
    """A change that needed approval, and the next one that does."""
    module = "from halter import tool\nfrom halter.toolbox import Files\n\ntools = Files('.').tools\n"
    module += "for each in tools:\n    each.approval = each.name == 'patch'\n"
    stage.home.env |= {"HALTER_TOOLS": f"{stage.home.write_module(module)}:tools", "HALTER_APPROVE": "ask"}
    again = "<<<<<<< SEARCH\n    result = 0\n=======\n    result = 0.0\n>>>>>>> REPLACE"
    stage.provider.script(
        tool_calls([_call(1, "read_file", path="prices.py")], text="I will look at the code first."),
        tool_calls([_call(2, "patch", path="prices.py", changes=_CHANGE)]),
        tool_calls([_call(3, "patch", path="prices.py", changes=again)], text="Then it is a float from the start."),
    )
    with stage.open() as chat:
        chat.wait_ready()
        chat.send("total() is wrong: mend it")
        chat.wait_state("needs you")
        chat.send("y")
        chat.wait_for("Then it is a float", "result = 0.0")
        chat.wait_state("needs you")
    return chat


def failed_command(stage: Stage) -> ChatScreen:
    """A command that failed, and one that runs."""
    os.mkfifo(stage.work / "gate")
    stage.provider.script(
        tool_calls([_call(1, "terminal", command="python3 test_prices.py")]),
        tool_calls([_call(2, "search_files", pattern="total"), _call(3, "terminal", command="seq 1 7; cat gate")]),
    )
    with stage.open() as chat:
        chat.wait_ready()
        chat.send("run the tests")
        chat.wait_for("exit code 1", "⋯ $ seq 1 7")
        chat.wait_for_match(r"    7\n")
    return chat


def children(stage: Stage) -> ChatScreen:
    """Two children at work."""
    os.mkfifo(stage.work / "gate")
    (stage.home.path / "config.toml").write_text(
        '[agents.reviewer]\ninstructions = "Review."\n\n[agents.tester]\ninstructions = "Test."\n'
    )
    tasks = [
        {"agent": "reviewer", "task": "review prices.py for rounding errors"},
        {"agent": "tester", "task": "write a test for an empty list"},
    ]
    waiting = tool_calls([_call(2, "terminal", command="cat gate")])
    stage.provider.script(
        tool_calls([_call(1, "delegate", tasks=tasks)], text="Two of us are faster."), waiting, waiting
    )
    with stage.open() as chat:
        chat.wait_ready()
        chat.send("have it reviewed and tested")
        chat.wait_for("◇ reviewer: review prices.py for rounding errors · 1 call · terminal")
        chat.wait_for("◇ tester: write a test for an empty list · 1 call · terminal")
    return chat


def steer(stage: Stage) -> ChatScreen:
    """A steer that broke off a command, the answer, a running call, and a message that waits."""
    os.mkfifo(stage.work / "gate")
    stage.provider.script(
        tool_calls(
            [
                _call(1, "read_file", path="test_prices.py"),
                _call(2, "terminal", command="pip download numpy; cat gate"),
            ],
            text="I will look at the test.",
        ),
        answer(_ANSWER),
        tool_calls([_call(3, "terminal", command="python3 test_prices.py; seq 210 212; cat gate")]),
    )
    with stage.open() as chat:
        chat.wait_ready()
        chat.send("Why does the test fail?")
        chat.wait_for("✓ read_file", "⋯ $ pip download numpy")
        chat.send("no numpy, it is our own code")
        chat.wait_for("steered, interrupted terminal", "should be +=")
        chat.wait_ready()
        chat.send("Then mend it, and run the test.")
        chat.wait_for("    212\n")
        chat.type("and write a line in the changelog")
        chat.wait_for_line("in the changelog")
        chat.type(ALT_ENTER)
        chat.wait_for("queued    and write a line")
        chat.type("what is taking so lo")
        chat.wait_for_line("so lo")
    return chat


def stop(stage: Stage) -> ChatScreen:
    """A stop, what it ended, and its timeline."""
    os.mkfifo(stage.work / "gate")
    stage.provider.script(
        tool_calls(
            [
                _call(1, "terminal", command="seq 1 3; cat gate"),
                _call(2, "terminal", command="sleep 600"),
                _call(3, "read_file", path="prices.py"),
            ]
        )
    )
    with stage.open() as chat:
        chat.wait_ready()
        chat.send("run everything at once")
        chat.wait_state("running 2 tools")
        chat.wait_for("    3\n")
        chat.type(ESC)
        chat.wait_for("■ stopped in")
        chat.wait_ready()
        chat.send("/why")
        chat.wait_for("Stop requested by")
    return chat


def compaction(stage: Stage) -> ChatScreen:
    """Compaction, asked for and done, and the context before and after."""
    stage.provider.script(
        answer(f"{'Prices are numbers. ' * 8_000}\n\nThat is the first part.", input_tokens=2_460),
        answer("That is the second part.", input_tokens=43_900),
        answer("## Goal\nMend total().", input_tokens=44_100),
        answer("We were about to mend `total()`.", input_tokens=5_210),
    )
    with stage.open() as chat:
        chat.wait_ready()
        for text, end in (("explain it at length", "first part."), ("go on", "second part.")):
            chat.send(text)
            chat.wait_for(end)
            chat.wait_ready()
        chat.send("/context")
        chat.wait_for("estimated")
        chat.send("/compact")
        chat.wait_for("the context is compacted before the next request")
        chat.send("where were we?")
        chat.wait_for("context compacted from about", "We were about to mend")
        chat.wait_ready()
    return chat


def undo(stage: Stage) -> ChatScreen:
    """What a turn has changed, and how it is taken back."""
    stage.provider.script(
        tool_calls([_call(1, "patch", path="prices.py", changes=_CHANGE)]),
        tool_calls([_call(2, "write_file", path="CHANGES.md", content="- total() adds.\n")]),
        answer("Mended, and noted."),
    )
    with stage.open() as chat:
        chat.wait_ready()
        chat.send("mend total(), and note it")
        chat.wait_for("Mended, and noted.")
        chat.wait_ready()
        chat.send("/undo")
        chat.wait_for("/undo files: restore them")
        chat.send("/undo files")
        chat.wait_for("the turn was removed from the conversation")
        chat.wait_for_line("> mend total(), and note it")
        chat.type(CTRL_U)
        chat.wait_gone("> mend total()")
    return chat


def settings(stage: Stage) -> ChatScreen:
    """The settings, and where each comes from."""
    (stage.home.path / "config.toml").write_text('busy = "queue"\napprove_prefixes = ["git status", "pytest"]\n')
    with stage.open("config", "show", rows=_ROWS + 20) as chat:
        chat.end()
    return chat


SCENES: Final[dict[str, Callable[[Stage], ChatScreen]]] = {
    "first-run": first_run,
    "diff": diff,
    "failed-command": failed_command,
    "children": children,
    "steer": steer,
    "stop": stop,
    "compaction": compaction,
    "undo": undo,
    "settings": settings,
}


def record(scene: str, theme: str) -> str:
    """Play a scene; gives the picture as SVG."""
    with tempfile.TemporaryDirectory() as folder, FakeProvider() as provider:
        chat = SCENES[scene](Stage(Path(folder), provider, theme))
        return _draw(chat.cells(), f"halter: {scene.replace('-', ' ')}", scene, theme)


def _draw(lines: list[list[tuple[str, Style]]], title: str, scene: str, theme: str) -> str:
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in lines:
        pieces = [("".join(text for text, _ in run), style) for style, run in groupby(line, key=itemgetter(1))]
        console.print(Text.assemble(*pieces), no_wrap=True, overflow="crop")
    given: dict[str, Any] = {"title": title, "theme": _THEMES[theme], "unique_id": f"{scene}-{theme}"}
    # Whoever looks at it fetches nothing from anywhere.
    return re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", console.export_svg(**given), flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("scenes", metavar="SCENE", nargs="*", choices=[*SCENES, []], default=[])
    parser.add_argument("--folder", type=Path, default=Path(__file__).with_name("terminal"))
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    for scene in options.scenes or SCENES:
        for theme in _THEMES:
            (options.folder / f"{scene}-{theme}.svg").write_text(record(scene, theme), encoding="utf-8")


if __name__ == "__main__":
    main()
