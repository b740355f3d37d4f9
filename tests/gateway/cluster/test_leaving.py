"""Nodes that leave, die or are cut off: their sessions go on elsewhere, and nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from halter import Agent
from halter.cancel.threads.blocking import run_blocking_async
from halter.cancel.token import NEVER
from halter.errors import StoreError
from halter.gateway import Gateway, Keys
from halter.stores import NATSStore
from halter.stores.nats.leases import LeaseOwner
from halter.testing import Gate, ScriptedModel
from tests.support.gateway_client import OWN, Client, kinds, numbers
from tests.support.looped import looped
from tests.support.nats_server import NATSServer, signal_server
from tests.support.node_processes import NodeProcess
from tests.support.nodes import node_of
from tests.support.waiting import until


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[NATSServer]:
    """A server that a test may suspend."""
    with NATSServer(tmp_path) as server:
        yield server


async def insist(client: Client, text: str, message_id: str, session: str = "s") -> None:
    """Send a message until it is accepted, as a client does that is told to try again."""

    async def is_accepted() -> bool:
        answer = await client.post(text, session, id=message_id)
        assert answer.status in (202, 503), answer
        return answer.status == 202

    await until(is_accepted)


async def health(client: Client, status: int) -> None:
    """Wait until the health check has this status."""

    async def has_status() -> bool:
        return (await client.ask("GET", "/healthz")).status == status

    await until(has_status)


def ends(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    found = [each["data"] for each in events if each["data"]["type"] == "turn.finished"]
    return [(end["status"], end["reason"]) for end in found]


@looped
async def test_a_node_that_leaves_hands_its_sessions_over(nats_server: NATSServer, prefix: str, tmp_path: Path) -> None:
    """Idle sessions are free at once, a running turn ends by itself, and what was queued behind it runs elsewhere."""
    go = tmp_path / "go"
    async with (
        node_of(nats_server, prefix, ScriptedModel("Here.", "Here.")) as here,
        NodeProcess(nats_server.url, prefix, patience=30.0) as there,
    ):
        async with there.client() as client:
            await client.create("idle")
            await client.create("busy")
            await client.post(f"until {go}", "busy")
            async with client.events("busy") as stream:
                await stream.until("text.delta", 3)
            await client.post("Next.", "busy", id="next")
            there.signal(signal.SIGTERM)
            await insist(here.client, "Hello.", "m1", "idle")
            assert ends(await here.client.finished("idle")) == [("done", "")]
            refused = await client.post("Late.", "busy", id="late")
            assert refused.status == 503
            go.touch()
        assert ends(await here.client.finished("busy", turns=2)) == [("done", ""), ("done", "")]
        assert await there.ended() == 128 + signal.SIGTERM
        assert here.has == {"idle", "busy"}


@looped
async def test_a_turn_that_outlasts_the_drain_is_sealed(nats_server: NATSServer, prefix: str) -> None:
    """At the deadline it is stopped with the reason "shutdown", and the next node finds it ended."""
    async with (
        node_of(nats_server, prefix) as here,
        NodeProcess(nats_server.url, prefix, patience=0.2) as there,
    ):
        async with there.client() as client:
            await client.create()
            await client.post("wait 60")
            async with client.events() as stream:
                await stream.until("text.delta", 3)
        there.signal(signal.SIGTERM)
        assert await there.ended() == 128 + signal.SIGTERM
        assert ends(await here.client.finished()) == [("interrupted", "shutdown")]


@looped
async def test_a_node_that_was_killed_is_replaced(nats_server: NATSServer, prefix: str) -> None:
    """Its turn is sealed as a crash, its queued message is applied once, and streams elsewhere have no gap."""
    async with (
        NodeProcess(nats_server.url, prefix, lease_seconds=4.0) as there,
        node_of(nats_server, prefix, ScriptedModel("Taken over."), lease_seconds=4.0) as here,
    ):
        async with there.client() as client:
            await client.create()
            await client.post("wait 60")
            async with client.events() as stream:
                await stream.until("text.delta", 3)
            await client.post("Queued.", id="queued")
        following = asyncio.create_task(here.client.finished(turns=2))
        there.signal(signal.SIGKILL)
        events = await following
        assert numbers(events) == list(range(1, len(events) + 1))
        assert ends(events) == [("interrupted", "crash"), ("done", "")]
        assert kinds(events).count("message.applied") == 2
        assert here.has == {"s"}


@looped
async def test_a_node_that_was_suspended_for_too_long_has_lost_its_sessions(
    nats_server: NATSServer, prefix: str
) -> None:
    """When it wakes it writes nothing more, and passes requests on to the node that has the session now."""
    async with (
        NodeProcess(nats_server.url, prefix, lease_seconds=4.0) as there,
        node_of(nats_server, prefix, ScriptedModel("Taken over.", "Again."), lease_seconds=4.0) as here,
    ):
        async with there.client() as client:
            await client.create()
            await client.post("wait 60")
            async with client.events() as stream:
                await stream.until("text.delta", 3)
            there.signal(signal.SIGSTOP)
            await insist(here.client, "Next.", "m1")
            assert ends(await here.client.finished(turns=2)) == [("interrupted", "crash"), ("done", "")]
            there.signal(signal.SIGCONT)
            await insist(client, "Once more.", "m2")
            events = await here.client.finished(turns=3)
            assert ends(events)[-1] == ("done", "")
            assert numbers(events) == list(range(1, len(events) + 1))
            assert kinds(events).count("message.applied") == 3
            assert await client.finished(turns=3) == events


@looped
async def test_a_gateway_without_its_servers_refuses_and_says_so(own_server: NATSServer) -> None:
    """Reads are answered from memory, what cannot be made durable is refused, and all is well when they are back."""
    async with node_of(own_server, "halter", ScriptedModel("One.", "Two."), lease_seconds=30.0) as node:
        await node.client.create()
        await node.client.post("Go.", id="m1")
        await node.client.finished()
        assert (await node.client.ask("GET", "/healthz")).status == 200
        own_server.kill()
        await health(node.client, 503)
        view = await node.client.ask("GET", "/v1/sessions/s")
        assert (view.status, view.body["turn"]["text"]) == (200, "One.")
        refused = await node.client.post("Lost?", id="m2")
        assert (refused.status, refused.body["type"]) == (503, "urn:halter:problem:store")
        own_server.start()
        await health(node.client, 200)
        await insist(node.client, "Lost?", "m2")
        events = await node.client.finished(turns=2)
        assert kinds(events).count("message.accepted") == 2


@looped
async def test_a_node_that_is_cut_off_stops_its_turns_and_comes_back(own_server: NATSServer) -> None:
    """It stops its turn before its lease can end; afterwards it loads the session again, and goes on."""
    gate = Gate()
    model = ScriptedModel(["Wait", gate], "Two.")

    async def is_closed() -> bool:
        return model.streams[0].state in ("closed", "cancelled")

    async with node_of(own_server, "halter", model, lease_seconds=1.5) as node:
        await node.client.create()
        await node.client.post("Go.", id="m1")
        await gate.await_reached()
        signal_server(own_server, signal.SIGSTOP)
        try:
            await until(is_closed)
        finally:
            signal_server(own_server, signal.SIGCONT)
        await insist(node.client, "Again.", "m2")
        events = await node.client.finished(turns=2)
        assert ends(events) == [("interrupted", "crash"), ("done", "")]


@looped
async def test_a_session_whose_creator_died_is_created_by_another_node(nats_server: NATSServer, prefix: str) -> None:
    """A node died between taking the lease and the first event: once that has ended, the session can be created."""
    dead = await run_blocking_async(lambda: NATSStore(nats_server.url, prefix=prefix, lease_seconds=4.0), token=NEVER)
    async with node_of(nats_server, prefix, lease_seconds=4.0) as node:
        await run_blocking_async(lambda: dead.acquire("s"), token=NEVER)

        async def is_created() -> bool:
            answer = await node.client.ask("POST", "/v1/sessions", {"id": "s"})
            assert answer.status in (201, 503), answer
            return answer.status == 201

        assert not await is_created()
        await run_blocking_async(dead.close, token=NEVER)
        await until(is_created)
        assert (await node.client.post("Hello.")).status == 202


@looped
async def test_an_event_stream_without_its_servers_ends_with_one_line(
    own_server: NATSServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Each stream logged a traceback while NATS was away, as if the gateway had a defect."""
    async with (
        node_of(own_server, "halter", ScriptedModel("One.")) as one,
        node_of(own_server, "halter") as two,
    ):
        await one.client.create()
        async with two.client.events() as stream:
            await stream.until("session.created")
            own_server.kill()
            assert two.gateway._cluster is not None
            two.gateway._cluster._logs.request_reread()  # as after a time of silence
            with contextlib.suppress(aiohttp.ClientPayloadError):
                assert await stream.next() is None
        own_server.start()
    told = [each for each in caplog.records if "event stream" in each.message]
    assert [each.levelname for each in told] == ["WARNING"]
    assert "NATS at nats://127.0.0.1" in told[0].message
    assert not [each.message for each in caplog.records if each.exc_info]


@looped
async def test_sessions_of_a_dead_node_are_listed_again_when_that_fails(nats_server: NATSServer, prefix: str) -> None:
    """The servers elected a leader while a node died: what was queued there waited until somebody asked for it."""
    async with (
        NodeProcess(nats_server.url, prefix, lease_seconds=4.0) as there,
        node_of(nats_server, prefix, ScriptedModel("Here."), lease_seconds=4.0) as here,
    ):
        async with there.client() as client:
            await client.create()
            await client.post("wait 60")
            async with client.events() as stream:
                await stream.until("text.delta", 3)
            await client.post("Queued.", id="queued")
        list_owners, failures = here.store.owners, ["no leader"]

        def owners() -> dict[str, LeaseOwner]:
            if failures:
                raise StoreError(failures.pop())
            return list_owners()

        here.store.owners = owners  # type: ignore[method-assign]
        there.signal(signal.SIGKILL)

        async def is_here() -> bool:
            return here.has == {"s"}

        await until(is_here)
        assert ends(await here.client.finished(turns=2)) == [("interrupted", "crash"), ("done", "")]


@looped
async def test_a_gateway_that_cannot_start_leaves_the_cluster(nats_server: NATSServer, prefix: str) -> None:
    """Its start fails after it has connected: it closes that connection, and answers nobody."""
    store = await run_blocking_async(lambda: NATSStore(nats_server.url, prefix=prefix), token=NEVER)
    gateway = Gateway(Agent(ScriptedModel()), store, Keys(own=OWN))
    await run_blocking_async(store.close, token=NEVER)
    with pytest.raises(StoreError, match="closed"):
        await gateway.start()
    assert gateway._cluster is not None
    assert not gateway._cluster.is_connected
