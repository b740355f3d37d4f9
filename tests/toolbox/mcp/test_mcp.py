"""The tools of MCP servers: real ones, over both transports."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from mcp.types import Tool, ToolExecution

from halter import Agent, ToolOutcome
from halter.models import Image, Text, ToolCall
from halter.testing import Moment, ScriptedModel, Stop, ToolCalls
from halter.toolbox.mcp.connection import ServerFailed
from halter.toolbox.mcp.mcp import MCP
from tests.support.mcp_server import PIXEL
from tests.support.ports import held_ports
from tests.support.processes import is_alive, run_python, wait_dead
from tests.support.stopped_calls import IN_THE_MIDDLE, PATIENT, STOP_OR_STEER, every_moment, patient
from tests.support.time_limits import call_limited
from tests.support.waiting import wait_until

SERVER = str(Path(__file__).parents[2] / "support" / "mcp_server.py")
KINDS = ["stdio", "stdio legacy", "http", "http legacy"]


class Served:
    """A server, our end of it, and the folder in which it takes notes."""

    def __init__(self, kind: str, notes: Path, port: int = 0) -> None:
        self.notes = notes
        self.process: subprocess.Popen[bytes] | None = None
        mode = "legacy" if "legacy" in kind else "auto"
        if kind.startswith("stdio"):
            self.mcp = MCP.stdio(sys.executable, [SERVER, "stdio", str(notes)], mode=mode)
        else:
            self.start_http(port)
            self.mcp = MCP.http(f"http://127.0.0.1:{self.port}/mcp", mode=mode)
        self.tools = self.mcp.tools()

    def start_http(self, port: int) -> None:
        (self.notes / "port").unlink(missing_ok=True)
        self.process = subprocess.Popen([sys.executable, SERVER, "http", str(self.notes), str(port)])
        wait_until(self.notes.joinpath("port").exists, 30)
        self.port = (self.notes / "port").read_text()

    def has_noted(self, name: str) -> bool:
        return (self.notes / name).exists()

    def calls(self) -> ToolCalls:
        return ToolCalls(*self.tools, grace=PATIENT)

    def call(self, name: str, /, **arguments: Any) -> ToolOutcome:
        return self.calls().call(name, **arguments)

    def call_stopped(self, until: str, name: str, /, **arguments: Any) -> ToolOutcome:
        """Stop a call when the server has noted something."""
        stop = Stop("stop", wait=lambda: wait_until(lambda: self.has_noted(until)))
        return self.calls().call_stopped(stop, name, **arguments)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)

    def close(self) -> None:
        self.mcp.close()
        self.kill()


@pytest.fixture(scope="module", params=KINDS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served(request.param, tmp_path_factory.mktemp("notes"))
    yield server
    server.close()


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Served]:
    """A server over stdio, for a test that harms it."""
    server = Served("stdio", tmp_path)
    yield server
    server.close()


def test_tools_are_as_the_server_describes_them(served: Served) -> None:
    """Name, words and schema are the server's; a name that no provider takes is made into one that all do."""
    specs = {each.name: each.spec for each in served.tools}
    assert specs["add"].description == "Add two numbers."
    assert specs["add"].parameters["properties"]["a"]["type"] == "integer"
    assert specs["add"].parameters["required"] == ["a", "b"]
    assert "odd_name_here" in specs
    assert served.call("odd_name_here").content == "odd"


def test_results_are_text_pictures_and_errors(served: Served) -> None:
    """Text stays text, a picture is a part with its bytes, and what the server calls an error is a failed outcome."""
    assert served.call("add", a=2, b=3).content == "5"
    assert served.call("picture").content == [Text("one pixel:"), Image(PIXEL, media_type="image/png")]
    failed = served.call("wrong")
    assert failed.status == "failed"
    assert "the cupboard is bare" in failed.detail
    refused = served.call("add", a="x")
    assert refused.status == "failed"
    assert "Field required" in refused.detail


def test_arguments_that_are_no_object_never_reach_the_server(served: Served) -> None:
    """What is no JSON object is refused here, with words for the model."""
    outcome = asyncio.run(served.calls().run(ToolCall("1", "add", "[1, 2]")))
    assert outcome.status == "failed"
    assert "must be one JSON object" in outcome.detail


def test_progress_is_reported(served: Served) -> None:
    """The server's notifications of progress become reports of the call, in order."""
    calls = served.calls()
    assert calls.call("steps", count=3).content == "all steps done"
    assert calls.reports == ["step 1 (1 of 3)", "step 2 (2 of 3)", "step 3 (3 of 3)"]


@pytest.mark.parametrize("reason", STOP_OR_STEER)
@every_moment
def test_a_stop_at_any_moment_leaves_the_server_usable(served: Served, moment: Moment, reason: str) -> None:
    """Control is back with what there is, the server is told of the stop, and it answers the next call."""
    name = f"{moment}-{reason}"
    calls = served.calls()
    stop = Stop(reason, moment, wait=lambda: wait_until(lambda: served.has_noted(f"{name}-begun") and calls.reports))
    if moment == "end":
        outcome = calls.call_stopped(stop, "add", a=1, b=1)
        assert (outcome.status, outcome.content) == ("completed", "2")
    else:
        outcome = calls.call_stopped(stop, "slow", name=name)
        assert outcome.status == ("not_started" if moment == "before" else "cancelled")
        assert outcome.reason == reason
    if moment in IN_THE_MIDDLE:
        wait_until(lambda: served.has_noted(f"{name}-cancelled"))
        assert calls.reports == ["looking (1 of 3)"]
    elif served.has_noted(f"{name}-begun"):  # it may have been told before the stop was heard
        wait_until(lambda: served.has_noted(f"{name}-cancelled"))
    assert served.call("add", a=1, b=2).content == "3"


def test_a_late_answer_is_ignored(served: Served) -> None:
    """A server that does not listen to the cancellation answers when it likes, and nobody takes it for another's."""
    outcome = served.call_stopped("late-begun", "deaf", name="late")
    assert (outcome.status, outcome.content) == ("cancelled", "")
    (served.notes / "late-go").touch()
    wait_until(lambda: served.has_noted("late-ended"))
    assert served.call("add", a=3, b=4).content == "7"
    assert outcome.late is None


def test_calls_side_by_side_are_stopped_alone(served: Served) -> None:
    """Of two calls on two loops the stop of one leaves the other at work."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(served.call("deaf", name="other")))
    thread.start()
    wait_until(lambda: served.has_noted("other-begun"))
    assert served.call_stopped("one-begun", "slow", name="one").status == "cancelled"
    (served.notes / "other-go").touch()
    thread.join(30)
    assert found[0].content == "the late answer of other"


def test_a_server_that_died_is_started_again(child: Served) -> None:
    """The call in whose middle it dies fails and tells its last words; the next one finds a new server."""
    first = child.call("number").content
    outcome = child.call("crash")
    assert outcome.status == "failed"
    assert "was lost during the call" in outcome.detail
    assert "the last words" in outcome.detail
    second = child.call("number").content
    assert first != second


def test_a_server_that_died_in_between_harms_no_call(child: Served) -> None:
    """One that was killed while nobody called it is replaced before the next call."""
    pid = int(str(child.call("number").content))
    connection = child.mcp._connection._connection
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: connection is not None and connection.is_dead)
    assert child.call("number").status == "completed"


def test_a_server_that_was_restarted_is_found_again(tmp_path: Path) -> None:
    """Over HTTP a call fails while the server is away, and the next one after its return works."""
    with held_ports() as [port], contextlib.closing(Served("http legacy", tmp_path, port)) as served:
        assert served.call("add", a=1, b=2).content == "3"
        served.kill()
        gone = served.call("add", a=1, b=2)
        assert gone.status == "failed"
        assert "127.0.0.1" in gone.detail
        served.start_http(port)
        assert served.call("add", a=1, b=2).content == "3"


def test_a_forgotten_session_is_opened_again(tmp_path: Path) -> None:
    """A server that was restarted between two calls knows our session no more: it is asked for a new one."""
    with held_ports() as [port], contextlib.closing(Served("http legacy", tmp_path, port)) as served:
        served.kill()
        served.start_http(port)
        assert served.call("add", a=1, b=2).content == "3"


class ForgetfulServer:
    """A server over HTTP that "restarts" in the middle of the first call, after its effect."""

    def __init__(self) -> None:
        self.effects = 0
        self.session = ""
        self.streams: list[asyncio.Transport] = []
        self.has_refused_stream = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        known = request.headers.get("mcp-session-id")
        if known is not None and known != self.session:
            if request.method == "GET":
                self.has_refused_stream.set()
            return web.Response(status=404)
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if request.method == "GET":
            await stream.prepare(request)
            assert request.transport is not None
            self.streams.append(request.transport)
            await asyncio.Event().wait()
        message = await request.json() if request.method == "POST" else {}
        method = message.get("method")
        result: dict[str, Any] = {}
        headers: dict[str, str] = {}
        if "id" not in message:
            return web.Response(status=202)
        if method == "initialize":
            self.session = headers["mcp-session-id"] = f"session {self.effects}"
            about = {"name": "x", "version": "1"}
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}
        elif method == "tools/list":
            result = {"tools": [{"name": "pay", "inputSchema": {"type": "object"}}]}
        elif method == "tools/call":
            self.effects += 1
            if self.effects == 1:
                await stream.prepare(request)
                await stream.write(b": begun\n\n")
                self.session = ""
                for each in self.streams:
                    each.abort()
                await self.has_refused_stream.wait()
                assert request.transport is not None
                request.transport.abort()
                return stream
            result = {"content": [{"type": "text", "text": f"paid {self.effects}"}]}
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result}, headers=headers)


async def call_twice(server: ForgetfulServer) -> list[ToolOutcome]:
    app = web.Application()
    app.router.add_route("*", "/mcp", server.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        mcp = MCP.http(f"http://127.0.0.1:{runner.addresses[0][1]}/mcp", mode="legacy")
        calls = ToolCalls(*await mcp.atools(), grace=PATIENT)
        outcomes = [await asyncio.to_thread(calls.call, "pay") for _ in range(2)]
        await asyncio.to_thread(mcp.close)
        return outcomes
    finally:
        await runner.cleanup()


def test_a_call_that_is_lost_in_a_restart_is_not_made_again() -> None:
    """A server was restarted after a payment, before its answer: the payment was made a second time, silently."""
    server = ForgetfulServer()
    lost, paid = asyncio.run(call_twice(server))
    assert lost.status == "failed"
    assert "whether the call had an effect is not known" in lost.detail
    assert paid.content == "paid 2"


UNFIT_SERVER = """
import json, os, sys
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
ABOUT = {"name": "x", "version": "1"}
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": ABOUT}
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("unfit", "unknown", "wait", "pid")]
TOOLS[0]["outputSchema"] = SCHEMA
waiting = None
for line in sys.stdin:
    message = json.loads(line)
    number, method = message.get("id"), message.get("method")
    if number is None:
        continue
    content = [{"type": "text", "text": str(os.getpid())}]
    results = {"initialize": HELLO, "tools/list": {"tools": TOOLS}}
    if method == "tools/call":
        name = message["params"]["name"]
        if name == "wait":
            waiting = number
            open(sys.argv[1], "x").close()
            continue
        structured = {"structuredContent": {"n": "no number"}} if name == "unfit" else {}
        results[method] = {"content": 1 if name == "unknown" else content, **structured}
    answers = [number] if method != "tools/call" or name != "pid" else [waiting, number]
    for each in answers:
        print(json.dumps({"jsonrpc": "2.0", "id": each, "result": results[method]}), flush=True)
"""


@pytest.mark.parametrize("name", ["unfit", "unknown"])
def test_an_answer_that_cannot_be_used_ends_nothing_else(name: str, tmp_path: Path) -> None:
    """One tool whose result did not fit its own schema ended the server and the calls of other sessions."""
    waits = tmp_path / "waits"
    with MCP.stdio(sys.executable, ["-c", UNFIT_SERVER, str(waits)], mode="legacy") as mcp:
        calls = ToolCalls(*mcp.tools(), grace=PATIENT)
        waiting: list[ToolOutcome] = []
        thread = threading.Thread(target=lambda: waiting.append(calls.call("wait")), daemon=True)
        thread.start()
        wait_until(waits.exists)
        outcome = ToolCalls(*mcp.tools(), grace=PATIENT).call(name)
        assert "the server answered, but the answer cannot be used" in outcome.detail
        same = ToolCalls(*mcp.tools(), grace=PATIENT).call("pid").content
        thread.join(30)
        assert [each.content for each in waiting] == [same]


def test_only_named_variables_are_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of our environment the server gets what is harmless and what was named, and never the rest."""
    monkeypatch.setenv("SOME_SECRET", "one")
    monkeypatch.setenv("NAMED_SECRET", "two")
    arguments = [SERVER, "stdio", str(tmp_path)]
    with MCP.stdio(sys.executable, arguments, env={"GIVEN": "three"}, inherit=["NAMED_SECRET", "NOT_SET"]) as server:
        names = str(ToolCalls(*server.tools()).call("environment").content).split()
    assert {"GIVEN", "NAMED_SECRET", "PATH"} <= set(names)
    assert "SOME_SECRET" not in names


def test_closing_ends_the_server_and_is_final(child: Served) -> None:
    """The server's process is gone when close() is back; closing again does nothing; a call then fails clearly."""
    pid = int(str(child.call("number").content))
    child.mcp.close()
    assert not is_alive(pid)
    child.mcp.close()
    outcome = child.call("number")
    assert outcome.status == "failed"
    assert "was closed" in outcome.detail


def test_closing_in_the_middle_of_a_call_ends_it(child: Served) -> None:
    """Whoever waits for an answer is told that there will be none."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(child.call("slow", name="closed")))
    thread.start()
    wait_until(lambda: child.has_noted("closed-begun"))
    child.mcp.close()
    thread.join(30)
    assert found[0].status == "failed"


def test_a_command_that_is_no_server_is_told_clearly() -> None:
    """What cannot be started, and what starts and says something else, are errors that name the command."""
    with MCP.stdio("/no/such/program") as missing, pytest.raises(ServerFailed, match="/no/such/program"):
        missing.tools()
    code = "import sys; print('hello', file=sys.stderr); sys.exit(3)"
    with MCP.stdio(sys.executable, ["-c", code]) as wrong, pytest.raises(ServerFailed, match="hello"):
        wrong.tools()


def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    """Connecting has a limit, and then the process is ended."""
    code = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    (tmp_path / "pid").touch()

    def connect(seconds: float) -> str:
        with MCP.stdio(sys.executable, ["-c", code], connect_timeout=seconds) as silent:
            with pytest.raises(ServerFailed, match=f"within {seconds:g} s"):
                silent.tools()
        return (tmp_path / "pid").read_text()

    pid, _ = call_limited(connect, bool)
    assert not is_alive(int(pid))


def test_a_server_dies_with_its_owner(tmp_path: Path) -> None:
    """A program that ends without closing anything, or is killed, leaves no server behind."""
    code = """
        import os, signal, sys
        from halter.toolbox.mcp.mcp import MCP
        server = MCP.stdio(sys.executable, [sys.argv[1], "stdio", sys.argv[2]], inherit=["MARK"])
        server.tools()
        print(*open(f"/proc/self/task/{server._loop._thread.native_id}/children").read().split(), flush=True)
        if sys.argv[3] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
    """
    for how in ("end", "kill"):
        ended = run_python(code, SERVER, str(tmp_path), how, timeout=90)
        pids = [int(word) for word in ended.stdout.split()]
        assert len(pids) == 1, ended.stderr
        for pid in pids:
            wait_dead(pid, 30)


def test_a_deaf_server_dies_with_a_killed_owner(tmp_path: Path) -> None:
    """A server that does not care for the end of its input is killed when its owner is."""
    code = """
        import os, signal, sys, time
        from halter.toolbox.mcp.mcp import MCP
        deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        server = MCP.stdio(sys.executable, ["-c", deaf], connect_timeout=60)
        import threading
        def end():
            found = []
            while not found:  # the loop may not have a thread yet, nor a server
                time.sleep(0.005)
                number = getattr(server._loop._thread, "native_id", None)
                if number is not None:
                    found = open(f"/proc/self/task/{number}/children").read().split()
            print(*found, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Timer(0.2, end).start()
        server.tools()
    """
    ended = run_python(code, timeout=90)
    pids = [int(word) for word in ended.stdout.split()]
    assert pids, ended.stderr
    for pid in pids:
        wait_dead(pid, 30)


def test_a_server_that_dies_with_the_program_is_no_news(tmp_path: Path) -> None:
    """Its connection was cut off before asyncio saw the server's end, and the last line of output was a warning."""
    code = """
        import asyncio, atexit, os, signal, sys, time
        atexit.register(time.sleep, 0.5)  # runs last: there is time for the warning
        def see_late(self, loop, pid, *rest):  # as on a busy machine; Python 3.12 has no thread for it
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            time.sleep(0.3)
            see(self, loop, pid, *rest)
        see, asyncio.ThreadedChildWatcher._do_waitpid = asyncio.ThreadedChildWatcher._do_waitpid, see_late
        from halter.toolbox.mcp.mcp import MCP
        server = MCP.stdio(sys.executable, [sys.argv[1], "stdio", sys.argv[2]], connect_timeout=60)
        server.tools()
        [pid] = open(f"/proc/self/task/{server._loop._thread.native_id}/children").read().split()
        os.kill(int(pid), signal.SIGKILL)
        while not server._connection._connection.is_dead:
            time.sleep(0.001)
    """
    ended = run_python(code, SERVER, str(tmp_path), timeout=90)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_tools_work_in_a_session(child: Served) -> None:
    """An agent calls them as any other; a turn that is stopped in one goes on with the next."""
    model = ScriptedModel(ToolCall("1", "slow", '{"name": "turn"}'), ToolCall("2", "add", '{"a": 1, "b": 2}'), "three")
    with Agent(model, patient(child.tools)).session() as session:

        def stop() -> None:
            wait_until(lambda: child.has_noted("turn-begun"))
            session.interrupt("add them instead")

        thread = threading.Thread(target=stop)
        thread.start()
        first = session.run("look")
        thread.join(30)
        second = session.run()
    assert (first.status, first.outcomes[0].status) == ("interrupted", "cancelled")
    assert (second.text, second.outcomes[0].content) == ("three", "3")
    wait_until(lambda: child.has_noted("turn-cancelled"))


def test_a_byte_that_is_not_text_ends_nothing(child: Served) -> None:
    """A server that prints bytes that are not UTF-8 among its messages still answers this call and the next."""
    assert child.call("noisy").content == "done"
    assert child.call("add", a=2, b=3).content == "5"


def test_a_text_that_comes_as_a_blob_is_a_text(served: Served) -> None:
    """What a server packs is unpacked; bytes that are no text are named."""
    content = served.call("blobs").content
    assert content == "a text\n(file:///data: 2 bytes of text/plain, which is not text)"


def test_a_tool_that_only_runs_as_a_task_is_not_offered(served: Served) -> None:
    """It would fail each time: the server wants us to poll for its result."""
    schema = {"type": "object"}
    listed = [
        Tool(name=str(support), input_schema=schema, execution=ToolExecution(task_support=support))
        for support in ("forbidden", "optional", "required", None)
    ]
    assert [each.name for each in served.mcp._make_tools(listed)] == ["forbidden", "optional", "None"]


def test_helpers_of_all_connections_end_with_close(tmp_path: Path) -> None:
    """A helper that ignores TERM and outlives its crashed server is gone after close(), and so is the next one."""
    helper = f"sleep 1000 <&- >/dev/null 2>&1 & echo $! >> {tmp_path}/helpers"
    launcher = f"trap '' TERM; {helper}; exec {sys.executable} {SERVER} stdio {tmp_path}"
    with MCP.stdio("sh", ["-c", launcher]) as server:
        calls = ToolCalls(*server.tools())
        assert calls.call("crash").status == "failed"
        assert calls.call("add", a=2, b=3).content == "5"
    pids = [int(pid) for pid in (tmp_path / "helpers").read_text().split()]
    assert len(pids) == 2
    assert not [pid for pid in pids if is_alive(pid)]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_a_proxy_is_not_shown_the_key(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over plain HTTP a proxy of the environment was asked, also for this machine, and read the key of the server."""
    heard: list[bytes] = []

    def listen(listening: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed at the end
            while True:
                client, _ = listening.accept()
                with client:
                    heard.append(client.recv(4096))
                    client.sendall(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        thread = threading.Thread(target=listen, args=(server,), daemon=True)
        thread.start()
        mcp = MCP.http(f"http://{host}:{server.getsockname()[1]}/mcp", headers={"Authorization": "Bearer secret"})
        with pytest.raises(ServerFailed):
            mcp.tools()
        mcp.close()
        proxy.settimeout(0)
        with pytest.raises(BlockingIOError):
            proxy.accept()
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)
    assert b"Bearer secret" in heard[0]
