"""Other agents of the settings: chosen, delegated to, and served."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from halter import Limits
from halter.cli.agent_factory import make_agents
from halter.cli.model_choice import ModelChoice
from halter.cli.settings import Configuration, Settings, SettingsError, load
from halter.models import ToolCall
from halter.testing import FakeProvider, ScriptedReply, SeenRequest, answer, hang_before_first_byte, tool_calls
from halter.toolbox.delegate import TIMEOUT
from tests.support.cli_program import Ended, Home

TEXT = """
model = "openai:main"
instructions = "Be the main one."
tools = ["Todo"]
[limits]
steps = 7
[agents.writer]
model = "anthropic:w"
instructions = "Write."
tools = ["Files"]
sandbox = "read-only"
[agents.writer.limits]
seconds = 60
[agents.writer.model_settings]
temperature = 0.1
[agents.copy]
"""


def loaded(home: Path, text: str = TEXT, **flags: object) -> Configuration:
    (home / "config.toml").write_text(text)
    return load(flags, {"HALTER_HOME": str(home)})


def test_an_agent_has_its_own_settings_and_the_rest_of_the_main_one(tmp_path: Path) -> None:
    """What its table leaves out is as for the main agent."""
    configuration = loaded(tmp_path)
    agents = make_agents(configuration, ModelChoice("openai:main", "a test"), can_ask=False)
    assert list(agents) == ["halter", "writer", "copy"]
    assert [agent.model.name for agent in agents.values()] == ["main", "w", "main"]
    assert list(agents["halter"].tools) == ["todo", "delegate", "subagents"]
    assert "read_file" in agents["writer"].tools
    assert list(agents["copy"].tools) == ["todo"]
    assert agents["writer"].limits == Limits(seconds=60)
    assert agents["copy"].limits == agents["halter"].limits == Limits(steps=7)
    assert agents["writer"].settings.temperature == 0.1
    assert agents["writer"].name == "writer"
    assert "- writer: Write.\n- copy: Be the main one." in agents["halter"].tools["delegate"].spec.description


def test_the_time_for_a_task_is_that_of_the_toolbox() -> None:
    """The number stands in both places, since one of them is slow to import."""
    assert Settings().delegate_timeout == TIMEOUT


def test_options_that_restrict_hold_for_every_agent(tmp_path: Path) -> None:
    """`--sandbox read-only` cannot be widened by a table, and `--model` is for the main agent."""
    text = '[agents.free]\nsandbox = "off"\nmodel = "openai:own"\n'
    configuration = loaded(tmp_path, text, sandbox="read-only", model="openai:other")
    free = configuration.for_agent("free").settings
    assert (free.sandbox, free.model) == ("read-only", "openai:own")


def test_the_agent_to_talk_to_is_chosen(tmp_path: Path) -> None:
    """With `--agent` its table is used instead of the main settings; other options still override it."""
    configuration = loaded(tmp_path, agent="writer", **{"limits.steps": "3"})
    settings = configuration.settings
    assert (settings.model, settings.sandbox, settings.limits) == (
        "anthropic:w",
        "read-only",
        Limits(steps=3, seconds=60),
    )
    assert configuration.origins["model"] == f"{tmp_path}/config.toml, line 7"
    agents = make_agents(configuration, ModelChoice(settings.model, "a test"), can_ask=False)
    assert list(agents) == ["writer", "copy"]
    assert "delegate" not in agents["writer"].tools


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[agents.x]\nmodell = 1\n", "line 2: unknown setting 'agents.x.modell'; did you mean 'model'?"),
        ("[agents.x.limits]\nsteps = 'a'\n", "line 2: agents.x.limits.steps: expected int, got str"),
        ("[agents.x]\n[agents.x.limits]\nsteps = 0\n", "line 2: agents.x.limits: steps must be at least 1"),
        ("[agents.x]\ntools = ['mcp.none']\n", "line 1: there is no MCP server 'none'; known: none"),
        ("[agents.halter]\n", "line 1: this is the name of the main agent"),
        ("agent = 'y'\n[agents.x]\n", "line 1: there is no agent 'y'; known: x"),
        ("agent = 'y'\n", "line 1: there is no agent 'y'; there is no table [agents.NAME]"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    """The error names the file, the line, the key, and what would be right."""
    with pytest.raises(SettingsError) as caught:
        make_agents(loaded(tmp_path, text), ModelChoice("openai:m", "a test"), can_ask=False)
    assert str(caught.value).startswith(f"{tmp_path}/config.toml, ")
    assert said in str(caught.value)


@pytest.mark.parametrize("place", ["file", "option"])
def test_a_delegated_task_has_a_time_limit(home: Home, provider: FakeProvider, place: str) -> None:
    """An agent that does not answer is stopped by `delegate_timeout`; the main one is told, and goes on."""
    table = '[agents.poet]\nmodel = "openai:poet"\n'
    (home.path / "config.toml").write_text(f"delegate_timeout = 2\n{table}" if place == "file" else table)
    tasks = json.dumps({"tasks": [{"agent": "poet", "task": "A rose."}]})

    def by_model(request: SeenRequest) -> ScriptedReply:
        return hang_before_first_byte() if request.model == "poet" else answer("The poet is silent.")

    provider.script(tool_calls([ToolCall("1", "delegate", tasks)]), by_model, by_model)
    options = ["--delegate-timeout", "2"] if place == "option" else []
    assert home.run("-p", "Ask the poet.", *options).out == "The poet is silent.\n"
    assert "because it timed out" in provider.requests[-1].body["messages"][-1]["content"]


def test_print_mode_delegates_and_talks_to_an_agent(home: Home, provider: FakeProvider) -> None:
    """The main agent hands a task to another by its name; `--agent` talks to that one directly."""
    (home.path / "config.toml").write_text('[agents.poet]\nmodel = "openai:poet"\ninstructions = "Rhyme."\n')
    tasks = json.dumps({"tasks": [{"agent": "poet", "task": "A rose."}]})
    provider.script(tool_calls([ToolCall("1", "delegate", tasks)]), answer("Red."), answer("It said: Red."))
    assert home.run("-p", "Ask the poet.") == Ended(0, "It said: Red.\n", "")
    poet = provider.requests[1].body
    assert (poet["model"], poet["messages"][0]["content"].splitlines()[0]) == ("poet", "Rhyme.")
    provider.script(answer("Blue."))
    assert home.run("-p", "A violet.", "--agent", "poet", HALTER_MODEL="").out == "Blue.\n"
    assert provider.requests[3].body["model"] == "poet"
    ended = home.run("doctor")
    assert re.search("✓ agents +poet: openai:poet; tools: ", ended.out)
