"""`halter mcp`: the agent as a tool, with the SDK's own client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters, stdio_client

from halter.events import ToolFinished, TurnFinished, TurnStopping
from halter.models import ToolCall
from halter.testing import FakeProvider, ScriptedReply, answer, hang_before_first_byte, hang_mid_stream, tool_calls
from tests.support.acp_client import line_client
from tests.support.cli_program import WAIT, Home
from tests.support.processes import wait_dead
from tests.support.waiting import wait_until

_SOON = 30.0  # seconds, on a busy machine; what is waited for would take a minute or for ever


@contextlib.asynccontextmanager
async def client_of(home: Home, *args: str, mode: str = "auto") -> AsyncIterator[Client]:
    """A client of the SDK, connected to the program."""
    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", "halter", "mcp", *args], env=home.env, cwd=home.path
    )
    with (home.path / "stderr").open("w") as errors:
        async with Client(stdio_client(parameters, errlog=errors), mode=mode) as client:
            yield client


def check_stopped(home: Home, reason: str, detail: str) -> None:
    """The last turn is sealed as interrupted, and its log says who asked for that."""
    home.wait_until_sealed()
    events = [each.data for each in home.events()]
    [stopping] = [each for each in events if isinstance(each, TurnStopping)]
    assert (stopping.reason, stopping.detail, stopping.by) == (reason, detail, "the MCP client")
    finished = events[-1]
    assert isinstance(finished, TurnFinished)
    assert (finished.status, finished.reason) == ("interrupted", reason)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_question_is_answered(home: Home, provider: FakeProvider, mode: str) -> None:
    """`ask` runs a turn and reports its calls; the session that it names goes on with the next question."""
    provider.script(tool_calls([ToolCall("1", "todo", '{"add": ["look"]}')]), answer("It is 42."), answer("Seven."))
    reported: list[tuple[float, str | None]] = []

    async def scenario() -> None:
        async def report(progress: float, total: float | None, message: str | None) -> None:
            reported.append((progress, message))

        async with client_of(home, mode=mode) as client:
            assert [each.name for each in (await client.list_tools()).tools] == ["ask"]
            first: Any = await client.call_tool("ask", {"text": "What is it?"}, progress_callback=report)
            assert (first.is_error, first.content[0].text) == (False, "It is 42.")
            session = first.structured_content["session"]
            assert session in first.content[1].text
            second: Any = await client.call_tool("ask", {"text": "And half?", "session": session})
            assert second.structured_content == {"answer": "Seven.", "session": session, "status": "done"}

    asyncio.run(scenario())
    assert [each[0] for each in reported] == [1, 2]
    assert str(reported[0][1]).startswith("todo")
    asked = [each["content"] for each in provider.requests[2].body["messages"] if each["role"] == "user"]
    assert asked == ["What is it?", "And half?"]
    assert "What is it?" in home.run("sessions").out


def test_each_agent_is_a_tool(home: Home, provider: FakeProvider) -> None:
    """The agents of the settings have tools of their own, and their own instructions."""
    (home.path / "config.toml").write_text('[agents.critic]\ninstructions = "Criticise."\ntools = []\n')
    provider.script(answer("Bad."))

    async def scenario() -> None:
        async with client_of(home, "serve", "--tools", "none") as client:
            assert [each.name for each in (await client.list_tools()).tools] == ["ask", "ask_critic"]
            result: Any = await client.call_tool("ask_critic", {"text": "How is it?"})
            assert result.content[0].text == "Bad."

    asyncio.run(scenario())
    assert provider.requests[0].body["messages"][0]["content"] == "Criticise."


def test_what_cannot_be_answered_is_an_error(home: Home, provider: FakeProvider) -> None:
    """A tool that does not exist, wrong arguments, a turn that fails: each is a result that says so."""
    provider.script(tool_calls([ToolCall("1", "todo", "{}")]))

    async def scenario() -> list[tuple[bool, str]]:
        async with client_of(home, "--max-steps", "1") as client:
            results: list[Any] = [
                await client.call_tool("nothing", {"text": "Hi."}),
                await client.call_tool("ask", {"words": "Hi."}),
                await client.call_tool("ask", {"text": "Hi.", "session": "x" * 300}),
                await client.call_tool("ask", {"text": " "}),
                await client.call_tool("ask", {"text": "Hi."}),
            ]
            return [(each.is_error, each.content[0].text) for each in results]

    told = asyncio.run(scenario())
    assert all(is_error for is_error, _ in told)
    for (_, text), wanted in zip(
        told, ["known: ask", "`words`", "200 characters", "not empty", "step_limit"], strict=True
    ):
        assert wanted in text


def test_nobody_can_be_asked(home: Home, provider: FakeProvider) -> None:
    """A question is answered with that, and a command that needs approval outside of the sandbox is denied."""
    provider.script(
        tool_calls([ToolCall("1", "clarify", '{"question": "Which?"}')]),
        tool_calls([ToolCall("2", "terminal", '{"command": "touch made"}')]),
        answer("Well."),
    )

    async def scenario() -> None:
        async with client_of(home, "--sandbox", "off") as client:
            result: Any = await client.call_tool("ask", {"text": "Go."})
            assert result.content[0].text == "Well."

    asyncio.run(scenario())
    results = [each["content"] for each in provider.requests[2].body["messages"] if each["role"] == "tool"]
    assert "nobody can be asked" in results[0]
    outcomes = [each.data.outcome for each in home.events() if isinstance(each.data, ToolFinished)]
    assert [each.status for each in outcomes] == ["completed", "denied"]
    assert not (home.path / "made").exists()


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("reply", [hang_before_first_byte(), hang_mid_stream()])
def test_a_cancelled_request_stops_its_turn(
    home: Home, provider: FakeProvider, mode: str, reply: ScriptedReply
) -> None:
    """The provider's connection is closed at once, the turn is sealed, and its session goes on."""
    provider.script(reply, answer("Yes."))

    async def scenario() -> None:
        async with client_of(home, mode=mode) as client:
            asking = asyncio.create_task(client.call_tool("ask", {"text": "Go.", "session": "mine"}))
            await provider.await_request(timeout=WAIT)
            began = time.monotonic()
            asking.cancel()
            assert await provider.await_close(timeout=WAIT) - began < _SOON
            result: Any = await client.call_tool("ask", {"text": "Again.", "session": "mine"})
            assert result.content[0].text == "Yes."

    asyncio.run(scenario())
    events = [each.data for each in home.events()]
    [stopping] = [each for each in events if isinstance(each, TurnStopping)]
    assert (stopping.reason, stopping.by) == ("stop", "the MCP client")
    assert [each.status for each in events if isinstance(each, TurnFinished)] == ["interrupted", "done"]


def test_a_cancelled_command_is_dead(home: Home, provider: FakeProvider, tmp_path: Path) -> None:
    """A request that is cancelled while a command runs ends the process."""
    command = json.dumps({"command": "echo $$ > new; mv new pid; exec sleep 60"})
    provider.script(tool_calls([ToolCall("1", "terminal", command)]))

    async def scenario() -> None:
        async with client_of(home) as client:
            asking = asyncio.create_task(client.call_tool("ask", {"text": "Sleep."}))
            await asyncio.get_running_loop().run_in_executor(None, wait_until, (home.path / "pid").exists, WAIT)
            asking.cancel()
            pid = int((home.path / "pid").read_text())
            await asyncio.get_running_loop().run_in_executor(None, wait_dead, pid)

    asyncio.run(scenario())
    check_stopped(home, "stop", "notifications/cancelled")


def _ask(home: Home, number: int, text: str) -> bytes:
    params = {"name": "ask", "arguments": {"text": text}}
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).encode() + b"\n"


_HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


@pytest.mark.parametrize(
    ("ending", "code", "reason", "detail"),
    [("close", 0, "disconnect", "the client closed the connection"), ("signal", 143, "shutdown", "SIGTERM")],
)
def test_the_end_of_the_client_stops_the_turn(
    home: Home, provider: FakeProvider, ending: str, code: int, reason: str, detail: str
) -> None:
    """A closed input and a signal stop what runs and end the program in time; lines that are no messages do not."""
    provider.script(hang_mid_stream())
    with line_client(home, "mcp") as client:
        client.write(b"hello\n")
        assert client.read()["error"]["code"] == -32700
        assert "result" in client.request("initialize", **_HELLO)
        client.notify("notifications/initialized")
        client.write(_ask(home, 7, "Go."))
        provider.wait_for_pieces(1, timeout=WAIT)
        began = time.monotonic()
        if ending == "signal":
            client.program.send_signal(signal.SIGTERM)
            assert client.program.wait(WAIT) == code
        else:
            assert client.end() == code
        assert time.monotonic() - began < _SOON
    provider.wait_for_close(timeout=WAIT)
    check_stopped(home, reason, detail)


def test_a_client_that_does_not_read_can_leave(home: Home, provider: FakeProvider) -> None:
    """With a full pipe to the client, the end of its input ends the turn and the program all the same."""
    provider.script(hang_mid_stream())
    with line_client(home, "mcp") as client:
        client.request("initialize", **_HELLO)
        client.write(_ask(home, 7, "Go."))
        provider.wait_for_pieces(1, timeout=WAIT)
        for number in range(5):
            name = f"{number}".ljust(1_000_000, "x")
            client.write(json.dumps({"jsonrpc": "2.0", "id": name, "method": "ping"}).encode() + b"\n")
        began = time.monotonic()
        assert client.end() == 0
        assert time.monotonic() - began < _SOON
    check_stopped(home, "disconnect", "the client closed the connection")


_PARENT = """
import json, subprocess, sys
server = subprocess.Popen([sys.executable, "-m", "halter", "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
for line in sys.argv[1:]:
    server.stdin.write(line.encode() + b"\\n")
server.stdin.flush()
print(server.pid, flush=True)
server.wait()
"""


def test_a_killed_client_leaves_nothing(home: Home, provider: FakeProvider) -> None:
    """When the client is killed, the turn is stopped and sealed, and the program ends."""
    provider.script(hang_mid_stream())
    hello = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": _HELLO})
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT, hello, _ask(home, 2, "Go.").decode().strip()],
        env=home.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as parent:
        assert parent.stdout is not None
        server = int(parent.stdout.readline())
        provider.wait_for_pieces(1, timeout=WAIT)
        os.kill(parent.pid, signal.SIGKILL)
        wait_dead(server)
    provider.wait_for_close(timeout=WAIT)
    check_stopped(home, "disconnect", "the client closed the connection")
