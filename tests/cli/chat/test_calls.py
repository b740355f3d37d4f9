"""How tool calls look in the chat: diffs, exit codes, live output, lists, children."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from halter.models import ToolCall
from halter.testing import FakeProvider, answer, tool_calls
from tests.support.chat_screen import CTRL_O, ENTER, ChatScreen
from tests.support.cli_program import Home


@pytest.fixture
def home(tmp_path: Path, provider: FakeProvider) -> Home:
    """A home, and beside it a workspace, in which the chat is started."""
    workspace = tmp_path / "work"
    workspace.mkdir()
    (workspace / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    home = Home(tmp_path / "home", provider)
    home.path.mkdir()
    home.launcher = ["env", "-C", str(workspace)]
    home.env |= {"PYTHONPATH": str(home.path), "HALTER_APPROVE": "auto"}
    return home


def call(call_id: str, name: str, **arguments: object) -> ToolCall:
    return ToolCall(call_id, name, json.dumps(arguments))


def colour_of(chat: ChatScreen, text: str) -> str | None:
    """The colour of the first character of a text on the screen."""
    for row in chat.cells():
        line = "".join(each for each, _ in row)
        if text in line:
            color = row[line.index(text)][1].color
            return color.name if color is not None else None
    raise AssertionError(text)


def test_a_change_is_a_coloured_diff(home: Home, provider: FakeProvider) -> None:
    """A patch was one line of arguments, cut off. It is a diff with the name of the file, counts, numbers and colours;
    a new file is one, too, and a to-do list is a list.
    """
    changes = "<<<<<<< SEARCH\n    return a - b\n=======\n    return a + b\n>>>>>>> REPLACE"
    provider.script(
        tool_calls([call("1", "patch", path="calc.py", changes=changes)]),
        tool_calls([call("2", "write_file", path="notes.md", content="one\ntwo\n")]),
        tool_calls([call("3", "todo", add=["read", "mend"]), call("4", "todo", number=1, state="done")]),
        answer("Done."),
    )
    with ChatScreen(home, rows=40) as chat:
        chat.wait_ready()
        chat.send("mend it")
        chat.wait_for("✓ patch calc.py +1 -1", "1   def add(a, b):", "2 -     return a - b", "2 +     return a + b")
        chat.wait_for("✓ write_file notes.md (created) +2", "1 + one")
        chat.wait_for("☑ read", "☐ mend", "Done.")
        assert colour_of(chat, "2 -     return a - b") == "red"
        assert colour_of(chat, "2 +     return a + b") == "green"


def test_a_failed_command_looks_failed(home: Home, provider: FakeProvider) -> None:
    """A command that failed had a green tick. It has its exit code, a cross, and the end of its output; one that was
    good has a tick and fewer lines, and Ctrl+O shows all of them, then those of the call before.
    """
    provider.script(
        tool_calls([call("1", "terminal", command="seq 1 40; echo 'first is bad'; exit 3")]),
        tool_calls([call("2", "terminal", command="seq 101 130")]),
        tool_calls([call("3", "terminal", command="kill -9 $$")]),
        answer("Done."),
    )
    with ChatScreen(home, rows=50) as chat:
        chat.wait_ready()
        chat.send("try")
        chat.wait_for("✗ $ seq 1 40; echo 'first is bad'; exit 3 · exit code 3", "    first is bad", "29 more lines")
        chat.wait_for("✓ $ seq 101 130", "27 more lines above", "✗ $ kill -9 $$ · ended by SIGKILL", "Done.")
        assert colour_of(chat, "✗ $ seq 1 40") == "red"
        assert "    101\n" not in chat.text
        chat.type(CTRL_O)
        chat.wait_for("ended by SIGKILL", "full output")
        chat.type(CTRL_O)
        chat.wait_for("    101\n", "    115\n")
        chat.type(CTRL_O)
        chat.wait_for("    1\n", "    17\n")
        chat.type(CTRL_O)
        chat.wait_notice("no further tool output to show")


def test_the_last_lines_of_a_running_command(home: Home, provider: FakeProvider) -> None:
    """While a command runs, the end of its output is below it."""
    os.mkfifo(home.path.parent / "work" / "gate")
    provider.script(tool_calls([call("1", "terminal", command="seq 1 9; cat gate")]), answer("Done."))
    with ChatScreen(home) as chat:
        chat.wait_ready()
        chat.send("run")
        chat.wait_for_match(r"⋯ \$ seq 1 9; cat gate[^\n]*\n    7\n    8\n    9\n")
        (home.path.parent / "work" / "gate").write_text("end\n")
        chat.wait_for("✓ $ seq 1 9; cat gate", "Done.")


def test_children_at_work(home: Home, provider: FakeProvider) -> None:
    """Two children are shown with their tasks and what each does at the moment."""
    os.mkfifo(home.path.parent / "work" / "gate")
    (home.path / "config.toml").write_text('[agents.helper]\ninstructions = "Help."\n')
    tasks = [{"agent": "helper", "task": "look at the logs"}, {"agent": "helper", "task": "read the manual"}]
    waiting = tool_calls([call("2", "terminal", command="cat gate")])
    provider.script(tool_calls([call("1", "delegate", tasks=tasks)]), waiting, waiting)
    with ChatScreen(home) as chat:
        chat.wait_ready()
        chat.send("delegate")
        chat.wait_for("◇ helper: look at the logs · 1 call · terminal cat gate")
        chat.wait_for("◇ helper: read the manual · 1 call · terminal cat gate")
        chat.type("\x1b")
        chat.wait_for("◇ helper interrupted")
        chat.wait_ready()


def test_what_an_approval_is_about(home: Home, provider: FakeProvider) -> None:
    """A change that needs approval is shown as one, with the file and the counts, before it is made."""
    module = '@tool(approval=True)\ndef patch(path: str, changes: str) -> str:\n    """Change."""\n    return "ok"\n'
    (home.path / "mytools.py").write_text(f"from halter import tool\n\n\n{module}")
    home.env |= {"HALTER_TOOLS": "mytools:patch", "HALTER_APPROVE": "ask"}
    changes = "<<<<<<< SEARCH\nold line\n=======\nnew line\nmore\n>>>>>>> REPLACE"
    provider.script(tool_calls([call("1", "patch", path="calc.py", changes=changes)]), answer("Done."))
    with ChatScreen(home) as chat:
        chat.wait_ready()
        chat.send("mend it")
        chat.wait_for("Make these changes? calc.py +2 -1", "old line", "new line")
        assert (colour_of(chat, "old line"), colour_of(chat, "new line")) == ("red", "green")
        chat.type("y")
        chat.wait_for_line("> y")
        chat.type(ENTER)
        chat.wait_for("Done.")
