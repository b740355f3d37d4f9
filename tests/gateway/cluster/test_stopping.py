"""A stop reaches its turn from any node; one that cannot be delivered is carried out before anything else runs."""

from __future__ import annotations

import asyncio
import signal

from halter import Agent
from halter.cancel.one_shot_event import OneShotEvent
from halter.cancel.threads.blocking import run_blocking_async
from halter.cancel.token import NEVER
from halter.gateway.cluster.stop_records import StopRecord
from halter.gateway.http.keys import Key
from halter.gateway.http.schemas import StopAllBody
from halter.stores import NATSStore
from halter.stores.base import Lease
from halter.stores.nats.commits import HeldLog
from halter.stores.nats.leases import LeaseOwner
from halter.testing import Gate, ScriptedModel
from tests.support.gateway_client import kinds
from tests.support.looped import looped
from tests.support.nats_server import NATSServer
from tests.support.node_processes import NodeProcess
from tests.support.nodes import node_of
from tests.support.waiting import until

_KEY = Key("admin", "admin", "admin", "")


@looped
async def test_a_stop_on_one_node_ends_a_turn_on_another(nats_server: NATSServer, prefix: str) -> None:
    """The model's stream is closed, queued messages are held, and the receipt says that the turn is over."""
    gate = Gate()
    model = ScriptedModel(["Wait", gate])
    async with node_of(nats_server, prefix, model) as one, node_of(nats_server, prefix) as two:
        await one.client.create()
        await two.client.post("Go.")
        await gate.await_reached()
        await two.client.post("Later.", id="later")
        receipt = await two.client.stop(wait=True)
        assert (receipt.body["stopped"], receipt.body["finished"]) == (True, True)
        assert model.streams[0].state in ("closed", "cancelled")
        inbox = await two.client.ask("GET", "/v1/sessions/s/inbox")
        assert [(each["id"], each["state"]) for each in inbox.body] == [("later", "held")]
        again = await two.client.stop()
        assert (again.status, again.body["stopped"]) == (200, False)


@looped
async def test_a_stop_of_every_session_reaches_every_node(nats_server: NATSServer, prefix: str) -> None:
    """`POST /v1/stop` on any node stops the turns of all nodes, and counts them."""
    gates = [Gate(), Gate()]
    async with (
        node_of(nats_server, prefix, ScriptedModel(["One", gates[0]])) as one,
        node_of(nats_server, prefix, ScriptedModel(["Two", gates[1]])) as two,
        node_of(nats_server, prefix) as three,
    ):
        for node, name in ((one, "a"), (two, "b")):
            await node.client.create(name)
            await node.client.post("Go.", name)
        for gate in gates:
            await gate.await_reached()
        answer = await three.client.ask("POST", "/v1/stop", {"wait": True})
        assert answer.body == {"stopped": 2, "finished": 2}


@looped
async def test_a_node_knows_the_others_as_soon_as_it_has_started(nats_server: NATSServer, prefix: str) -> None:
    """A stop of everything that it gets at once reaches them: it has asked who is there, and waits for no news."""
    async with node_of(nats_server, prefix) as one, node_of(nats_server, prefix) as two:
        assert two.gateway._cluster is not None
        assert two.gateway._cluster._members.others() == [one.store.process]


@looped
async def test_a_node_ends_however_soon_after_its_start(nats_server: NATSServer, prefix: str) -> None:
    """Its watches are just being set up, by a library that may lose a cancellation."""
    for after in range(40):
        async with node_of(nats_server, prefix):
            await asyncio.sleep(after / 2000)


@looped
async def test_a_stop_of_everything_reaches_completions_on_every_node(nats_server: NATSServer, prefix: str) -> None:
    """The turn of an OpenAI client is on the node that has its connection, and no other node knows of it."""
    gate = Gate()
    model = ScriptedModel(["One", gate])
    async with node_of(nats_server, prefix, model) as one, node_of(nats_server, prefix) as two:
        body = {"model": "halter", "messages": [{"role": "user", "content": "Go."}]}
        asking = asyncio.create_task(one.client.ask("POST", "/v1/chat/completions", body))
        await gate.await_reached()
        answer = await two.client.ask("POST", "/v1/stop", {"wait": True})
        assert answer.body == {"stopped": 1, "finished": 1}
        stopped = await asking
        assert (stopped.status, stopped.body["error"]["code"]) == (503, "turn_stopped")
        assert (await two.client.ask("GET", "/v1/sessions")).body["sessions"] == []


@looped
async def test_a_stop_with_an_id_is_done_once(nats_server: NATSServer, prefix: str) -> None:
    """A record of a stop that was delivered after all does not stop the turn after it."""
    gates = [Gate(), Gate()]
    model = ScriptedModel(["One", gates[0]], ["Two", gates[1], "."])
    async with node_of(nats_server, prefix, model) as one, node_of(nats_server, prefix) as two:
        await one.client.create()
        await two.client.post("Go.")
        await gates[0].await_reached()
        await two.client.stop(wait=True)
        last = one.gateway.registry.live_sessions["s"].session.last_event
        await two.client.post("Next.")
        await gates[1].await_reached()
        records = two.gateway._cluster._records  # type: ignore[union-attr]

        async def is_seen() -> bool:
            return await records.find("s") is None

        await records.write("s", StopRecord("late", last, "turn", "stop", "a client"))
        async with one.client.events() as stream:
            await until(is_seen)
            gates[1].open()
            events = await stream.until("turn.finished", 2)
        assert events[-1]["data"]["status"] == "done"


@looped
async def test_a_stop_for_a_suspended_node_is_recorded_and_carried_out_there(
    nats_server: NATSServer, prefix: str
) -> None:
    """The node wakes before its lease ends: it stops the turn, once, and goes on with what comes then."""
    async with (
        node_of(nats_server, prefix, lease_seconds=20.0) as here,
        NodeProcess(nats_server.url, prefix, lease_seconds=20.0) as there,
    ):
        async with there.client() as client:
            await client.create()
            await client.post("wait 60")
            async with client.events() as stream:
                await stream.until("text.delta", 3)
        there.signal(signal.SIGSTOP)
        receipt = await here.client.stop()
        assert (receipt.status, receipt.body["state"]) == (200, "accepted"), receipt
        there.signal(signal.SIGCONT)
        events = await here.client.finished()
        assert (events[-1]["data"]["status"], events[-1]["data"]["reason"]) == ("interrupted", "stop")
        await here.client.post("Next.")
        events = await here.client.finished(turns=2)
        assert events[-1]["data"]["status"] == "done"


@looped
async def test_a_stop_for_a_node_that_died_is_carried_out_by_the_next(nats_server: NATSServer, prefix: str) -> None:
    """What was queued before the stop is held by the node that takes the session over, and is not started."""
    async with (
        NodeProcess(nats_server.url, prefix, lease_seconds=4.0) as there,
        node_of(nats_server, prefix, ScriptedModel("Released."), lease_seconds=4.0) as here,
    ):
        async with there.client() as client:
            await client.create()
            await client.post("wait 60")
            async with client.events() as stream:
                await stream.until("text.delta", 3)
            await client.post("Queued.", id="queued")
        there.signal(signal.SIGKILL)
        receipt = await here.client.stop()
        assert (receipt.status, receipt.body["state"]) == (200, "accepted"), receipt
        async with here.client.events() as stream:
            events = await stream.until("message.held")
        ends = [each["data"] for each in events if each["data"]["type"] == "turn.finished"]
        assert [(end["status"], end["reason"]) for end in ends] == [("interrupted", "crash")]
        assert kinds(events).count("turn.started") == 1
        released = await here.client.ask("PATCH", "/v1/sessions/s/inbox/queued", {"state": "accepted"})
        assert released.status == 200
        assert (await here.client.finished(turns=2))[-1]["data"]["status"] == "done"


async def take_away(store: NATSStore, session: str) -> None:
    """Take a session from its owner, as a node does for which the owner seems to be dead, and release it."""
    leases, writer = store._leases, store._writer

    async def take() -> None:
        owner, node = await leases.owner(session), await store._living_node()
        lease = Lease(session, owner.generation + 1)
        held = HeldLog(node, await leases.take(session, node, lease.generation, owner.revision))
        assert await writer.begin(lease, held)
        await store._release(lease)

    await run_blocking_async(lambda: store._run(take), token=NEVER)


@looped
async def test_a_stop_on_a_node_that_has_lost_the_session_stops_it_at_the_next_owner(
    nats_server: NATSServer, prefix: str
) -> None:
    """The owner could not hold what was queued and acknowledged the stop nevertheless: the next one ran it."""
    gates = [Gate(), Gate()]
    model = ScriptedModel(["One", gates[0]], ["Two", gates[1]])
    async with node_of(nats_server, prefix, model) as one, node_of(nats_server, prefix) as two:
        await one.client.create()
        await one.client.post("Go.")
        await gates[0].await_reached()
        await one.client.post("Later.", id="later")
        await take_away(two.store, "s")
        receipt = await one.client.stop(wait=True)
        assert receipt.status == 200, receipt

        async def is_stopped() -> bool:
            view = await one.client.ask("GET", "/v1/sessions/s")
            inbox = await one.client.ask("GET", "/v1/sessions/s/inbox")
            return view.body["state"] == "idle" and all(each["state"] == "held" for each in inbox.body)

        await until(is_stopped)


@looped
async def test_a_record_that_an_old_owner_could_not_carry_out_is_kept_for_the_next(
    nats_server: NATSServer, prefix: str
) -> None:
    """The old owner removed the record though it could not hold what was queued, and the next owner ran it."""
    gate = Gate()
    model = ScriptedModel(["One", gate])
    async with (
        node_of(nats_server, prefix, model) as one,
        node_of(nats_server, prefix, ScriptedModel("Two.")) as two,
    ):
        await one.client.create()
        await one.client.post("Go.")
        await gate.await_reached()
        await one.client.post("Later.", id="later")
        await take_away(two.store, "s")
        last = await run_blocking_async(lambda: two.store.last_number("s"), token=NEVER)
        records = two.gateway._cluster._records  # type: ignore[union-attr]
        await records.write("s", StopRecord("recorded", last, "turn", "stop", "a client"))

        async def has_left() -> bool:
            return not one.has

        await until(has_left)
        inbox = await two.client.ask("GET", "/v1/sessions/s/inbox")
        assert [(each["id"], each["state"]) for each in inbox.body] == [("later", "held")]


@looped
async def test_a_session_without_a_log_does_not_keep_others_from_being_stopped(
    nats_server: NATSServer, prefix: str
) -> None:
    """A silent node was about to create a session: a stop of everything was not recorded for those listed after it."""
    silent = await run_blocking_async(lambda: NATSStore(nats_server.url, prefix=prefix), token=NEVER)
    async with node_of(nats_server, prefix) as node:
        cluster = node.gateway._cluster
        assert cluster is not None
        session = Agent(ScriptedModel()).session("s", silent)

        def occupy() -> None:
            for name in ("a", "z"):
                silent.acquire(name)
            session.record_created("halter")

        await run_blocking_async(occupy, token=NEVER)
        assert await cluster._record_stops([silent.process], _KEY, StopAllBody()) == 1
        assert await cluster._records.find("s") is not None
        await run_blocking_async(silent.close, token=NEVER)


@looped
async def test_stops_that_are_recorded_one_after_the_other_are_all_carried_out(
    nats_server: NATSServer, prefix: str
) -> None:
    """A stop of one turn replaced the record of a stop of everything: jobs in the background went on."""
    async with node_of(nats_server, prefix) as node:
        records = node.gateway._cluster._records  # type: ignore[union-attr]
        await records.write("s", StopRecord("1", 7, "all", "stop", "a client"))
        await records.write("s", StopRecord("2", 5, "turn", "stop", "another", "t1"))
        merged = await records.find("s")
        assert merged is not None
        assert (merged.last, merged.scope, merged.turn, merged.detail) == (7, "all", "", "another")
        assert merged.id not in ("1", "2")
        await records.remove("s", merged)
        writes = [StopRecord(f"{n}", n, "all" if n == 2 else "turn", "stop", "a client", "t") for n in range(4)]
        await asyncio.gather(*(records.write("s", each) for each in writes))
        merged = await records.find("s")
        assert merged is not None
        assert (merged.last, merged.scope, merged.turn) == (3, "all", "t")
        wider = StopRecord("wider", 9, "all", "stop", "a client")
        await records.write("s", wider)
        assert await records.find("s") == wider


@looped
async def test_a_stop_of_everything_ends_a_take_over(nats_server: NATSServer, prefix: str) -> None:
    """A node had gone, and its sessions were opened and run after a client was told that everything is stopped."""
    listing, may_answer = OneShotEvent(), OneShotEvent()
    left = await run_blocking_async(lambda: NATSStore(nats_server.url, prefix=prefix), token=NEVER)

    def leave() -> None:
        with Agent(ScriptedModel()).session("s", left) as session:
            session.record_created("halter")
        left.close()

    await run_blocking_async(leave, token=NEVER)
    async with node_of(nats_server, prefix, ScriptedModel("Here.")) as node:
        cluster, resumption = node.gateway._cluster, node.gateway.registry.resumption
        assert cluster is not None

        def owners() -> dict[str, LeaseOwner]:
            listing.set()
            may_answer.wait(30)
            return {"s": LeaseOwner("gone", 1, 1)}

        node.store.owners = owners  # type: ignore[method-assign]
        cluster._on_gone("gone")
        await listing.wait_async(30)
        assert (await node.client.ask("POST", "/v1/stop")).status == 200
        may_answer.set()
        while tasks := {*cluster._tasks, *resumption._tasks}:
            await asyncio.wait(tasks)
        assert not node.has
