"""Sessions over HTTP: made, listed, read, erased; loaded on demand and put to sleep."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from halter import Agent
from halter.cancel.threads.blocking import abandoned
from halter.gateway import Gateway, Keys
from halter.stores import MemoryStore
from halter.testing import Gate, ScriptedModel
from tests.support.gateway_client import OWN, Client, client_session, gateway_of, kinds, sqlite
from tests.support.looped import looped


@looped
async def test_a_session_is_made_and_found_again() -> None:
    """Making one gives 201, and the same name again gives the same session and 200."""
    async with gateway_of() as (_, client):
        made = await client.create("mine")
        assert (made.body["id"], made.body["state"], made.body["waiting"]) == ("mine", "idle", 0)
        again = await client.ask("POST", "/v1/sessions", {"id": "mine"})
        assert (again.status, again.body["id"]) == (200, "mine")
        named = await client.ask("POST", "/v1/sessions")
        assert (named.status, len(named.body["id"])) == (201, 16)
        listed = await client.ask("GET", "/v1/sessions")
        assert {session["id"] for session in listed.body["sessions"]} == {"mine", named.body["id"]}
        assert len((await client.ask("GET", "/v1/sessions?limit=1")).body["sessions"]) == 1


@looped
async def test_a_session_is_made_once_however_many_make_it_and_look_for_it(tmp_path: Path) -> None:
    """Who looks for it in that moment finds it or not, and does not keep anybody from making it."""
    with sqlite(tmp_path) as store:
        async with gateway_of(store=store) as (_, client):
            for number in range(20):
                jobs = [client.ask("POST", "/v1/sessions", {"id": f"s{number}"}) for _ in range(4)]
                jobs += [client.ask("GET", f"/v1/sessions/s{number}") for _ in range(4)]
                answers = await asyncio.gather(*(jobs[4:6] + jobs[:4] + jobs[6:]))
                assert sorted(answer.status for answer in answers[2:6]) == [200, 200, 200, 201]
                assert {answer.status for answer in answers} <= {200, 201, 404}
            assert {info.events for info in store.sessions()} == {1}


@looped
async def test_a_session_without_a_message_is_there_after_a_restart(tmp_path: Path) -> None:
    """Whoever was told 201 finds the session in the next gateway."""
    with sqlite(tmp_path) as store:
        async with gateway_of(store=store) as (_, client):
            await client.create("kept")
        async with gateway_of(store=store) as (_, client):
            assert (await client.ask("GET", "/v1/sessions/kept")).status == 200
            [listed] = (await client.ask("GET", "/v1/sessions")).body["sessions"]
            assert (listed["id"], listed["events"]) == ("kept", 1)


@looped
async def test_a_turn() -> None:
    """A message is answered with 202 and a receipt, and the turn is told as events, in the words of the library."""
    async with gateway_of("Hello.") as (_, client):
        await client.create()
        receipt = await client.post("Hi.", id="m1")
        assert receipt.status == 202
        assert {"session": "s", "id": "m1", "mode": "queue", "stopped": False}.items() <= receipt.body.items()
        events = await client.finished()
        assert kinds(events) == [
            "session.created",
            "message.accepted",
            "turn.started",
            "message.applied",
            "request.started",
            "text.delta",
            "request.finished",
            "turn.finished",
        ]
        session = (await client.ask("GET", "/v1/sessions/s")).body
        assert (session["turn"]["status"], session["turn"]["text"], session["title"]) == ("done", "Hello.", "Hi.")


@looped
async def test_stuck_tools_do_not_keep_the_gateway_from_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit of abandoned threads, no session could be created, listed or read any more."""
    monkeypatch.setattr(abandoned, "limit", 0)
    async with gateway_of("Hello.") as (_, client):
        assert (await client.create()).status == 201
        await client.post("Hi.")
        await client.finished()
        [listed] = (await client.ask("GET", "/v1/sessions")).body["sessions"]
        assert (await client.ask("GET", f"/v1/sessions/{listed['id']}")).body["turn"]["text"] == "Hello."


@looped
async def test_a_stop_reaches_the_turn_of_its_session_only() -> None:
    """A stop with `wait` answers when the turn is over; another session goes on, and an idle one is not stopped."""
    first, second = Gate(), Gate()
    async with gateway_of(["One ", first], ["Two ", second, "three"]) as (_, client):
        for session in ("a", "b"):
            await client.create(session)
        await client.post("x", "a")
        await first.await_reached()
        await client.post("x", "b")
        await second.await_reached()
        stopped = await client.stop("a", wait=True)
        assert (stopped.status, stopped.body["stopped"], stopped.body["finished"]) == (200, True, True)
        ended = (await client.finished("a"))[-1]["data"]
        assert (ended["status"], ended["reason"]) == ("interrupted", "stop")
        assert ended["after"] is not None
        idle = await client.stop("a")
        assert (idle.status, idle.body["stopped"]) == (200, False)
        second.open()
        assert (await client.finished("b"))[-1]["data"]["status"] == "done"


@looped
async def test_an_erased_session_is_gone() -> None:
    """DELETE stops the turn, ends the streams and takes the session out of the store; its name is free again."""
    gate = Gate()
    async with gateway_of(["One ", gate], "Again.") as (gateway, client):
        await client.create()
        await client.post("x")
        await gate.await_reached()
        async with client.events() as stream:
            await stream.until("text.delta")
            assert (await client.ask("DELETE", "/v1/sessions/s")).status == 204
            assert kinds(await stream.rest())[-1] == "turn.finished"
        assert (await client.ask("GET", "/v1/sessions/s")).status == 404
        assert gateway.registry.store.sessions() == []
        await client.create()
        await client.post("y")
        assert (await client.finished())[0]["seq"] == 1


@looped
async def test_an_idle_session_is_put_to_sleep_and_loaded_on_demand(tmp_path: Path) -> None:
    """One that nobody asks for is closed, and the next who does finds it as it was."""
    with sqlite(tmp_path) as store:
        async with gateway_of("One.", "Two.", store=store, idle_after=0.05) as (gateway, client):
            await client.create()
            await client.post("a")
            await client.finished()
            while gateway.registry.live_sessions:
                # It goes to sleep by itself, and lets go of its lease when it has.
                await gateway.registry.wait_for_unload()
            await client.post("b")
            events = await client.finished(turns=2)
            assert [event["data"]["text"] for event in events if event["data"]["type"] == "text.delta"] == [
                "One.",
                "Two.",
            ]


@looped
async def test_agents_have_names() -> None:
    """A session keeps the agent that it was made with; a name that is not known is told, with the field."""
    agents = {"one": Agent(ScriptedModel("I am one.")), "two": Agent(ScriptedModel("I am two."))}
    async with Gateway(agents, MemoryStore(), Keys(own=OWN)) as gateway, client_session(gateway) as http:
        client = Client(http)
        unknown = await client.ask("POST", "/v1/sessions", {"agent": "three"})
        assert (unknown.status, unknown.body["field"]) == (422, "agent")
        await client.create("s", agent="two")
        await client.post("who?")
        await client.finished()
        session = (await client.ask("GET", "/v1/sessions/s")).body
        assert (session["agent"], session["turn"]["text"]) == ("two", "I am two.")
        other = await client.ask("POST", "/v1/sessions", {"id": "s", "agent": "one"})
        assert (other.status, other.body["field"]) == (409, "agent")


@looped
async def test_a_message_to_a_session_that_is_unloaded_at_once_is_answered(tmp_path: Path) -> None:
    """Without idle time a session was unloaded between its loading and the message, which then waited for ever."""
    gates = [Gate() for _ in range(10)]
    with sqlite(tmp_path) as store:
        async with gateway_of(*(["An ", gate] for gate in gates), store=store, idle_after=0.0) as (gateway, client):
            await client.create()
            for gate in gates:
                await client.post("Go.")
                await gate.await_reached()
                gate.open()
                while gateway.registry.live_sessions:
                    await gateway.registry.wait_for_unload()
