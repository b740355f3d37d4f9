"""What the tests of the gateway are told in: a real server on loopback, and clients as a stranger would write them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from halter import Agent
from halter.gateway import Gateway, GatewayLimits, KeyFile, Keys
from halter.gateway.http.keys import SCOPES, Scope
from halter.models.types import Model
from halter.stores import MemoryStore, SQLiteStore, Store
from halter.testing import ScriptedModel

OWN = "the-key-of-the-tests"
AT_MOST = aiohttp.ClientTimeout(total=30)


class Answer:
    """What came back: the status, the headers and the body, read as JSON if it is."""

    def __init__(self, response: aiohttp.ClientResponse, data: bytes) -> None:
        self.status = response.status
        self.headers = response.headers
        self.data = data
        self.body: Any = json.loads(data) if "json" in response.content_type and data else None

    def __repr__(self) -> str:
        return f"<{self.status}: {self.data[:300]!r}>"


class Client:
    """Somebody who uses a gateway with a key."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self.http = http

    async def ask(self, method: str, path: str, body: object = None, **options: Any) -> Answer:
        if body is not None:
            options["json"] = body
        async with self.http.request(method, path, timeout=AT_MOST, **options) as response:
            return Answer(response, await response.read())

    async def create(self, session: str = "s", **fields: object) -> Answer:
        answer = await self.ask("POST", "/v1/sessions", {"id": session, **fields})
        assert answer.status == 201, answer
        return answer

    async def post(self, text: str, session: str = "s", **fields: object) -> Answer:
        return await self.ask("POST", f"/v1/sessions/{session}/messages", {"text": text, **fields})

    async def stop(self, session: str = "s", **fields: object) -> Answer:
        return await self.ask("POST", f"/v1/sessions/{session}/stop", fields)

    def events(self, session: str = "s", after: int = 0) -> contextlib.AbstractAsyncContextManager[EventStream]:
        return _stream(self.http, session, after)

    async def finished(self, session: str = "s", after: int = 0, turns: int = 1) -> list[dict[str, Any]]:
        """The events up to the end of a turn, as a stream tells them."""
        async with self.events(session, after) as stream:
            return await stream.until("turn.finished", turns)


class EventStream:
    """An event stream as a client reads it."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def next(self) -> dict[str, Any] | None:
        """The next event; None at the end. What the lines around it say must agree with it."""
        fields: dict[str, str] = {}
        async for line in self.response.content:
            text = line.decode().rstrip("\n")
            if text:
                name, _, value = text.partition(": ")
                fields[name] = value
            elif "data" in fields:
                event: dict[str, Any] = json.loads(fields["data"])
                assert fields["id"] == str(event["seq"])
                assert fields["event"] == event["data"]["type"]
                return event
            else:
                fields = {}
        return None

    async def until(self, kind: str, times: int = 1) -> list[dict[str, Any]]:
        """All events up to the one of this kind."""
        events: list[dict[str, Any]] = []
        while times:
            event = await self.next()
            assert event is not None, f"the stream ended without {kind}: {kinds(events)}"
            events.append(event)
            times -= event["data"]["type"] == kind
        return events

    async def rest(self) -> list[dict[str, Any]]:
        """All events up to the end of the stream."""
        events = []
        while (event := await self.next()) is not None:
            events.append(event)
        return events


def kinds(events: Sequence[dict[str, Any]]) -> list[str]:
    return [event["data"]["type"] for event in events]


def numbers(events: Sequence[dict[str, Any]]) -> list[int]:
    return [event["seq"] for event in events]


@contextlib.asynccontextmanager
async def _stream(http: aiohttp.ClientSession, session: str, after: int) -> AsyncIterator[EventStream]:
    headers = {"Last-Event-ID": str(after)} if after else {}
    async with http.get(f"/v1/sessions/{session}/events", headers=headers, timeout=AT_MOST) as response:
        assert response.status == 200, await response.text()
        yield EventStream(response)


def client_session(gateway: Gateway, key: str = OWN) -> aiohttp.ClientSession:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return aiohttp.ClientSession(gateway.url, headers=headers, read_bufsize=1 << 24)  # an answer is one line of it


@contextlib.asynccontextmanager
async def gateway_of(
    *script: Any,
    store: Store | None = None,
    model: Model | None = None,
    tools: Sequence[Any] = (),
    limits: GatewayLimits | None = None,
    keys: Keys | None = None,
    approve: Any = None,
    agents: Agent | None = None,
    **options: Any,
) -> AsyncIterator[tuple[Gateway, Client]]:
    """A gateway with one agent, and a client of it that may do everything."""
    agent = agents or Agent(model or ScriptedModel(*script), tools, approve=approve)
    kept = store if store is not None else MemoryStore()
    async with Gateway(agent, kept, keys or Keys(own=OWN), limits=limits, **options) as gateway:
        async with client_session(gateway) as http:
            yield gateway, Client(http)


def keys_of(folder: Path) -> tuple[Keys, dict[Scope, str]]:
    """A file with a key of each scope, and those keys."""
    file = KeyFile(folder / "keys.json")
    made: dict[Scope, str] = {scope: file.create(scope, scope) for scope in SCOPES}
    return Keys(file, OWN), made


def sqlite(folder: Path) -> SQLiteStore:
    return SQLiteStore(folder / "sessions.db")
