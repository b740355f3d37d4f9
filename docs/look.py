"""Record how the chat looks: the real program in a pseudo-terminal, against a provider that follows a script.

    python docs/look.py [docs/chat.svg]

Needs what the tests need. The picture is what a terminal shows, drawn by rich.
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.text import Text

from halter.models import ToolCall
from halter.testing import FakeProvider, answer, tool_calls
from tests.support.chat_screen import TAB, ChatScreen
from tests.support.cli_program import Home

if TYPE_CHECKING:
    from rich.style import Style

_ROWS: Final = 37
_COLUMNS: Final = 88
_TOOLS: Final = '''
import asyncio
from halter import ToolContext, tool


@tool
def read_file(path: str) -> str:
    """Read a file."""
    return "E   assert 4 == 5"


@tool
async def web_search(query: str, ctx: ToolContext) -> str:
    """Search the web."""
    ctx.report("reading page 2 of 5")
    await asyncio.sleep(1000)
    return ""


@tool
async def run_command(command: str, ctx: ToolContext) -> str:
    """Run a command."""
    ctx.report("212 passed, 1 running")
    await asyncio.sleep(1000)
    return ""


tools = [read_file, web_search, run_command]
'''
_ANSWER: Final = """The test is **off by one**: `range(5)` ends at 4.

1. It compares the last value with 5.
2. The code itself is right.

```python
assert list(range(5))[-1] == 4
```
"""


def record() -> str:
    """Play the scene; gives the picture as SVG."""
    script = (
        tool_calls(
            [
                ToolCall("1", "read_file", '{"path": "build.log"}'),
                ToolCall("2", "web_search", '{"query": "pytest assert 4 == 5"}'),
            ],
            text="I will look at the log.",
        ),
        answer(_ANSWER),
        tool_calls([ToolCall("3", "run_command", '{"command": "pytest -q tests/test_range.py"}')]),
    )
    with tempfile.TemporaryDirectory() as folder, FakeProvider(*script) as provider:
        home = Home(Path(folder), provider)
        home.env |= {"HALTER_TOOLS": f"{home.write_module(_TOOLS)}:tools", "HALTER_MODEL": "openai:gpt-5"}
        with ChatScreen(home, rows=_ROWS, columns=_COLUMNS) as chat:
            _play(chat)
            return _draw(chat.cells(), "halter")


def _play(chat: ChatScreen) -> None:
    chat.wait_ready()
    chat.send("Why is the build red?")
    chat.wait_for("✓ read_file", "reading page 2 of 5")
    chat.send("no need to search, it is our own test")
    chat.wait_for("steered, interrupted web_search", "== 4")
    chat.wait_ready()
    chat.send("Then mend it, and run that test.")
    chat.wait_for("212 passed")
    chat.type("and write a line in the changelog")
    chat.wait_for_line("in the changelog")
    chat.type(TAB)
    chat.wait_for("queued    and write a line")
    chat.type("what is taking so lo")
    chat.wait_for_line("so lo")


def _draw(lines: list[list[tuple[str, Style]]], title: str) -> str:
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in lines:
        console.print(Text.assemble(*line), no_wrap=True, overflow="crop")
    live_area = console.export_svg(title=title, unique_id="chat")
    # Whoever looks at it fetches nothing from anywhere.
    return re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", live_area, flags=re.DOTALL)


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("chat.svg")
    path.write_text(record(), encoding="utf-8")


if __name__ == "__main__":
    main()
