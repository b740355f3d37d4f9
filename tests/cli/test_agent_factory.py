"""The agent that the settings describe."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from halter import Agent
from halter.cli.agent_factory import load_tools, make_agent, start_lines
from halter.cli.model_choice import ModelChoice
from halter.cli.settings import SettingsError, load
from halter.models import ToolCall
from halter.testing import ScriptedModel
from halter.toolbox.sandbox import landlock
from tests.support.allowing import allow


@pytest.fixture
def no_landlock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system whose kernel has no Landlock."""
    monkeypatch.setattr(landlock, "abi", lambda: 0)


def names(*tools: str) -> list[str]:
    return [tool.name for tool in load_tools(load({"tools": list(tools)}, {}))]


def test_the_useful_set() -> None:
    """The name "default" stands for the useful set of the toolbox."""
    assert {"terminal", "read_file", "web_search", "execute_code", "clarify"} <= set(names("default"))


def test_families_and_single_tools() -> None:
    """A family brings all of its tools, a tool's name that one, and what is named twice is there once."""
    assert names("Todo", "read_file", "Files") == ["todo", "read_file", "write_file", "patch", "search_files"]


def test_ones_own() -> None:
    """MODULE:NAME is anything that can be imported."""
    assert names("tests.support.batches:add") == ["add"]


@pytest.mark.parametrize("name", ["Terminal", "Code", "Browser", "execute_code"])
def test_a_tool_that_needs_a_sandbox_is_an_error_without_one(no_landlock: None, name: str) -> None:
    """Who names a tool that starts processes is told why it cannot be had, and what would help."""
    with pytest.raises(
        SettingsError, match=f"--tools: {name} needs a sandbox: this system has no Landlock .*--sandbox off"
    ):
        names(name)
    assert load_tools(load({"tools": [name], "sandbox": "off"}, {}))


def test_the_sandbox_is_as_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of the useful set may do what the setting says."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    command = '{"command": "echo x > $PWD/file && echo written; echo y > ../other && echo outside"}'
    for mode, said in {"read-only": "", "workspace": "written", "off": "written outside"}.items():
        model = ScriptedModel(ToolCall("1", "terminal", command), "Done.")
        tools = load_tools(load({"tools": ["default"], "sandbox": mode}, {}))
        with Agent(model, tools, approve=allow).session() as session:
            content = str(session.run("Write.").outcomes[0].content)
        assert " ".join(word for word in ("written", "outside") if f"{word}\n" in content) == said, content


def test_a_line_says_when_the_sandbox_is_not_as_usual(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root it is weaker, and a system may have none. Nothing is said if no tool would use it, or it is off."""
    choice = ModelChoice("local", "a test")
    settings = load({"tools": ["default"]}, {})
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert start_lines(settings, choice) == []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert start_lines(settings, choice) == [
        "Halter is running as root: the sandbox is weaker than for a regular user."
    ]
    request.getfixturevalue("no_landlock")
    [line] = start_lines(settings, choice)
    assert line.startswith("No sandbox: this system has no Landlock (Linux 5.19 or later). terminal")
    assert start_lines(load({"tools": ["default"], "sandbox": "off"}, {}), choice) == []
    assert start_lines(load({"tools": ["Files"]}, {}), choice) == []


def test_an_unknown_name_is_told_with_what_there_is() -> None:
    """A name that the toolbox does not have is an error that lists those that it has."""
    with pytest.raises(SettingsError, match="unknown tool 'teleport'; known: default, Terminal"):
        names("teleport")


def test_an_agent_with_tools_is_told_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the setting `instructions` it gets AGENTS.md, skills and notes; without tools only the setting."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HALTER_HOME", str(tmp_path / "data"))
    (tmp_path / "AGENTS.md").write_text("Use tabs.")
    (tmp_path / "data/skills/pdf").mkdir(parents=True)
    (tmp_path / "data/skills/pdf/SKILL.md").write_text("---\ndescription: Read PDF files.\n---\n")
    (tmp_path / "data/memory.md").write_text("- The user is called Ada.\n")
    choice = ModelChoice("local", "a test")

    def prompt(*tools: str) -> str:
        agent = make_agent(load({"tools": list(tools), "instructions": "Be kind."}), choice, can_ask=False)
        return agent.instructions if isinstance(agent.instructions, str) else agent.instructions()

    assert prompt() == "Be kind."
    told = prompt("default", "Memory")
    assert told.startswith("Be kind.\n")
    for words in ("Use tabs.", "in a sandbox", "- pdf: Read PDF files.", "- The user is called Ada."):
        assert words in told
    told = prompt("Todo")
    assert "Use tabs." in told
    assert "Ada" in told  # people add notes, too
    for words in ("sandbox", "pdf"):
        assert words not in told


def test_skills_can_be_read_where_there_are_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The useful set has the tool for them only then; who names it has it always."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HALTER_HOME", str(tmp_path / "data"))
    assert "read_skill" not in names("default")
    assert names("read_skill") == names("Skills") == ["read_skill"]
    (tmp_path / ".agents/skills/pdf").mkdir(parents=True)
    (tmp_path / ".agents/skills/pdf/SKILL.md").write_text("---\ndescription: Read PDF files.\n---\n")
    assert "read_skill" in names("default")


@pytest.mark.parametrize("is_set", [True, False])
def test_the_network_is_as_set(is_set: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the setting, commands reach servers outside of the sandbox; without it, they do not."""
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]} && echo reached"
        model = ScriptedModel(ToolCall("1", "terminal", json.dumps({"command": command})), "Done.")
        tools = load_tools(load({"tools": ["terminal"]}, {"HALTER_NETWORK": str(is_set).lower()}))
        with Agent(model, tools).session() as session:
            content = str(session.run("Connect.").outcomes[0].content)
    assert ("reached" in content) == is_set, content
