"""The toolbox as a whole: its names, its default set, and what importing it costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from halter import Agent, toolbox
from halter.models import ToolCall
from halter.testing import ScriptedModel
from tests.support.processes import run_python


@pytest.mark.parametrize("name", [name for name in toolbox.__all__ if name != "default"])
def test_every_name_is_there(name: str) -> None:
    """Each family of tools can be imported from the toolbox."""
    assert getattr(toolbox, name).__name__ == name


def test_importing_it_imports_no_tool() -> None:
    """The toolbox, and making the useful set, imports none of what is heavy."""
    ended = run_python(
        """
        import sys
        from halter import toolbox
        assert not any(name.startswith("halter.toolbox.") for name in sys.modules)
        toolbox.default(".")
        heavy = {"playwright", "mcp", "asyncssh", "trafilatura", "ddgs", "av", "numpy", "moonshine_voice"}
        assert not heavy & set(sys.modules), heavy & set(sys.modules)
        """
    )
    assert ended.returncode == 0, ended.stderr


def test_the_useful_set_works_together(tmp_path: Path) -> None:
    """What one tool has written another one finds, and code can call them."""
    model = ScriptedModel(
        ToolCall("1", "write_file", '{"path": "a.txt", "content": "one two\\n"}'),
        ToolCall("2", "terminal", '{"command": "wc -w < a.txt"}'),
        ToolCall("3", "execute_code", '{"code": "print(tools.read_file(path=\\"a.txt\\"))"}'),
        "Two words.",
    )
    with Agent(model, toolbox.default(tmp_path)).session() as session:
        turn = session.run("Count the words.")
    assert turn.text == "Two words."
    assert [outcome.status for outcome in turn.outcomes] == ["completed"] * 3
    assert "2" in str(turn.outcomes[1].content)
    assert "one two" in str(turn.outcomes[2].content)


def test_what_destroys_is_denied_without_anybody_to_ask(tmp_path: Path) -> None:
    """A command that deletes is not run by an agent that nobody can be asked about."""
    (tmp_path / "kept").mkdir()
    model = ScriptedModel(ToolCall("1", "terminal", '{"command": "rm -rf kept"}'), "I may not.")
    with Agent(model, toolbox.default(tmp_path)).session() as session:
        [outcome] = session.run("Clean up.").outcomes
    assert outcome.status == "denied"
    assert (tmp_path / "kept").is_dir()


def test_a_read_only_agent_has_no_tool_that_writes_files(tmp_path: Path) -> None:
    """In the mode "read-only" the file tools do not write what commands may not write."""
    names = {each.name for each in toolbox.default(tmp_path, sandbox="read-only")}
    assert {"read_file", "search_files"} <= names
    assert not {"write_file", "patch"} & names
    assert {"write_file", "patch"} <= {each.name for each in toolbox.default(tmp_path)}
