"""The tools of a server that others have written in another language: `server-everything` from npm, over stdio."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from halter import ToolOutcome
from halter.models import Image, Text
from halter.testing import Stop, ToolCalls
from halter.toolbox.mcp.mcp import MCP
from halter.tools.external import SpecTool
from tests.support.processes import is_alive
from tests.support.stopped_calls import PATIENT
from tests.support.waiting import wait_until

SERVER = Path(__file__).parents[3] / ".venv/js/node_modules/@modelcontextprotocol/server-everything/dist/index.js"
NODE = shutil.which("node")
LONG = {"duration": 400, "steps": 2000}  # the first report comes after 0.2 s

pytestmark = pytest.mark.skipif(
    NODE is None or not SERVER.exists(),
    reason="needs node and @modelcontextprotocol/server-everything: install npm, then run scripts/setup --group dev",
)


class Everything:
    """The server, started by a shell that ignores TERM and starts a helper that does so, too."""

    def __init__(self, notes: Path, before: str = "") -> None:
        self._notes = notes
        node = shlex.join([str(NODE), str(SERVER), "stdio"])
        helper = "sleep 1000 <&- >/dev/null 2>&1 & echo $$ $! >>pids"
        launcher = f"trap '' TERM; {helper}; {before} {node}; exit"
        self.mcp = MCP.stdio("sh", ["-c", launcher], cwd=str(notes))
        self.tools: list[SpecTool] = self.mcp.tools()

    @property
    def pids(self) -> list[int]:
        """The shells so far, and the helper of each."""
        return [int(line) for line in (self._notes / "pids").read_text().split()]

    def calls(self) -> ToolCalls:
        return ToolCalls(*self.tools, grace=PATIENT)

    def call(self, name: str, /, **arguments: Any) -> ToolOutcome:
        return self.calls().call(name, **arguments)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Everything]]:
    started: list[Everything] = []

    def begin(before: str = "") -> Everything:
        started.append(Everything(tmp_path, before))
        return started[-1]

    yield begin
    for each in started:
        each.mcp.close()


def test_tools_are_listed_called_and_stopped(start: Callable[..., Everything], tmp_path: Path) -> None:
    """Texts, pictures and blobs arrive, progress is reported, a stop in the middle is told to the server, which goes on
    serving, and after close() nothing is left of it. A tool that only runs as a task, which would always fail, is not
    offered.
    """
    server = start("tee -a sent |")
    listed = server.mcp._loop.do_blocking(server.mcp._list, 30)
    only_tasks = {each.name for each in listed if each.execution and each.execution.task_support == "required"}
    assert only_tasks
    assert {each.name for each in server.tools} == {each.name for each in listed} - only_tasks
    assert server.call("get-sum", a=2, b=3).content == "The sum of 2 and 3 is 5."
    picture = server.call("get-tiny-image").content
    assert isinstance(picture, list)
    assert [type(part) for part in picture] == [Text, Image, Text]
    blob = server.call("get-resource-reference", resourceType="Blob", resourceId=7).content
    assert "This is a base64 blob" in str(blob)
    calls = server.calls()
    assert "completed" in str(calls.call("trigger-long-running-operation", duration=0.1, steps=2).content)
    assert calls.reports == ["1 of 2", "2 of 2"]

    outcome = calls.call_stopped(Stop("stop", report="of 2000"), "trigger-long-running-operation", **LONG)
    assert (outcome.status, outcome.reason) == ("cancelled", "stop")
    wait_until(lambda: "notifications/cancelled" in (tmp_path / "sent").read_text())
    assert server.call("echo", message="still here").content == "Echo: still here"

    server.mcp.close()
    assert len(server.pids) == 2
    assert not [pid for pid in server.pids if is_alive(pid)]


def test_a_crash_is_told_and_a_new_server_is_started(start: Callable[..., Everything]) -> None:
    """The call in whose middle it dies fails, the next one has a new server, and close() leaves nothing of either,
    although what starts them ignores TERM.
    """
    server = start()
    calls = server.calls()
    crash = threading.Thread(target=lambda: (wait_until(lambda: calls.reports, 30), _kill_node(server.pids[0])))
    crash.start()
    outcome = calls.call("trigger-long-running-operation", **LONG)
    crash.join()
    assert outcome.status == "failed"
    assert "was lost during the call" in outcome.detail
    assert server.call("echo", message="again").content == "Echo: again"
    server.mcp.close()
    assert len(server.pids) == 4
    assert not [pid for pid in server.pids if is_alive(pid)]


def test_noise_among_the_messages_ends_nothing(
    start: Callable[..., Everything], capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """What starts it prints lines and bytes that are not text; the tools work, and no traceback is printed."""
    server = start(r"echo starting; printf '\377\376\n';")
    assert server.call("echo", message="heard").content == "Echo: heard"
    server.mcp.close()
    said = capfd.readouterr()
    assert "Traceback" not in said.out + said.err
    assert not [record for record in caplog.records if record.exc_info]


def _kill_node(shell: int) -> None:
    """Kill the server that this shell has started."""
    children = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
    server = next(pid for pid in children if b"server-everything" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(int(server), signal.SIGKILL)
