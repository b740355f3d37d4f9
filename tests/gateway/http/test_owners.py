"""Whose a session is, and who may approve: the key that created it, or an admin; and never an agent's own process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from halter import Agent, tool
from halter.cancel import run_process
from halter.gateway import Gateway, KeyFile, Keys
from halter.gateway.http.peer import ClientSocket, is_agents_process
from halter.gateway.http.routes import ROUTES
from halter.gateway.http.schemas import AnswerBody, EditBody, MessageBody
from halter.gateway.http.session_schemas import SessionEditBody
from halter.models import ToolCall
from halter.stores import MemoryStore
from halter.testing import ScriptedModel
from halter.tools import ApprovalNeed
from tests.gateway.http.test_keys import place
from tests.support.gateway_client import OWN, Client, client_session, gateway_of
from tests.support.looped import looped


@tool(approval=True)
async def remove(path: str) -> str:
    """Remove a file."""
    return f"removed {path}"


CALL = [ToolCall("c1", "remove", '{"path": "x"}')]
BODIES: dict[type, dict[str, object]] = {
    MessageBody: {"text": "x"},
    EditBody: {"text": "x"},
    AnswerBody: {"value": True},
    SessionEditBody: {"title": "x"},
}


@contextlib.asynccontextmanager
async def client_with(gateway: Gateway, key: str) -> AsyncIterator[Client]:
    async with client_session(gateway, key) as http:
        yield Client(http)


@looped
async def test_only_its_key_and_an_admin_see_a_session(tmp_path: Path) -> None:
    """A second key read what the first one had said, stopped it and rolled it back; now there is no such session."""
    file = KeyFile(tmp_path / "keys.json")
    alice, bob, boss = file.create("a", "write"), file.create("b", "approve"), file.create("c", "admin")
    async with (
        gateway_of("Hello.", "Again.", keys=Keys(file)) as (gateway, _),
        client_with(gateway, alice) as first,
        client_with(gateway, bob) as second,
        client_with(gateway, boss) as admin,
    ):
        await first.create()
        await first.post("hi")
        await first.finished()
        routes = [route for route in ROUTES if "{session}" in route.path and route.scope != "admin"]
        assert len(routes) > 10
        for route in routes:
            body = BODIES.get(route.takes) if isinstance(route.takes, type) else None
            answer = await second.ask(route.method, place(route).replace("/x", "/1"), body)
            assert (answer.status, answer.body["field"]) == (404, "session"), (route, answer)
            assert answer.body == (await second.ask(route.method, place(route).replace("/x", "/1"), body)).body
        for client, seen in ((first, ["s"]), (second, []), (admin, ["s"])):
            assert [each["id"] for each in (await client.ask("GET", "/v1/sessions")).body["sessions"]] == seen
        taken = await second.ask("POST", "/v1/sessions", {"id": "s"})
        assert (taken.status, taken.body["field"]) == (409, "id")
        assert (await first.ask("POST", "/v1/sessions", {"id": "s"})).status == 200
        assert (await admin.post("and?")).status == 202
        await admin.finished(turns=2)


@looped
async def test_a_session_of_an_unknown_owner_is_for_admins(tmp_path: Path) -> None:
    """Sessions of the terminal, and of a store from before there were owners, are not shown to narrower keys."""
    file, store = KeyFile(tmp_path / "keys.json"), MemoryStore()
    key = file.create("a", "approve")
    with Agent(ScriptedModel("Hello.")).session("s", store) as session:
        session.run("hi")
    async with gateway_of(store=store, keys=Keys(file, OWN)) as (gateway, admin):
        async with client_with(gateway, key) as other:
            assert (await other.ask("GET", "/v1/sessions/s")).status == 404
            assert (await other.ask("GET", "/v1/sessions")).body["sessions"] == []
        assert (await admin.ask("GET", "/v1/sessions/s")).status == 200


@pytest.mark.parametrize("way", ["http", "socket"])
@looped
async def test_an_approval_needs_its_scope_and_names_who_gave_it(way: str, tmp_path: Path) -> None:
    """A key that may write may not approve, even in a session of its own; the log says which key has approved."""
    file = KeyFile(tmp_path / "keys.json")
    writer, boss = file.create("w", "write"), file.create("the boss", "admin")
    script = (CALL, "Done.")
    async with (
        gateway_of(*script, tools=[remove], approve="ask", keys=Keys(file)) as (gateway, _),
        client_with(gateway, writer) as client,
        client_with(gateway, boss) as admin,
    ):
        await client.create()
        await client.post("go")
        async with client.events() as stream:
            request = (await stream.until("approval.asked"))[-1]["data"]["request"]["id"]
            assert await answer(client, way, request) == 403
            assert await answer(admin, way, request) == 200
            answered = (await stream.until("approval.answered"))[-1]["data"]
        assert (answered["granted"], answered["by"]) == (True, "gateway key 'the boss'")


@tool(approval=lambda _: ApprovalNeed(reason="it pushes", prefixes=(("git", "push"),)))
def push() -> str:
    """Push."""
    return "pushed"


@looped
async def test_only_an_admin_allows_for_always(tmp_path: Path) -> None:
    """The settings of the machine are not for a key that may approve; for the session it may. Without a place to keep
    it, nobody can.
    """
    file = KeyFile(tmp_path / "keys.json")
    approver, boss = file.create("a", "approve"), file.create("boss", "admin")
    kept: list[Any] = []
    call = ToolCall("c1", "push", "{}")
    options: dict[str, Any] = {"tools": [push], "approve": "ask", "keys": Keys(file)}
    async with (
        gateway_of(call, "Done.", call, "Done.", keep_prefixes=kept.extend, **options) as (gateway, _),
        client_with(gateway, approver) as client,
        client_with(gateway, boss) as admin,
    ):
        await client.create()
        await client.post("go")
        async with client.events() as stream:
            request = (await stream.until("approval.asked"))[-1]["data"]["request"]
            assert request["prefixes"] == [["git", "push"]]
            path = f"/v1/sessions/s/answers/{request['id']}"
            assert (await client.ask("POST", path, {"value": "always"})).status == 403
            assert kept == []
            assert (await admin.ask("POST", path, {"value": "always"})).status == 200
            answered = (await stream.until("approval.answered"))[-1]["data"]
        assert (answered["granted"], answered["scope"], kept) == (True, "always", [("git", "push")])
    async with gateway_of(call, "Done.", **options) as (gateway, _), client_with(gateway, boss) as admin:
        await admin.create()
        await admin.post("go")
        async with admin.events() as stream:
            request = (await stream.until("approval.asked"))[-1]["data"]["request"]
            path = f"/v1/sessions/s/answers/{request['id']}"
            assert (await admin.ask("POST", path, {"value": "always"})).status == 422
            assert (await admin.ask("POST", path, {"value": {"deny": "not now"}})).status == 200
            answered = (await stream.until("approval.answered"))[-1]["data"]
        assert answered["note"] == "the answer was no: not now"


async def answer(client: Client, way: str, request: str) -> int:
    if way == "http":
        return (await client.ask("POST", f"/v1/sessions/s/answers/{request}", {"value": True})).status
    async with client.http.ws_connect("/v1/sessions/s/ws") as ws:
        await ws.send_json({"type": "answer", "ref": 1, "request": request, "value": True})
        while (said := await ws.receive_json(timeout=15)).get("ref") != 1:
            pass
        return int(said["body"].get("status", 200))


ANSWER = """\
import sys, urllib.error, urllib.request
url, key = sys.argv[1:]
headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
try:
    print(urllib.request.urlopen(urllib.request.Request(url, b'{"value": true}', headers), timeout=20).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""
# Leaves its parent and its session.
ESCAPE = """\
import os, sys
reading, writing = os.pipe()
if not os.fork():
    os.setsid()
    if not os.fork():
        os.dup2(writing, 1)
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    os._exit(0)
os.close(writing)
print(os.fdopen(reading).read(), end="")
"""


@looped
async def test_an_agents_own_process_may_not_approve() -> None:
    """With any key: a background job answered what its agent had been asked. A process of somebody else may."""
    async with gateway_of(CALL, "Done.", tools=[remove], approve="ask") as (gateway, client):
        await client.create()
        await client.post("go")
        async with client.events() as stream:
            request = (await stream.until("approval.asked"))[-1]["data"]["request"]["id"]
        ask = ["-c", ANSWER, f"{gateway.url}/v1/sessions/s/answers/{request}", OWN]
        for argv in (ask, ["-c", ESCAPE, *ask]):
            job = await run_process([sys.executable, *argv], timeout=30)
            assert job.stdout == b"403\n", job
        persons = await asyncio.create_subprocess_exec(sys.executable, *ask, stdout=asyncio.subprocess.PIPE)
        assert (await persons.communicate())[0] == b"200\n"
        assert (await client.finished())[-1]["data"]["status"] == "done"


def test_a_client_that_has_gone_is_not_believed() -> None:
    """An agent's process that sends its answer and is gone before anybody looks cannot be told from others."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        ours, peer = listening.accept()
        with ours:
            ends = ClientSocket(peer, ours.getsockname())
            assert not is_agents_process(ends)
            client.close()
            assert is_agents_process(ends)
    assert is_agents_process(ends)
    assert is_agents_process(ClientSocket(None, None))
    assert not is_agents_process(ClientSocket(("203.0.113.7", 4711), ("198.51.100.1", 8787)))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_a_client_is_found_by_either_kind_of_address(host: str) -> None:
    """Also an IPv4 address that a client wrote as IPv6: the process that has the other end is this one, no tool's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = "::1" if host == "::1" else "127.0.0.1"
    with socket.create_server((bound, 0), family=socket.AF_INET6 if bound == "::1" else socket.AF_INET) as listening:
        with socket.socket(family) as client:
            client.connect((host, listening.getsockname()[1]))
            ours, peer = listening.accept()
            with ours:
                assert not is_agents_process(ClientSocket(peer[:2], ours.getsockname()[:2]))
