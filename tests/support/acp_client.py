"""Editors for `halter acp`: the SDK's own client, which records what it gets, and a client that writes any line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import acp
from acp.schema import (
    AgentMessageChunk,
    AllowedOutcome,
    PermissionOption,
    RequestPermissionResponse,
    ToolCallProgress,
    ToolCallStart,
    ToolCallUpdate,
)

from tests.support.cli_program import WAIT, Home, ending

_PATIENT = {
    "HALTER_EXIT_TIMEOUT": "30"
}  # on a busy machine an exit takes long, and one that is forced has another code


class Editor:
    """The client's side of the SDK. *choose* is the option that it chooses; None: it never answers."""

    def __init__(self, choose: str | None = "y") -> None:
        self.choose = choose
        self.updates: list[Any] = []
        self.asked: list[tuple[ToolCallUpdate, list[PermissionOption]]] = []
        self._changed = asyncio.Event()

    def on_connect(self, conn: object) -> None:
        """The SDK calls it."""

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update)
        self._changed.set()

    async def request_permission(
        self, session_id: str, tool_call: ToolCallUpdate, options: list[PermissionOption], **_: Any
    ) -> RequestPermissionResponse:
        self.asked.append((tool_call, options))
        self._changed.set()
        if self.choose is None:
            await asyncio.Event().wait()
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=str(self.choose)))

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something has come."""
        async with asyncio.timeout(WAIT):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    @property
    def text(self) -> str:
        """The answers so far."""
        return "".join(each.content.text for each in self.updates if isinstance(each, AgentMessageChunk))

    @property
    def calls(self) -> dict[str, list[str | None]]:
        """The statuses of each call, in order, without those that only repeat."""
        found: dict[str, list[str | None]] = {}
        for each in self.updates:
            if isinstance(each, ToolCallStart | ToolCallProgress) and each.status is not None:
                found.setdefault(each.tool_call_id, []).append(each.status)
        return found

    def last(self, name: str) -> Any:
        """The last value of a field of a tool call."""
        values = [getattr(each, name) for each in self.updates if isinstance(each, ToolCallStart | ToolCallProgress)]
        return [each for each in values if each is not None][-1]


@contextlib.asynccontextmanager
async def editing(
    home: Home, editor: Any, *args: str, command: str = "acp", **env: str
) -> AsyncIterator[tuple[Any, asyncio.subprocess.Process]]:
    """The program, connected to an editor: gives the connection and the process. At the end its input is closed."""
    with (home.path / "stderr").open("wb") as errors:
        async with acp.spawn_agent_process(
            editor,
            sys.executable,
            "-m",
            "halter",
            command,
            *args,
            env=home.env | _PATIENT | env,
            use_unstable_protocol=True,
            transport_kwargs={"stderr": errors, "shutdown_timeout": WAIT},
        ) as (connection, process):
            await connection.initialize(protocol_version=acp.PROTOCOL_VERSION)
            yield connection, process
    assert process.returncode is not None


async def opened(connection: Any, workspace: Path) -> str:
    """A new session."""
    return str((await connection.new_session(cwd=str(workspace), mcp_servers=[])).session_id)


def ask(connection: Any, session: str, text: str) -> asyncio.Task[Any]:
    """Send a prompt; gives the task that waits for its answer."""
    return asyncio.create_task(connection.prompt(session_id=session, prompt=[acp.text_block(text)]))


class LineClient:
    """A client that writes any bytes, and reads lines."""

    def __init__(self, program: subprocess.Popen[bytes]) -> None:
        self.program = program
        self._last = 0

    def write(self, data: bytes) -> None:
        assert self.program.stdin is not None
        self.program.stdin.write(data)
        self.program.stdin.flush()

    def send(self, method: str, **params: Any) -> int:
        """Send a request; gives its id."""
        self._last += 1
        self.write(
            json.dumps({"jsonrpc": "2.0", "id": self._last, "method": method, "params": params}).encode() + b"\n"
        )
        return self._last

    def notify(self, method: str, **params: Any) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode() + b"\n")

    def read(self) -> dict[str, Any]:
        """The next message."""
        assert self.program.stdout is not None
        line = self.program.stdout.readline()
        assert line, "the program has ended"
        message: dict[str, Any] = json.loads(line)
        assert message["jsonrpc"] == "2.0"
        return message

    def read_answer(self, number: int) -> dict[str, Any]:
        """The answer to a request; what comes before it is skipped."""
        while True:
            message = self.read()
            if message.get("id") == number and "method" not in message:
                return message

    def request(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        return self.read_answer(self.send(method, **params))

    def begin(self, workspace: Path) -> str:
        """Initialize, and open a session."""
        assert self.request("initialize", protocolVersion=1)["result"]["protocolVersion"] == 1
        return str(self.request("session/new", cwd=str(workspace), mcpServers=[])["result"]["sessionId"])

    def end(self) -> int:
        """Close its input; gives the exit code."""
        assert self.program.stdin is not None
        self.program.stdin.close()
        return self.program.wait(WAIT)


@contextlib.contextmanager
def line_client(home: Home, command: str = "acp", **env: str) -> Iterator[LineClient]:
    """The program, with pipes."""
    with (home.path / "stderr").open("wb") as errors:
        program = subprocess.Popen(
            [sys.executable, "-m", "halter", command],
            env=home.env | _PATIENT | env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        with ending(program):
            yield LineClient(program)
