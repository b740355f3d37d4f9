"""`halter acp`: messages that are wrong, too long or unknown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from halter.models import ToolCall
from halter.protocols.line_stream import MAX_LINE
from halter.testing import FakeProvider, answer, tool_calls
from tests.support.acp_client import LineClient, line_client
from tests.support.cli_program import Home

_DEEP = b"[" * 50_000 + b"]" * 50_000


def error(client: LineClient) -> tuple[object, int]:
    """The id and the code of the next message, which is an error."""
    message = client.read()
    return message["id"], message["error"]["code"]


def test_wrong_messages_are_answered(home: Home, provider: FakeProvider, workspace: Path) -> None:
    """What is no message, or not understood, is answered with its error; nothing of it ends the connection."""
    provider.script(answer("Yes."))
    wrong: list[tuple[bytes, object, int]] = [
        (b"hello", None, -32700),
        (b"\xff\xfe\x00", None, -32700),
        (b'{"id": 1', None, -32700),
        (b'{"jsonrpc": "2.0", "id": 5, "method": "initialize", "params": ' + b"[" * 100_000, None, -32700),
        (b"[]", None, -32600),
        (b"42", None, -32600),
        (b'{"jsonrpc": "2.0", "id": 7}', 7, -32600),
        (b'{"jsonrpc": "2.0", "id": {}, "method": "initialize"}', None, -32600),
        (b'{"jsonrpc": "2.0", "id": "a", "method": "nothing"}', "a", -32601),
        (b'{"jsonrpc": "2.0", "id": 8, "method": "authenticate", "params": {}}', 8, -32601),
        (b'{"jsonrpc": "2.0", "id": 9, "method": "session/new", "params": {"cwd": 5}}', 9, -32602),
        (b'{"jsonrpc": "2.0", "id": 9, "method": "session/new", "params": []}', 9, -32602),
        (b'{"jsonrpc": "2.0", "id": 9, "method": "session/new", "params": {"cwd": "\xff"}}', 9, -32602),
        (b'{"jsonrpc": "2.0", "id": 9, "method": "session/new", "params": {"x": ' + _DEEP + b"}}", None, -32700),
        (b'{"jsonrpc": "2.0", "id": 10, "method": "session/prompt"}', 10, -32602),
        (
            b'{"jsonrpc": "2.0", "id": 11, "method": "session/prompt", "params": {"sessionId": "x", "prompt": []}}',
            11,
            -32002,
        ),
        (b'{"jsonrpc": "2.0", "id": 12, "method": "session/list", "params": {"cursor": "x"}}', 12, -32602),
    ]
    with line_client(home) as client:
        for line, number, code in wrong:
            client.write(line + b"\n")
            assert error(client) == (number, code), line
        for ignored in (
            b"",
            b"  ",
            b'{"jsonrpc": "2.0", "method": "nothing"}',
            b'{"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": 5}}',
            b'{"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 99}}',
            b'{"jsonrpc": "2.0", "id": 99, "result": {}}',
            b'{"jsonrpc": "2.0", "id": "99", "error": {"code": 1, "message": "?"}}',
        ):
            client.write(ignored + b"\r\n")
        session = client.begin(workspace)
        prompt = client.request("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "Well?"}])
        assert prompt["result"] == {"stopReason": "end_turn"}
        assert client.end() == 0


def test_a_message_that_is_too_long_is_skipped(home: Home) -> None:
    """A line beyond the limit is answered with an error, without being kept; the next one is read."""
    with line_client(home) as client:
        client.request("initialize", protocolVersion=1)
        client.write(b'{"jsonrpc": "2.0", "id": 1, "method": "')
        for _ in range(MAX_LINE // 1_000_000 + 2):
            client.write(b"x" * 1_000_000)
        client.write(b'"}\n')
        assert error(client) == (None, -32600)
        assert "result" in client.request("initialize", protocolVersion=1)
        status = Path(f"/proc/{client.program.pid}/status").read_text()
        assert int(status.partition("VmHWM:")[2].split()[0]) < 400_000  # kB
        assert client.end() == 0


def test_an_id_that_is_in_use_is_refused(home: Home, provider: FakeProvider, workspace: Path) -> None:
    """A second request with the id of an open one gets an error; the first one is answered as ever."""
    provider.script(answer("Yes.", delay=0.5))
    with line_client(home) as client:
        session = client.begin(workspace)
        prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "Well?"}]}
        line = json.dumps({"jsonrpc": "2.0", "id": "one", "method": "session/prompt", "params": prompt}).encode()
        client.write(line + b"\n" + line + b"\n")
        assert error(client) == ("one", -32600)
        while "result" not in (message := client.read()):
            assert message["method"] == "session/update"
        assert message["result"] == {"stopReason": "end_turn"}
        assert client.end() == 0


def test_what_tools_print_is_not_part_of_the_protocol(home: Home, provider: FakeProvider, workspace: Path) -> None:
    """What a tool or its process prints goes to standard error, and neither can read the lines of the client."""
    home.write_module(
        "import subprocess, sys\ndef shout() -> str:\n    'Shout.'\n    print('printed')\n"
        "    subprocess.run(['sh', '-c', 'echo echoed; cat'], check=True)\n    return repr(sys.stdin.read())\n"
    )
    provider.script(tool_calls([ToolCall("1", "shout", "{}")]), answer("Done."))
    with line_client(home, HALTER_TOOLS="mytools:shout") as client:
        session = client.begin(workspace)
        prompt = client.request("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "Shout."}])
        assert prompt["result"] == {"stopReason": "end_turn"}
        assert client.end() == 0
    assert provider.requests[1].body["messages"][-1]["content"] == "''"
    said = (home.path / "stderr").read_text()
    assert "echoed" in said
    assert "printed" in said


@pytest.mark.parametrize("command", ["acp", "mcp"])
def test_a_start_that_fails_is_told(home: Home, command: str) -> None:
    """What is wrong with the settings is told in one line on standard error, with exit code 1."""
    ended = home.run(command, stdin="", HALTER_TOOLS="nonsense")
    assert (ended.code, ended.out) == (1, "")
    assert "unknown tool 'nonsense'" in ended.err
