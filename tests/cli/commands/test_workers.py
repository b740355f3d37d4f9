"""`halter serve --workers`, `halter serve --cluster` and `halter cluster`, as programs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from halter.testing import FakeProvider, answer
from tests.cli.commands.test_serve import get
from tests.support.cli_program import Home, end, read_until
from tests.support.nats_server import NATSServer
from tests.support.processes import wait_dead
from tests.support.waiting import wait_until

KEY = "a-key-that-is-long-enough"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NATSServer]:
    folder = tmp_path / "nats-of-the-test"
    folder.mkdir()
    with NATSServer(folder) as server:
        yield server


def url_of(program: subprocess.Popen[bytes]) -> str:
    """The address that a gateway prints when it serves."""
    assert program.stdout is not None
    assert program.stderr is not None
    try:
        return read_until(program.stdout.fileno(), b"creates another.\n").decode().split()[3].rstrip("/")
    except AssertionError as failure:
        program.kill()
        raise AssertionError(f"{failure}, and on standard error: {program.stderr.read()!r}") from None


def cluster(home: Home, *args: str) -> Any:
    """What `halter cluster` tells."""
    ended = home.run("cluster", "--json", *args)
    assert ended.code == 0, ended.err
    return json.loads(ended.out)


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has ended meanwhile
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def is_done(url: str, session: str) -> bool:
    status, body = get(f"{url}/v1/sessions/{session}", KEY)
    return status == 200 and body["turn"] is not None and body["turn"]["status"] == "done"


def test_workers_share_a_port_and_their_sessions(home: Home, provider: FakeProvider) -> None:
    """Every session is found on every connection; a killed worker is replaced; at the end no process is left."""
    provider.script(*[answer("Hello.") for _ in range(8)])
    home.env |= {"HALTER_KEY": KEY, "HALTER_LEASE_SECONDS": "6"}
    with home.start("serve", "--port", "0", "--workers", "2") as program:
        url = url_of(program)
        nodes = cluster(home)["nodes"]
        assert len(nodes) == 2
        for number in range(4):
            assert get(f"{url}/v1/sessions", KEY, {"id": f"s{number}"})[0] == 201
            assert get(f"{url}/v1/sessions/s{number}/messages", KEY, {"text": "Hi."})[0] == 202
        wait_until(lambda: all(is_done(url, f"s{number}") for number in range(4)))
        started = children(program.pid)
        os.kill(nodes[0]["pid"], signal.SIGKILL)
        wait_until(lambda: {each["pid"] for each in cluster(home)["nodes"]} - {each["pid"] for each in nodes})
        wait_until(lambda: all(is_done(url, f"s{number}") for number in range(4)))
        started += children(program.pid)
        ended = end(program, signal.SIGTERM)
        assert ended.code == 143, ended.err
    assert KEY not in ended.err
    for pid in started:
        wait_dead(pid)
    assert not (home.path / "nats" / "address").exists()


def test_workers_end_with_their_parent_when_it_is_killed(home: Home) -> None:
    """After kill -9 of the parent neither a worker nor the NATS server is left, and the next start finds everything."""
    home.env |= {"HALTER_KEY": KEY, "HALTER_LEASE_SECONDS": "5"}
    with home.start("serve", "--port", "0", "--workers", "2") as program:
        url = url_of(program)
        assert get(f"{url}/v1/sessions", KEY, {"id": "s"})[0] == 201
        started = children(program.pid)
        assert len(started) >= 3
        program.kill()
        for pid in started:
            wait_dead(pid)
    with home.start("serve", "--port", "0", "--workers", "2") as program:
        url = url_of(program)
        wait_until(lambda: get(f"{url}/v1/sessions/s", KEY)[0] == 200)
        end(program, signal.SIGTERM)


# Python runs it at its start: a signal comes when the first worker was started, and its parent does not know it yet.
STOPPED_WHILE_STARTING = """
import asyncio, os, signal, sys

start = asyncio.create_subprocess_exec
stops = [signal.SIGTERM]

async def start_and_stop(*argv, **options):
    process = await start(*argv, **options)
    if "--worker" in argv and stops:
        os.kill(os.getpid(), stops.pop())
        for _ in range(50):  # iterations of the loop, in which the signal is handled
            await asyncio.sleep(0)
    return process

if "--workers" in sys.orig_argv:
    asyncio.create_subprocess_exec = start_and_stop
"""


def test_a_stop_while_workers_start_does_not_wait_for_them(home: Home) -> None:
    """One that was just being started was not signalled: the exit took as long as a gateway may drain at most."""
    (home.path / "sitecustomize.py").write_text(STOPPED_WHILE_STARTING)
    home.env |= {"HALTER_KEY": KEY, "HALTER_DRAIN_TIMEOUT": "600"}
    with home.start("serve", "--port", "0", "--workers", "2") as program:
        ended = end(program)
        assert ended.code == 143, ended.err


def test_gateways_of_a_cluster_find_each_other(home: Home, provider: FakeProvider, server: NATSServer) -> None:
    """Two gateways with the same servers share their sessions, and `halter cluster` shows who has them."""
    provider.script(answer("Hello."))
    home.env |= {"HALTER_KEY": KEY}
    arguments = ("serve", "--port", "0", "--cluster", server.url)
    with home.start(*arguments) as one, home.start(*arguments) as two:
        first, second = url_of(one), url_of(two)
        assert get(f"{first}/v1/sessions", KEY, {"id": "s"})[0] == 201
        assert get(f"{second}/v1/sessions/s/messages", KEY, {"text": "Hi."})[0] == 202
        wait_until(lambda: is_done(second, "s"))
        found = cluster(home, "--cluster", server.url)
        (session,) = found["sessions"]
        assert (session["session"], session["alive"]) == ("s", True)
        assert {each["pid"]: each["sessions"] for each in found["nodes"]} == {one.pid: 1, two.pid: 0}
        text = home.run("cluster", "--cluster", server.url).out
        assert "2 nodes" in text
        assert "1 of 1 sessions are open" in text
        assert end(one, signal.SIGTERM).code == 143
        assert is_done(second, "s")
        assert end(two, signal.SIGTERM).code == 143


def test_servers_that_do_not_answer_are_named_without_their_password(home: Home) -> None:
    """The error says what was tried, and not with which password."""
    ended = home.run("serve", "--port", "0", "--cluster", "nats://user:hunter2@127.0.0.1:1", HALTER_KEY=KEY)
    assert ended.code == 1
    assert "127.0.0.1:1" in ended.err
    assert "hunter2" not in ended.err


def test_without_a_cluster_there_is_nothing_to_show(home: Home) -> None:
    """The error names both ways to have one."""
    ended = home.run("cluster")
    assert ended.code == 1
    assert "--workers" in ended.err
