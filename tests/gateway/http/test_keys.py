"""Who is let in: every address without a key, with a wrong one, with one of too small a scope, with the right one."""

from __future__ import annotations

import asyncio
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from halter import Agent
from halter.gateway import Gateway, KeyFile, Keys
from halter.gateway.http import sse
from halter.gateway.http.keys import SCOPES, Scope
from halter.gateway.http.routes import ROUTES, Route
from halter.stores import MemoryStore
from halter.testing import ScriptedModel
from tests.support.gateway_client import OWN, Client, client_session, gateway_of, keys_of
from tests.support.looped import looped

CLOSED = [route for route in ROUTES if route.scope is not None]


def place(route: Route) -> str:
    return re.sub(r"\{(\w+)(:[^}]*)?\}", lambda found: "s" if found[1] == "session" else "x", route.path)


async def knock(gateway: Gateway, route: Route, key: str | None) -> int:
    """Try an address with a key; the status that comes back."""
    headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
    async with aiohttp.ClientSession(gateway.url, headers=headers) as http:
        if route.name == "socket":
            try:
                async with http.ws_connect(place(route)):
                    return 101
            except aiohttp.WSServerHandshakeError as error:
                return error.status
        async with http.request(route.method, place(route), timeout=aiohttp.ClientTimeout(10)) as response:
            if response.status >= 400 and route.is_openai:
                assert response.content_type == "application/json"
                assert set(await response.json()) == {"error"}
            elif response.status >= 400:
                assert response.content_type == "application/problem+json"
                assert (await response.json())["status"] == response.status
            return response.status


def test_there_is_a_closed_address_of_each_scope() -> None:
    """Else the tests below try nothing. What needs the scope "approve" depends on what is asked; see test_owners.py."""
    assert {route.scope for route in CLOSED} == set(SCOPES) - {"approve"}
    assert {route.name for route in ROUTES if route.scope is None} == {"page", "page_file", "health", "openapi"}


@looped
async def test_every_address_is_closed_to_who_has_no_key_or_too_small_a_one(tmp_path: Path) -> None:
    """401 without a key, with a wrong, an almost right and an empty one; 403 below the scope; and neither with it."""
    keys, made = keys_of(tmp_path)
    async with gateway_of(keys=keys) as (gateway, client):
        await client.create()
        for route in sorted(CLOSED, key=lambda route: route.method == "DELETE"):
            assert route.scope is not None
            wrong = (
                None,
                "",
                "x",
                made["admin"][:-1],
                made["admin"] + "x",
                "hk_" + "0" * 8 + "_x",
                "hk__",
                OWN.upper(),
            )
            for key in wrong:
                assert await knock(gateway, route, key) == 401, (route, key)
            for scope in SCOPES:
                is_enough = SCOPES.index(scope) >= SCOPES.index(route.scope)
                status = await knock(gateway, route, made[scope])
                assert (status not in (401, 403)) if is_enough else (status == 403), (route, scope, status)


@looped
async def test_what_needs_no_key() -> None:
    """The page, whether the gateway is there, and the description of its interface."""
    async with gateway_of() as (gateway, _), client_session(gateway, "") as http:
        client = Client(http)
        for path in ("/", "/healthz", "/openapi.json"):
            assert (await client.ask("GET", path)).status == 200
        refused = await client.ask("GET", "/v1/sessions")
        assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, 'Bearer realm="halter"')


@looped
async def test_a_revoked_key_is_refused_at_once(tmp_path: Path) -> None:
    """Without a restart; and so is a key that was made while the gateway runs let in."""
    keys, made = keys_of(tmp_path)
    file = KeyFile(tmp_path / "keys.json")
    async with gateway_of(keys=keys) as (gateway, _):
        listing = next(route for route in ROUTES if route.name == "sessions")
        assert await knock(gateway, listing, made["read"]) == 200
        assert file.revoke("read")
        assert await knock(gateway, listing, made["read"]) == 401
        assert await knock(gateway, listing, file.create("new", "read")) == 200
        (tmp_path / "keys.json").write_text("{")
        assert await knock(gateway, listing, made["admin"]) == 401
        assert await knock(gateway, listing, OWN) == 200


def test_keys_are_kept_as_hashes_for_this_user_alone(tmp_path: Path) -> None:
    """Nothing of a key can be found in the file, which nobody else may read, and a damaged file is told."""
    file = KeyFile(tmp_path / "below" / "keys.json")
    key = file.create("mine", "write")
    text = file.path.read_text()
    assert key.split("_", 2)[2] not in text
    assert stat.S_IMODE(os.stat(file.path).st_mode) == 0o600
    assert [(each.name, each.scope, each.auto) for each in file.read()] == [("mine", "write", False)]
    assert not file.revoke("other")
    assert len(list(file.path.parent.iterdir())) == 1
    file.path.write_text("[1]")
    with pytest.raises(ValueError, match="damaged"):
        file.read()


def test_keys_that_are_made_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    """Two processes read the same file and each wrote its own key: the second write took the first key away."""
    make = "import sys, pathlib; from halter.gateway import KeyFile; sys.stdin.read(1)\n"
    make += "for _ in range(20): KeyFile(pathlib.Path(sys.argv[1])).create('k', 'read')"
    path = tmp_path / "keys.json"
    made = [subprocess.Popen([sys.executable, "-c", make, str(path)], stdin=subprocess.PIPE) for _ in range(3)]
    for each in made:
        each.communicate(b"x", timeout=60)
        assert each.returncode == 0
    assert len(KeyFile(path).read()) == 60


def test_of_the_keys_for_the_page_only_the_latest_stay_valid(tmp_path: Path) -> None:
    """Each start makes one; those of a person are never dropped."""
    file = KeyFile(tmp_path / "keys.json")
    file.create("mine", "write")
    made = [file.create("page", "admin", auto=True) for _ in range(12)]
    keys = Keys(file)
    assert [keys.find(each) is not None for each in made] == [False] * 2 + [True] * 10
    assert file.read()[0].name == "mine"


def test_an_address_that_others_reach_needs_a_key_that_somebody_has_made(tmp_path: Path) -> None:
    """The one that the gateway makes for its own page is not enough, and neither is none."""
    agent, file = Agent(ScriptedModel()), KeyFile(tmp_path / "keys.json")
    file.create("page", "admin", auto=True)
    for keys in (Keys(), Keys(file)):
        with pytest.raises(ValueError, match="can be reached from other machines"):
            Gateway(agent, MemoryStore(), keys, host="0.0.0.0")
    Gateway(agent, MemoryStore(), Keys(own="set"), host="0.0.0.0")
    file.create("mine", "read")
    Gateway(agent, MemoryStore(), Keys(file), host="0.0.0.0")


@looped
async def test_another_name_for_the_loopback_address_is_refused() -> None:
    """A page whose name leads to this machine cannot reach the gateway by it."""
    async with gateway_of() as (_, client):
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "["):
            for path in ("/", "/v1/sessions"):
                answer = await client.ask("GET", path, headers={"Host": host})
                assert answer.status in (400, 421), (host, answer)
        for host in ("localhost", "127.0.0.1:99", "[::1]:8787"):
            assert (await client.ask("GET", "/v1/sessions", headers={"Host": host})).status == 200


@looped
async def test_a_public_name_is_accepted_beside_the_loopback_address() -> None:
    """Proxies that pass on the name, and those that do not, can be used; other names and origins are refused."""
    async with gateway_of(public_name="agents.example.org:8443") as (_, client):
        for host in ("agents.example.org", "AGENTS.example.org:8443", "127.0.0.1"):
            for origin in ("https://agents.example.org:8443", f"http://{host}"):
                headers = {"Host": host, "Origin": origin}
                assert (await client.ask("POST", "/v1/sessions", {}, headers=headers)).status == 201, headers
        for host in ("evil.example", "agents.example.org.evil.example", ""):
            assert (await client.ask("GET", "/", headers={"Host": host})).status in (400, 421)
        for origin in ("https://agents.example.org", "https://agents.example.org:8443.evil.example", "null", ""):
            assert (await client.ask("POST", "/v1/sessions", {}, headers={"Origin": origin})).status == 403


@pytest.mark.parametrize("name", ["https://agents.example.org", "agents.example.org/", "a b", ":8443", "a:port", "u@a"])
def test_a_public_name_that_is_not_a_host_is_refused(name: str) -> None:
    """The gateway does not start with a name that no browser would send."""
    with pytest.raises(ValueError):
        Gateway(Agent(ScriptedModel()), MemoryStore(), Keys(own="set"), public_name=name)


@looped
async def test_pages_of_other_origins_are_refused() -> None:
    """No answer allows them anything, and what they would change, or a WebSocket, is refused even with a key."""
    async with gateway_of() as (gateway, client):
        foreign = {"Origin": "http://evil.example"}
        own = {"Origin": gateway.url}
        assert (await client.ask("POST", "/v1/sessions", headers=foreign)).status == 403
        assert (await client.ask("POST", "/v1/sessions", {"id": "s"}, headers=own)).status == 201
        preflight = await client.ask("OPTIONS", "/v1/sessions", headers=foreign)
        assert preflight.status == 405
        for answer in (preflight, await client.ask("GET", "/v1/sessions", headers=foreign)):
            assert not [name for name in answer.headers if name.lower().startswith("access-control-")]
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await client.http.ws_connect("/v1/sessions/s/ws", headers=foreign)
        assert refused.value.status == 403


@looped
async def test_a_socket_takes_its_key_as_a_protocol() -> None:
    """Browsers can send no header with a WebSocket; only there is a key taken in this way."""
    async with gateway_of() as (gateway, client), client_session(gateway, "") as http:
        await client.create()
        offered = ("halter", f"halter.key.{OWN}")
        async with http.ws_connect("/v1/sessions/s/ws", protocols=offered) as socket:
            assert socket.protocol == "halter"
            assert (await socket.receive_json(timeout=5))["seq"] == 1
        header = {"Sec-WebSocket-Protocol": ", ".join(offered)}
        async with http.get("/v1/sessions", headers=header) as response:
            assert response.status == 401


@pytest.mark.parametrize("scope", SCOPES)
def test_a_scope_includes_those_before_it(scope: Scope, tmp_path: Path) -> None:
    """Admin may what write may, and write what read may."""
    keys, made = keys_of(tmp_path)
    key = keys.find(made[scope])
    assert key is not None
    assert [each for each in SCOPES if key.allows(each)] == list(SCOPES[: SCOPES.index(scope) + 1])


@looped
async def test_a_revoked_key_is_refused_on_what_it_has_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who had left the company went on reading and sending messages over an open connection."""
    monkeypatch.setattr(sse, "_HEARTBEAT", 3600.0)
    file = KeyFile(tmp_path / "keys.json")
    key = file.create("ben", "write")
    async with gateway_of("One.", keys=Keys(file)) as (gateway, _), client_session(gateway, key) as http:
        client = Client(http)
        await client.create()
        async with client.events() as stream, http.ws_connect("/v1/sessions/s/ws") as socket:
            await stream.next()
            await socket.receive_json(timeout=20)
            assert file.revoke("ben")
            await socket.send_json({"type": "message", "ref": 1, "text": "Hi."})
            refused = await socket.receive_json(timeout=20)
            assert (refused["type"], refused["body"]["status"]) == ("problem", 401)
            await gateway.streams.end()
            monkeypatch.setattr(sse, "_HEARTBEAT", 0.01)
            gateway.streams.begin()
            assert await asyncio.wait_for(stream.rest(), 20) == []
            end = await socket.receive(timeout=20)
            assert (end.type, end.data) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.POLICY_VIOLATION)


@looped
async def test_other_keys_keep_what_they_have_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the streams of a revoked key end."""
    monkeypatch.setattr(sse, "_HEARTBEAT", 0.01)
    keys, made = keys_of(tmp_path)
    async with gateway_of("One.", keys=keys) as (gateway, own), client_session(gateway, made["admin"]) as http:
        await own.create()
        async with own.events() as first, Client(http).events() as second:
            assert KeyFile(tmp_path / "keys.json").revoke("write")
            await own.post("Hi.")
            for stream in (first, second):
                await stream.until("turn.finished")


def test_keys_are_valid_again_once_their_file_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One failed read, with too many files open, refused every key until the file was changed."""
    file = KeyFile(tmp_path / "keys.json")
    key = file.create("ben", "write")
    keys = Keys(file)

    def fail(_: Path) -> bytes:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", fail)
        assert keys.find(key) is None
    assert keys.find(key) is not None
