"""MCP servers of the settings: their tools, their sandbox, and what is said of those that cannot be used."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from halter.cli.agent_factory import make_agents, start_lines
from halter.cli.mcp_servers import MCPServers
from halter.cli.model_choice import ModelChoice
from halter.cli.settings import Configuration, SettingsError, load
from halter.models import ToolCall
from halter.testing import FakeProvider, ToolCalls, answer, tool_calls
from tests.support.cli_program import Ended, Home, end
from tests.support.processes import is_alive, wait_dead
from tests.support.waiting import wait_until

SERVER = str(Path(__file__).parents[1] / "support" / "mcp_server.py")


def command(notes: Path) -> str:
    """The line of a table that starts the server of the tests."""
    return f"command = {json.dumps([sys.executable, SERVER, 'stdio', str(notes)])}\n"


@contextlib.contextmanager
def loaded(home: Path, text: str) -> Iterator[Configuration]:
    """The settings of a file; the servers are ended afterwards."""
    (home / "config.toml").write_text(text)
    configuration = load({}, {"HALTER_HOME": str(home)})
    try:
        yield configuration
    finally:
        configuration.servers.close()


def call(servers: MCPServers, name: str, /, **arguments: Any) -> str:
    with ToolCalls(*servers.tools()) as calls:
        return str(calls.call(name, **arguments).content)


def test_a_command_in_the_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tools have the name of the table before theirs; it gets the variables that are named, and is restricted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_SERVICE_KEY", "key-1234")
    monkeypatch.setenv("OTHER_TOKEN", "not-passed-on")
    text = f'[mcp.sums]\n{command(tmp_path)}env = {{ KEY = "${{MY_SERVICE_KEY}}", PLAIN = "x" }}\n'
    with loaded(tmp_path, text) as configuration:
        assert call(configuration.servers, "sums_add", a=40, b=2) == "42"
        assert call(configuration.servers, "sums_variable", name="KEY") == "key-1234"
        assert call(configuration.servers, "sums_variable", name="PLAIN") == "x"
        assert call(configuration.servers, "sums_variable", name="OTHER_TOKEN") == ""
        assert call(configuration.servers, "sums_write", path=str(tmp_path / "here")) == "written"
        assert "denied" in call(configuration.servers, "sums_write", path=str(Path.home() / "not-here"))


@pytest.fixture
def port(tmp_path: Path) -> Iterator[str]:
    """The port of a server that runs already."""
    with subprocess.Popen([sys.executable, SERVER, "http", str(tmp_path)]) as process:
        wait_until((tmp_path / "port").exists)
        yield (tmp_path / "port").read_text()
        process.kill()


def test_an_address(tmp_path: Path, port: str) -> None:
    """A server is reached by its address; one that does not answer has no tools, and a line says so."""
    text = f'[mcp.there]\nurl = "http://127.0.0.1:{port}/mcp"\n[mcp.gone]\nurl = "http://127.0.0.1:9/mcp?key=secret"\n'
    with loaded(tmp_path, text) as configuration:
        assert call(configuration.servers, "there_add", a=1, b=2) == "3"
        choice = ModelChoice("openai:x", "a test")
        agents = make_agents(configuration, choice, can_ask=False)
        assert "there_add" in agents["halter"].tools
        [line] = start_lines(configuration, choice, is_script=True)
        assert f"{tmp_path}/config.toml, line 3: mcp.gone: no tools: the MCP server at http://127.0.0.1:9/mcp" in line
        assert "`halter doctor` checks it." in line
        assert "secret" not in line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[mcp.x]\n", "line 1: mcp.x: set either `command` or `url`"),
        ('[mcp.x]\nurl = "http://h"\ncommand = ["c"]\n', "line 1: mcp.x: set either `command` or `url`"),
        ('[mcp.x]\nurl = "http://h"\nnetwork = true\n', "mcp.x: `env`, `sandbox` and `network` are for a server with"),
        ('[mcp.x]\ncommand = ["c"]\nheaders = { A = "b" }\n', "mcp.x: `headers` are for a server with `url`"),
        ('[mcp.x]\ncommand = "c"\n', "line 2: mcp.x.command: expected array, got str"),
        ('[mcp.x]\ncomand = ["c"]\n', "line 2: unknown setting 'mcp.x.comand'; did you mean 'command'?"),
        ('[mcp.x]\ncommand = ["c"]\nsandbox = "on"\n', "must be one of 'workspace', 'read-only', 'off'"),
        ('[mcp.x]\ncommand = ["c"]\nenv = { A = "${NOT_SET}" }\n', "mcp.x: env: the variable NOT_SET is not set"),
        ('[mcp."a b"]\ncommand = ["c"]\n', 'line 1: mcp."a b": a name consists of 1 to 32 letters'),
    ],
)
def test_a_table_that_cannot_be_right_is_an_error(tmp_path: Path, text: str, said: str) -> None:
    """The error names the file, the line, the key, and what would be right."""
    with pytest.raises(SettingsError) as caught, loaded(tmp_path, text) as configuration:
        configuration.servers.tools()
    assert str(caught.value).startswith(f"{tmp_path}/config.toml, line ")
    assert said in str(caught.value)


def test_a_command_that_fails_is_told_about_the_network(tmp_path: Path) -> None:
    """Most servers need the network, which the sandbox does not give; the line says what to write."""
    text = f"[mcp.x]\ncommand = {json.dumps([sys.executable, '-c', 'raise SystemExit(3)'])}\n"
    with loaded(tmp_path, text) as configuration:
        assert configuration.servers.tools() == []
        [problem] = configuration.servers.problems
    assert "network = true in this table allows it" in problem


def test_print_mode_uses_a_server_and_ends_it(home: Home, provider: FakeProvider) -> None:
    """The model is offered its tools, and no process of it is left when the program has ended."""
    (home.path / "config.toml").write_text(f"[mcp.sums]\n{command(home.path)}sandbox = 'off'\n")
    provider.script(tool_calls([ToolCall("1", "sums_number", "{}")]), answer("Done."))
    assert home.run("-p", "Hi.") == Ended(0, "Done.\n", "")
    assert not is_alive(int(provider.requests[1].body["messages"][-1]["content"]))


def test_a_signal_ends_the_wait_for_a_server(home: Home) -> None:
    """A server that never answers does not keep the program from ending, and ends with it."""
    script = f"echo $$ > {home.path}/pid.new; mv {home.path}/pid.new {home.path}/pid; exec sleep 300"
    (home.path / "config.toml").write_text(f"[mcp.x]\nsandbox = 'off'\ncommand = {json.dumps(['sh', '-c', script])}\n")
    with home.start("-p", "Hi.") as program:
        wait_until((home.path / "pid").exists)
        began = time.monotonic()
        ended = end(program, signal.SIGINT)
        assert time.monotonic() - began < 5
    assert ended.code == 130
    wait_dead(int((home.path / "pid").read_text()))


def test_config_shows_no_secret(home: Home) -> None:
    """What was written in plain text is hidden; the name of a variable is not."""
    (home.path / "config.toml").write_text(
        '[mcp.x]\ncommand = ["c", "--api-key", "sk-1", "--token=sk-2"]\n'
        'env = { A = "sk-3", B = "${NAME}", D = "${X} sk-6" }\n'
        '[mcp.y]\nurl = "http://h/mcp?key=sk-444"\nheaders = { Auth = "Bearer sk-555", C = "Bearer ${NAME}" }\n'
    )
    shown = home.run("config", "show").out
    assert "sk-" not in shown
    assert shown.count("${NAME}") == 2
    assert '"http://h/mcp' in shown


def test_doctor_checks_each_server(home: Home) -> None:
    """One that answers has so many tools; one that does not is named, with what to do."""
    (home.path / "config.toml").write_text(
        f"[mcp.good]\n{command(home.path)}sandbox = 'off'\n[mcp.bad]\nurl = 'http://127.0.0.1:9/mcp'\n"
    )
    out = home.run("doctor").out
    assert "good: 1" in out  # at least ten tools
    assert "mcp.bad: no tools: the MCP server at http://127.0.0.1:9/mcp cannot be used" in out
