"""`halter acp`: sessions that are stored, listed, loaded, resumed and closed; and the client's MCP servers."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import acp
import pytest
from acp.schema import (
    AgentMessageChunk,
    AgentPlanUpdate,
    AgentThoughtChunk,
    EnvVariable,
    McpServerStdio,
    SseMcpServer,
    ToolCallStart,
    UserMessageChunk,
)

from halter.models import ToolCall
from halter.testing import FakeProvider, answer, hang_mid_stream, tool_calls
from tests.support.acp_client import Editor, ask, editing, opened
from tests.support.cli_program import WAIT, Home


def test_a_conversation_is_loaded(home: Home, provider: FakeProvider, workspace: Path) -> None:
    """A session that another process has stored is shown as it was, before its load is answered, and goes on."""
    provider.script(
        tool_calls([ToolCall("1", "todo", '{"add": ["look"]}')], text="Let me see."),
        answer("It is 42.", reasoning="Hm."),
        hang_mid_stream(2, text="Half of it."),
        answer("And more."),
    )

    async def store() -> str:
        editor = Editor()
        async with editing(home, editor) as (connection, _):
            session = await opened(connection, workspace)
            await ask(connection, session, "What is it?")
            prompt = ask(connection, session, "And then?")
            await provider.await_pieces(2, request=3, timeout=WAIT)
            await editor.until(lambda: "Half" in editor.text)
            await connection.cancel(session_id=session)
            await prompt
            return session

    async def load(session: str) -> None:
        editor = Editor()
        async with editing(home, editor) as (connection, _):
            [listed] = (await connection.list_sessions(cwd=str(workspace))).sessions
            assert (listed.session_id, listed.cwd, listed.title) == (session, str(workspace), "What is it?")
            assert (await connection.list_sessions(cwd="/elsewhere")).sessions == []
            await connection.load_session(session_id=session, cwd=str(workspace), mcp_servers=[])
            shown = [(type(each), getattr(getattr(each, "content", None), "text", "")) for each in editor.updates]
            assert shown == [
                (UserMessageChunk, "What is it?"),
                (AgentMessageChunk, "Let me see."),
                (ToolCallStart, ""),
                (AgentThoughtChunk, "Hm."),
                (AgentMessageChunk, "It is 42."),
                (UserMessageChunk, "And then?"),
                (AgentMessageChunk, editor.updates[6].content.text),
                (AgentPlanUpdate, ""),
            ]
            assert editor.updates[2].status == "completed"
            assert editor.updates[6].content.text.startswith("Half")
            await connection.resume_session(session_id=session, cwd=str(workspace), mcp_servers=[])
            assert len(editor.updates) == len(shown)
            assert (await ask(connection, session, "Go on.")).stop_reason == "end_turn"

    session = asyncio.run(store())
    asyncio.run(load(session))
    asked = [each["content"] for each in provider.requests[-1].body["messages"] if each["role"] == "user"]
    assert asked[0] == "What is it?"
    assert asked[-1].endswith("Go on.")
    assert home.run("-p", "More?", "--session", session).code == 0


def test_what_cannot_be_opened(home: Home, provider: FakeProvider, workspace: Path) -> None:
    """Sessions that do not exist, are used elsewhere or run a prompt, and folders that are none, are refused."""
    provider.script(hang_mid_stream())

    async def scenario() -> None:
        async with editing(home, Editor()) as (connection, _), editing(home, Editor()) as (other, _):
            with pytest.raises(acp.RequestError, match="There is no session 'nobody'"):
                await connection.load_session(session_id="nobody", cwd=str(workspace), mcp_servers=[])
            for folder in ("relative", str(workspace / "gone")):
                with pytest.raises(acp.RequestError, match="absolute path of a directory"):
                    await connection.new_session(cwd=folder, mcp_servers=[])
            sse = SseMcpServer(type="sse", name="old", url="http://127.0.0.1:1/", headers=[])
            with pytest.raises(acp.RequestError, match="'sse' is not supported"):
                await connection.new_session(cwd=str(workspace), mcp_servers=[sse])
            session = await opened(connection, workspace)
            prompt = ask(connection, session, "Go.")
            await provider.await_pieces(1, timeout=WAIT)
            with pytest.raises(acp.RequestError, match="is running"):
                await connection.load_session(session_id=session, cwd=str(workspace), mcp_servers=[])
            with pytest.raises(acp.RequestError, match="is open in process"):
                await other.load_session(session_id=session, cwd=str(workspace), mcp_servers=[])
            await connection.cancel(session_id=session)
            await prompt
            await connection.close_session(session_id=session)
            await other.load_session(session_id=session, cwd=str(workspace), mcp_servers=[])

    asyncio.run(scenario())


def test_a_session_without_a_message_is_not_stored(home: Home, workspace: Path) -> None:
    """Opening a session in the editor and leaving it, or an empty prompt, leaves no empty session in the list."""

    async def scenario() -> None:
        async with editing(home, Editor()) as (connection, _):
            session = await opened(connection, workspace)
            with pytest.raises(acp.RequestError, match="not empty"):
                await connection.prompt(session_id=session, prompt=[])
            assert (await connection.list_sessions()).sessions == []

    asyncio.run(scenario())
    assert home.events() == []


def test_long_lists_come_in_pages(home: Home, provider: FakeProvider, workspace: Path) -> None:
    """A list goes on where the last answer ended; a cursor that nobody gave is refused."""
    home.write_module(
        "from halter import Agent\nfrom halter.stores import SQLiteStore\nfrom halter.testing import ScriptedModel\n"
        "import os\nwith SQLiteStore(os.environ['HALTER_HOME'] + '/sessions.db') as store:\n"
        "    for number in range(60):\n"
        "        with Agent(ScriptedModel('Yes.')).session(f's{number}', store) as session:\n"
        "            session.post('Hello.')\n"
    )

    async def scenario() -> None:
        filling = await asyncio.create_subprocess_exec(sys.executable, "-m", "mytools", env=home.env)
        assert await filling.wait() == 0
        async with editing(home, Editor()) as (connection, _):
            first = await connection.list_sessions()
            assert len(first.sessions) == 50
            second = await connection.list_sessions(cursor=first.next_cursor)
            assert (len(second.sessions), second.next_cursor) == (10, None)
            assert len({each.session_id for each in [*first.sessions, *second.sessions]}) == 60
            with pytest.raises(acp.RequestError, match="Invalid cursor"):
                await connection.list_sessions(cursor="made up")

    asyncio.run(scenario())


def test_the_tools_of_the_editors_servers_are_used(home: Home, provider: FakeProvider, workspace: Path) -> None:
    """The model has the tools of an MCP server that the client names; one that does not start is told of."""
    (home.path / "server.py").write_text(
        "from mcp.server.mcpserver import MCPServer\nimport os\nserver = MCPServer('s')\n"
        "@server.tool()\ndef greet(name: str) -> str:\n    'Greet.'\n    return os.environ['WORD'] + ' ' + name\n"
        "server.run()\n"
    )
    provider.script(tool_calls([ToolCall("1", "my_server_greet", json.dumps({"name": "Ada"}))]), answer("Done."))
    good = McpServerStdio(
        name="my server",
        command=sys.executable,
        args=[str(home.path / "server.py")],
        env=[EnvVariable(name="WORD", value="Hello")],
    )
    bad = McpServerStdio(name="bad", command="/nowhere/at/all", args=[], env=[])

    async def scenario() -> None:
        editor = Editor()
        async with editing(home, editor, "--sandbox", "off") as (connection, _):
            opened = await connection.new_session(cwd=str(workspace), mcp_servers=[good, bad])
            assert (await ask(connection, opened.session_id, "Greet Ada.")).stop_reason == "end_turn"
        thoughts = "".join(each.content.text for each in editor.updates if isinstance(each, AgentThoughtChunk))
        assert "MCP server 'bad': no tools" in thoughts

    asyncio.run(scenario())
    assert provider.requests[1].body["messages"][-1]["content"] == "Hello Ada"
