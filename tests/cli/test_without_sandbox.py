"""On a kernel without Landlock, every face says so at the start, and no tool that starts processes is offered."""

from __future__ import annotations

import signal
import sys
import urllib.request
from pathlib import Path

import msgspec
import pytest

from halter.testing import FakeProvider, answer
from tests.support import without_landlock
from tests.support.chat_screen import CTRL_D, ChatScreen
from tests.support.cli_program import Home, end, read_until

LINE = "No sandbox: this system has no Landlock (Linux 5.19 or later). terminal and execute_code are off;"
PROCESS_TOOLS = {"terminal", "process", "execute_code"}


@pytest.fixture
def home(home: Home) -> Home:
    home.launcher = [sys.executable, without_landlock.__file__]
    home.env["HALTER_TOOLS"] = "default"
    return home


def offered(provider: FakeProvider) -> set[str]:
    return {tool["function"]["name"] for tool in provider.requests[-1].body["tools"]}


def test_line_mode(home: Home, provider: FakeProvider) -> None:
    """The chat without a terminal says it before the first answer."""
    provider.script(answer("Hello."))
    ended = home.run(stdin="Hi.\n")
    assert LINE in ended.out + ended.err
    assert not PROCESS_TOOLS & offered(provider)
    assert "read_file" in offered(provider)


def test_the_chat(home: Home) -> None:
    """The chat on a terminal shows it above its first prompt."""
    with ChatScreen(home) as chat:
        chat.wait_for("No sandbox: this system has no Landlock")
        chat.type(CTRL_D)
        assert chat.end() == 0


def test_the_gateway_and_its_clients(home: Home) -> None:
    """`halter serve` says it in its log, and tells its clients."""
    with home.start("serve", "--port", "0") as program:
        assert program.stdout is not None
        said = read_until(program.stdout.fileno(), b"creates another.\n").decode()
        url, _, key = said.split()[3].partition("/#key=")
        request = urllib.request.Request(f"{url}/v1/sessions", headers={"Authorization": f"Bearer {key}"})
        with urllib.request.urlopen(request, timeout=10) as response:
            [notice] = msgspec.json.decode(response.read())["notices"]
        ended = end(program, signal.SIGTERM)
    assert notice.startswith(LINE)
    assert LINE in ended.err


def test_an_mcp_server_is_not_started(home: Home, tmp_path: Path) -> None:
    """A server that would run without a sandbox is an error, which says how to start it all the same."""
    (tmp_path / "config.toml").write_text('[mcp.x]\ncommand = ["true"]\n')
    ended = home.run("-p", "Hi.")
    assert ended.code == 1
    assert "mcp.x: it needs a sandbox: this system has no Landlock" in ended.err
    assert 'sandbox = "off" in this table starts it without one' in ended.err
