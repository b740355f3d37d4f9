"""`halter acp`: a cancelled prompt, a client that goes away and a signal, each at every moment of a turn."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import acp
import pytest

from halter.events import Event, ToolFinished, TurnFinished, TurnStopping
from halter.models import ToolCall
from halter.testing import FakeProvider, ScriptedReply, answer, hang_before_first_byte, hang_mid_stream, tool_calls
from tests.support.acp_client import Editor, LineClient, ask, editing, line_client, opened
from tests.support.cli_program import WAIT, Home
from tests.support.processes import wait_dead
from tests.support.waiting import wait_until

_SOON = 30.0  # seconds, on a busy machine; what is waited for would take a minute or for ever


def sleeping() -> ScriptedReply:
    """A call that runs a process for a minute, which has written its id into the file `pid`."""
    command = "echo $$ > new; mv new pid; exec sleep 60"
    return tool_calls([ToolCall("1", "terminal", json.dumps({"command": command}))])


def one(events: list[Event], kind: type) -> Any:
    """The only event of a kind."""
    [found] = [each.data for each in events if isinstance(each.data, kind)]
    return found


def check_stopped(home: Home, reason: str, detail: str) -> list[Event]:
    """The last turn is sealed as interrupted, and its log says who asked for that."""
    events = home.events()
    stopping, finished = one(events, TurnStopping), one(events, TurnFinished)
    assert (stopping.reason, stopping.detail, stopping.by) == (reason, detail, "the ACP client")
    assert (finished.status, finished.reason) == ("interrupted", reason)
    assert finished.after is not None
    return events


@pytest.mark.parametrize("reply", [hang_before_first_byte(), hang_mid_stream(2, text="Some words of it.")])
def test_a_cancelled_prompt_ends_at_once(
    home: Home, provider: FakeProvider, workspace: Path, reply: ScriptedReply
) -> None:
    """The prompt is answered as cancelled, the provider's connection is closed, and the next prompt works."""
    provider.script(reply, answer("Yes."))

    async def scenario() -> None:
        editor = Editor()
        async with editing(home, editor) as (connection, _):
            session = await opened(connection, workspace)
            prompt = ask(connection, session, "Tell me.")
            await provider.await_request(timeout=WAIT)
            if reply.fault != "silent":
                await editor.until(lambda: editor.text)
            began = time.monotonic()
            await connection.cancel(session_id=session)
            assert (await prompt).stop_reason == "cancelled"
            assert time.monotonic() - began < _SOON
            await provider.await_close(timeout=WAIT)
            check_stopped(home, "stop", "session/cancel")
            assert (await ask(connection, session, "Again?")).stop_reason == "end_turn"

    asyncio.run(scenario())
    asked = [each["content"] for each in provider.requests[1].body["messages"] if each["role"] == "user"]
    assert asked[0].startswith("Tell me.")
    assert "session/cancel" in home.run("why").out


def test_a_cancelled_command_is_dead(home: Home, provider: FakeProvider, workspace: Path) -> None:
    """When the prompt is answered as cancelled, the last update of its call was sent; the process is killed."""
    provider.script(sleeping())

    async def scenario() -> int:
        editor = Editor()
        async with editing(home, editor) as (connection, _):
            session = await opened(connection, workspace)
            prompt = ask(connection, session, "Sleep.")
            await editor.until(lambda: any("in_progress" in each for each in editor.calls.values()))
            await asyncio.get_running_loop().run_in_executor(None, wait_until, (workspace / "pid").exists, WAIT)
            await connection.cancel(session_id=session)
            assert (await prompt).stop_reason == "cancelled"
            [statuses] = editor.calls.values()
            assert statuses[-1] in ("completed", "failed")  # a partial result is one
            assert "stopped in" in editor.last("title")
        return int((workspace / "pid").read_text())

    wait_dead(asyncio.run(scenario()))
    events = check_stopped(home, "stop", "session/cancel")
    assert one(events, ToolFinished).outcome.status in ("partial", "cancelled")


def test_a_cancelled_prompt_withdraws_its_request_for_permission(
    home: Home, provider: FakeProvider, workspace: Path
) -> None:
    """The command never runs, its call gets its end, and the client is told that the request is cancelled."""
    provider.script(tool_calls([ToolCall("1", "terminal", '{"command": "touch made"}')]))
    with line_client(home) as client:
        session = client.begin(workspace)
        prompt = client.send("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "Make it."}])
        while (asked := client.read()).get("method") != "session/request_permission":
            pass
        client.notify("session/cancel", sessionId=session)
        seen: list[dict[str, Any]] = []
        while (message := client.read()).get("id") != prompt:
            seen.append(message)
        assert message["result"] == {"stopReason": "cancelled"}
        withdrawn = {"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": asked["id"]}}
        updates = [each["params"]["update"] for each in seen if each.get("method") == "session/update"]
        assert [each["status"] for each in updates if "status" in each][-1] == "failed"
        # The client answers all the same, as the protocol says. It is too late, and changes nothing.
        allowed = {"outcome": {"outcome": "selected", "optionId": "y"}}
        client.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": allowed}).encode() + b"\n")
        seen.append(client.read() if withdrawn not in seen else withdrawn)
        assert withdrawn in seen
        assert client.end() == 0
    assert not (workspace / "made").exists()


def test_an_outcome_of_cancelled_denies(home: Home, provider: FakeProvider, workspace: Path) -> None:
    """A request for permission that the client cancels, or cannot answer, is denied; the turn goes on."""
    provider.script(
        tool_calls([ToolCall("1", "terminal", '{"command": "touch made"}')]),
        tool_calls([ToolCall("2", "terminal", '{"command": "touch made"}')]),
        answer("Well."),
    )
    answers: list[dict[str, Any]] = [
        {"result": {"outcome": {"outcome": "cancelled"}}},
        {"error": {"code": -32603, "message": "no window"}},
    ]
    with line_client(home) as client:
        session = client.begin(workspace)
        prompt = client.send("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "Make it."}])
        for each in answers:
            while (asked := client.read()).get("method") != "session/request_permission":
                pass
            client.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **each}).encode() + b"\n")
        assert client.read_answer(prompt)["result"] == {"stopReason": "end_turn"}
        assert client.end() == 0
    results = [each["content"] for each in provider.requests[2].body["messages"] if each["role"] == "tool"]
    assert "was cancelled" in results[0]
    assert "no window" in results[1]
    assert not (workspace / "made").exists()


def test_a_cancel_in_the_same_moment_is_not_lost(home: Home, provider: FakeProvider, workspace: Path) -> None:
    """A cancel right behind its prompt stops it, and one that waits behind it, too; both texts are in the history."""
    slow = hang_before_first_byte()
    provider.script(*[lambda request: answer("Yes.") if "Three." in json.dumps(request.body) else slow] * 3)
    with line_client(home) as client:
        session = client.begin(workspace)
        numbers = [
            client.send("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])
            for text in ("One.", "Two.")
        ]
        client.notify("session/cancel", sessionId=session)
        for number in numbers:
            assert client.read_answer(number)["result"] == {"stopReason": "cancelled"}
        client.notify("session/cancel", sessionId=session)  # nothing runs: it must not stop what comes next
        third = client.send("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "Three."}])
        assert client.read_answer(third)["result"] == {"stopReason": "end_turn"}
        assert client.end() == 0
    texts = json.dumps(provider.requests[-1].body["messages"])
    assert all(each in texts for each in ("One.", "Two.", "Three."))


def test_one_request_can_be_cancelled(home: Home, provider: FakeProvider, workspace: Path) -> None:
    """`$/cancel_request` stops the prompt that it names, which is answered as cancelled."""
    provider.script(hang_mid_stream())
    with line_client(home) as client:
        session = client.begin(workspace)
        prompt = client.send("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "Go."}])
        provider.wait_for_pieces(1, timeout=WAIT)
        client.notify("$/cancel_request", requestId=prompt)
        assert client.read_answer(prompt)["result"] == {"stopReason": "cancelled"}
        provider.wait_for_close(timeout=WAIT)
        assert client.end() == 0
    check_stopped(home, "stop", "$/cancel_request")


def test_other_sessions_go_on(home: Home, provider: FakeProvider, workspace: Path) -> None:
    """A cancel stops the turns of its session and no others."""
    provider.script(hang_mid_stream(), answer("Yes."))

    async def scenario() -> None:
        async with editing(home, Editor()) as (connection, _):
            first, second = await opened(connection, workspace), await opened(connection, workspace)
            prompt = ask(connection, first, "One.")
            await provider.await_pieces(1, timeout=WAIT)
            await connection.cancel(session_id=second)
            await connection.cancel(session_id="unknown")
            assert (await ask(connection, second, "Two.")).stop_reason == "end_turn"
            assert not prompt.done()
            await connection.close_session(session_id=first)
            assert (await prompt).stop_reason == "cancelled"
            with pytest.raises(acp.RequestError, match="is not open"):
                await ask(connection, first, "Three.")

    asyncio.run(scenario())


def test_a_closed_input_stops_the_turn(home: Home, provider: FakeProvider, workspace: Path) -> None:
    """The end of the client's stream stops what runs: the process is dead, the turn sealed, the exit code 0."""
    provider.script(sleeping())
    (home.path / "config.toml").write_text('approve = "auto"\n')
    with line_client(home) as client:
        session = client.begin(workspace)
        prompt = client.send("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "Sleep."}])
        wait_until((workspace / "pid").exists, WAIT)
        began = time.monotonic()
        assert client.program.stdin is not None
        client.program.stdin.close()
        assert client.read_answer(prompt)["result"] == {"stopReason": "cancelled"}  # who still reads is answered
        assert client.program.wait(WAIT) == 0
        assert time.monotonic() - began < _SOON
    wait_dead(int((workspace / "pid").read_text()))
    check_stopped(home, "disconnect", "the client closed the connection")


def test_a_signal_stops_the_turn(home: Home, provider: FakeProvider, workspace: Path) -> None:
    """SIGTERM stops the turn, which is sealed, and the exit code is that of the signal; the input may stay open."""
    provider.script(hang_mid_stream())
    with line_client(home) as client:
        session = client.begin(workspace)
        prompt = client.send("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "Go."}])
        provider.wait_for_pieces(1, timeout=WAIT)
        began = time.monotonic()
        client.program.send_signal(signal.SIGTERM)
        assert client.read_answer(prompt)["result"] == {"stopReason": "cancelled"}
        assert client.program.wait(WAIT) == 128 + signal.SIGTERM
        assert time.monotonic() - began < _SOON
    provider.wait_for_close(timeout=WAIT)
    check_stopped(home, "shutdown", "SIGTERM")


# Starts the program as an editor does, has it run a command, says so, and waits.
_EDITOR = """
import json, subprocess, sys
agent = subprocess.Popen([sys.executable, "-m", "halter", "acp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def send(**message):
    agent.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\\n")
    agent.stdin.flush()
send(id=1, method="session/new", params={"cwd": sys.argv[1], "mcpServers": []})
session = json.loads(agent.stdout.readline())["result"]["sessionId"]
send(id=2, method="session/prompt", params={"sessionId": session, "prompt": [{"type": "text", "text": "Go."}]})
print(agent.pid, flush=True)
agent.wait()
"""


def test_a_killed_editor_leaves_nothing(home: Home, provider: FakeProvider, workspace: Path) -> None:
    """When the editor is killed, the agent stops its turn, seals it and ends, and so does the command."""
    provider.script(sleeping())
    (home.path / "config.toml").write_text('approve = "auto"\n')
    with subprocess.Popen(
        [sys.executable, "-c", _EDITOR, str(workspace)], env=home.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as editor:
        assert editor.stdout is not None
        agent = int(editor.stdout.readline())
        wait_until((workspace / "pid").exists, WAIT)
        os.kill(editor.pid, signal.SIGKILL)
        wait_dead(agent)
    wait_dead(int((workspace / "pid").read_text()))
    check_stopped(home, "disconnect", "the client closed the connection")


def big_requests(client: LineClient, count: int) -> None:
    """Send requests whose answers are large: an unknown method, with a long id."""
    for number in range(count):
        name = f"{number}".ljust(1_000_000, "x")
        client.write(json.dumps({"jsonrpc": "2.0", "id": name, "method": "unknown"}).encode() + b"\n")


def test_a_client_that_does_not_read_can_cancel(home: Home, provider: FakeProvider, workspace: Path) -> None:
    """The pipe to the client is full, and a cancel stops the turn all the same."""
    provider.script(hang_mid_stream())
    with line_client(home) as client:
        session = client.begin(workspace)
        prompt = client.send("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "Go."}])
        provider.wait_for_pieces(1, timeout=WAIT)
        big_requests(client, 5)
        client.notify("session/cancel", sessionId=session)
        provider.wait_for_close(timeout=_SOON)
        home.wait_until_sealed()
        assert client.read_answer(prompt)["result"] == {"stopReason": "cancelled"}  # nothing was lost
        big_requests(client, 2)
        began = time.monotonic()
        assert client.end() == 0
        assert time.monotonic() - began < _SOON
    check_stopped(home, "stop", "session/cancel")


def test_a_client_that_never_reads_is_disconnected(home: Home, provider: FakeProvider, workspace: Path) -> None:
    """What it does not read is kept up to a limit; then its turns are stopped, and the program ends with an error."""
    provider.script(hang_mid_stream())
    with line_client(home) as client:
        session = client.begin(workspace)
        client.send("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "Go."}])
        provider.wait_for_pieces(1, timeout=WAIT)
        with contextlib.suppress(BrokenPipeError):
            big_requests(client, 60)
        assert client.program.wait(WAIT) == 1
    provider.wait_for_close(timeout=WAIT)
    assert "did not read" in (home.path / "stderr").read_text()
    finished = one(home.events(), TurnFinished)
    assert (finished.status, finished.reason) == ("interrupted", "disconnect")
