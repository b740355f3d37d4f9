"""A day of work in the chat: a failing test in a small repository is mended, with every step that people take."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from halter.models import ToolCall
from halter.testing import FakeProvider, answer, tool_calls
from tests.support.chat_screen import CTRL_D, ENTER, ChatScreen
from tests.support.cli_program import Home

HALF = "    return items[len(items) / 2]"
WHOLE = "    return items[len(items) // 2]"
SORTED = "    return sorted(items)[len(items) // 2]"
CODE = f"def middle(items):\n{HALF}\n"
MENDED = f"def middle(items):\n{SORTED}\n"
TEST = "from calc import middle\n\nassert middle([3, 1, 2]) == 2, middle([3, 1, 2])\nprint('1 passed')\n"
RUN = f"{sys.executable} -B test_calc.py"  # bytecode would be another changed file, and stale if it is that fast


def call(call_id: str, name: str, **arguments: object) -> ToolCall:
    return ToolCall(call_id, name, json.dumps(arguments))


def change(old: str, new: str) -> str:
    return f"<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE"


class Keys:
    """Types, and counts what was typed."""

    def __init__(self, chat: ChatScreen) -> None:
        self._chat = chat
        self.pressed = 0
        self.answered = 0

    def line(self, text: str) -> None:
        self._chat.type(text)
        self._chat.wait_for_line(text)
        self._chat.type(ENTER)
        self.pressed += len(text) + 1


def test_a_failing_test_is_mended(tmp_path: Path, provider: FakeProvider) -> None:
    """Read, search, patch, run, fail, patch, run, pass, undo, redo: one question is asked, for running the tests, and
    its answer for the session covers the second run.
    """
    work = tmp_path / "work"
    work.mkdir()
    (work / "calc.py").write_text(CODE)
    (work / "test_calc.py").write_text(TEST)
    subprocess.run(["git", "init", "-q", "."], cwd=work, check=True)
    home = Home(tmp_path / "home", provider)
    home.path.mkdir()
    home.launcher = ["env", "-C", str(work)]
    provider.script(
        tool_calls([call("1", "read_file", path="test_calc.py"), call("2", "search_files", pattern="def middle")]),
        tool_calls([call("3", "patch", path="calc.py", changes=change("len(items) / 2", "len(items) // 2"))]),
        tool_calls([call("4", "patch", path="calc.py", changes=change(HALF, WHOLE))]),
        tool_calls([call("5", "terminal", command=RUN)]),
        tool_calls([call("6", "patch", path="calc.py", changes=change(WHOLE, SORTED))]),
        tool_calls([call("7", "terminal", command=RUN)]),
        answer("Mended: the list was not sorted."),
    )
    with ChatScreen(home, rows=40) as chat:
        chat.wait_ready()
        keys = Keys(chat)
        keys.line("The test fails. Mend it.")
        chat.wait_for("✓ read_file test_calc.py", "✓ search_files def middle")
        chat.wait_for("✗ patch calc.py", "✓ patch calc.py +1 -1")
        chat.wait_for("Run this command?", "s: Allow")
        keys.line("s")
        keys.answered += 1
        chat.wait_for("✗ $ ", "AssertionError: 1", "exit code 1")
        chat.wait_for("2 +     return sorted(items)[len(items) // 2]", "1 passed", "Mended: the list was not sorted.")
        chat.wait_ready()
        assert (work / "calc.py").read_text() == MENDED
        keys.line("/undo")
        chat.wait_for("calc.py +1 -1", "/undo files: restore them and remove the turn")
        keys.line("/undo files")
        chat.wait_for("1 file restored")
        chat.wait_for_line("> The test fails. Mend it.")
        assert (work / "calc.py").read_text() == CODE
        chat.type("\x15")
        keys.line("/redo")
        chat.wait(lambda: (work / "calc.py").read_text() == MENDED, "the files again")
        chat.type(CTRL_D)
        assert chat.end() == 0
    assert keys.answered == 1
    assert keys.pressed == len("The test fails. Mend it.s/undo/undo files/redo") + 5
