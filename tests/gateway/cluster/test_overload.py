"""A node that runs as many turns as it may: its idle sessions go to nodes that run fewer."""

from __future__ import annotations

import pytest

from halter.gateway import GatewayLimits
from halter.testing import Gate, ScriptedModel
from tests.support.gateway_client import numbers
from tests.support.looped import looped
from tests.support.nats_server import NATSServer
from tests.support.nodes import node_of

ONE_TURN = GatewayLimits(turns=1)


@looped
@pytest.mark.parametrize("asked", ["the owner", "the other node"])
async def test_an_overloaded_node_hands_an_idle_session_over(nats_server: NATSServer, prefix: str, asked: str) -> None:
    """The message that would have been refused with 429 is accepted, once, and answered by the other node."""
    gate = Gate()
    async with (
        node_of(nats_server, prefix, ScriptedModel(["Wait", gate]), limits=ONE_TURN) as one,
        node_of(nats_server, prefix, ScriptedModel("From the other node.")) as two,
    ):
        await one.client.create("busy")
        await one.client.create("idle")
        await one.client.post("Go.", "busy")
        await gate.await_reached()
        client = one.client if asked == "the owner" else two.client
        receipt = await client.post("Hello.", "idle", id="m1")
        assert receipt.status == 202, receipt
        events = await one.client.finished("idle")
        assert numbers(events) == list(range(1, len(events) + 1))
        assert (one.has, two.has) == ({"busy"}, {"idle"})
        view = await one.client.ask("GET", "/v1/sessions/idle")
        assert view.body["turn"]["text"] == "From the other node."
        gate.open()


@looped
async def test_a_message_is_refused_if_all_nodes_are_overloaded(nats_server: NATSServer, prefix: str) -> None:
    """It is not passed on without end: the answer is 429, from whatever node, and nothing was accepted."""
    gates = [Gate(), Gate()]
    async with (
        node_of(nats_server, prefix, ScriptedModel(["Wait", gates[0]]), limits=ONE_TURN) as one,
        node_of(nats_server, prefix, ScriptedModel(["Wait", gates[1]]), limits=ONE_TURN) as two,
    ):
        await one.client.create("idle")
        for node, gate, name in ((one, gates[0], "a"), (two, gates[1], "b")):
            await node.client.create(name)
            await node.client.post("Go.", name)
            await gate.await_reached()
        for node in (one, two):
            assert (await node.client.post("Hello.", "idle")).status == 429
        assert (await two.client.ask("GET", "/v1/sessions/idle/inbox")).body == []
        for gate in gates:
            gate.open()
