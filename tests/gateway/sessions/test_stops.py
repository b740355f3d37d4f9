"""Stops over HTTP, as the contract has them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from halter import Agent, ToolContext, tool
from halter.cancel.one_shot_event import OneShotEvent
from halter.gateway import GatewayLimits
from halter.gateway.sessions import stops
from halter.models import ToolCall
from halter.models.backoff import Backoff
from halter.session import serving
from halter.stores import MemoryStore
from halter.testing import Gate, ScriptedModel
from tests.support.gateway_client import gateway_of
from tests.support.hooked_store import HookedStore
from tests.support.looped import looped


@looped
async def test_a_stop_holds_what_waits_and_a_patch_lets_it_go_on() -> None:
    """After a stop the queue is shown as held; `state: accepted` releases one message."""
    gate = Gate()
    async with gateway_of(["One ", gate], "Two.") as (_, client):
        await client.create()
        await client.post("Hi.")
        await gate.await_reached()
        await client.post("Then this.", id="next")
        await client.stop(wait=5)
        [held] = (await client.ask("GET", "/v1/sessions/s/inbox")).body
        assert held["state"] == "held"
        released = await client.ask("PATCH", "/v1/sessions/s/inbox/next", {"state": "accepted"})
        assert released.status == 200
        events = await client.finished(turns=2)
        assert events[-1]["data"]["status"] == "done"


@looped
async def test_a_stop_says_what_it_did() -> None:
    """With another turn expected it does nothing; a reason of one's own is on record; a second one has not done it."""
    gate = Gate()
    async with gateway_of(["One ", gate]) as (_, client):
        await client.create()
        await client.post("Hi.")
        await gate.await_reached()
        missed = await client.stop(expect_turn="another")
        assert (missed.body["stopped"], missed.body["note"]) == (False, "turn another is not running")
        first = await client.stop(reason="lunch", wait=True)
        assert (first.body["stopped"], first.body["finished"], first.body["mode"]) == (True, True, "stop")
        events = await client.finished()
        stopping = next(each["data"] for each in events if each["data"]["type"] == "turn.stopping")
        assert stopping["reason"] == "lunch"
        assert "environment" in stopping["detail"]
        assert not (await client.stop()).body["stopped"]


@looped
async def test_a_stop_that_takes_a_moment_is_answered_when_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `wait`, too: whoever asked need not ask again. What takes longer is not waited for."""
    gate, may_end = Gate(), OneShotEvent()

    @tool(grace=10)
    async def hold(ctx: ToolContext) -> str:
        """Tidy up for as long as that takes."""
        try:
            ctx.report("holding")
            await asyncio.sleep(10)
        finally:
            await may_end.wait_async()
        return "slept"

    async with gateway_of(["One ", gate], [ToolCall("c1", "hold", "{}")], tools=[hold]) as (_, client):
        await client.create()
        await client.post("Hi.")
        await gate.await_reached()
        with monkeypatch.context() as slow_machine:
            slow_machine.setattr(stops, "_MIN_WAIT", 10.0)
            assert (await client.stop()).body["finished"]
        async with client.events() as stream:
            await client.post("And this?")
            await stream.until("tool.progress")
            slow = await client.stop()
            assert (slow.body["stopped"], slow.body["finished"]) == (True, False)
            may_end.set()
            await stream.until("turn.finished")


@looped
async def test_every_session_is_stopped_in_one_go() -> None:
    """Turns that run end, messages that wait are held, sessions that do nothing are left alone."""
    gates = [Gate() for _ in range(20)]
    async with gateway_of(*([f"{number} ", gate] for number, gate in enumerate(gates))) as (gateway, client):
        for number in range(20):
            await client.create(f"s{number}")
            await client.post("Hi.", session=f"s{number}")
        await client.create("idle")
        for gate in gates:
            await gate.await_reached()
        await client.post("Next.", session="s7", id="next")
        answer = await client.ask("POST", "/v1/stop", {"reason": "fire", "wait": True})
        assert (answer.status, answer.body) == (200, {"stopped": 20, "finished": 20})
        for number in range(20):
            last = (await client.finished(f"s{number}"))[-1]["data"]
            assert (last["status"], last["reason"]) == ("interrupted", "fire")
        (held,) = (await client.ask("GET", "/v1/sessions/s7/inbox")).body
        assert (held["id"], held["state"]) == ("next", "held")
        assert gateway.registry.live_sessions["idle"].session.turn is None
        again = await client.ask("POST", "/v1/stop")
        assert again.body == {"stopped": 0, "finished": 0}
        wrong = await client.ask("POST", "/v1/stop", {"scope": "call"})
        assert (wrong.status, wrong.body["field"]) == (422, "scope")


@looped
async def test_a_stop_of_every_session_reaches_those_that_a_start_has_yet_to_wake() -> None:
    """What waits from before goes on waiting: no turn begins behind the stop, until somebody asks for its session."""
    store, gate = MemoryStore(), Gate()
    for number in range(5):
        with Agent(ScriptedModel()).session(f"s{number}", store) as session:
            session.post("Go on.")
    model = ScriptedModel(["One ", gate], "Two.", "Three.", "Four.", "Five.")
    async with gateway_of(model=model, store=store, limits=GatewayLimits(turns=1)) as (gateway, client):
        await gate.await_reached()
        (waking,) = gateway.registry.resumption._tasks
        answer = await client.ask("POST", "/v1/stop", {"wait": True})
        assert answer.body == {"stopped": 1, "finished": 1}
        await asyncio.wait({waking}, timeout=10)
        assert (waking.cancelled(), len(model.requests)) == (True, 1)
        assert sum(info.waiting for info in store.sessions()) == 4
        asleep = next(info.id for info in store.sessions() if info.waiting)
        assert (await client.finished(asleep))[-1]["data"]["status"] == "done"


@looped
async def test_a_stop_of_every_session_reaches_one_that_is_being_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is just being read when the stop comes: its turn ends, or does not begin, and what waits in it is held."""
    store, reading, waiting, may_go_on = MemoryStore(), asyncio.Event(), asyncio.Event(), threading.Event()
    async with gateway_of(model=ScriptedModel([Gate()]), store=store) as (gateway, client):
        await asyncio.gather(*gateway.registry.resumption._tasks)
        with Agent(ScriptedModel()).session("s", store) as session:
            session.post("Go on.", id="m")
        loop, read, loaded = asyncio.get_running_loop(), gateway.registry._read, gateway.registry.loaded

        def read_slowly(*args: Any) -> Any:
            loop.call_soon_threadsafe(reading.set)
            may_go_on.wait(10)
            return read(*args)

        async def note_and_wait() -> bool:
            waiting.set()
            return await loaded()

        monkeypatch.setattr(gateway.registry, "_read", read_slowly)
        monkeypatch.setattr(gateway.registry, "loaded", note_and_wait)
        asked = asyncio.ensure_future(client.ask("GET", "/v1/sessions/s"))
        await reading.wait()
        stopping = asyncio.ensure_future(client.ask("POST", "/v1/stop", {"wait": True}))
        await waiting.wait()
        may_go_on.set()
        assert (await stopping).status == 200
        assert (await asked).status == 200
        live = gateway.registry.live_sessions["s"]
        pending = live.session.inbox.find("m")
        assert pending is not None
        assert not live.session.is_running
        assert pending.state == "held" or live.session.turn is not None


@looped
async def test_one_call_can_be_stopped_alone() -> None:
    """`scope: call` ends one tool and the turn goes on; without its name that is refused."""
    started = asyncio.Event()

    @tool
    async def wait(ctx: ToolContext) -> str:
        """Wait."""
        started.set()
        await asyncio.sleep(60)
        return "never"

    async with gateway_of(ToolCall("c1", "wait"), "Done.", tools=[wait]) as (_, client):
        await client.create()
        await client.post("Hi.")
        await started.wait()
        for body in ({"scope": "call"}, {"call_id": "c1"}):
            bad = await client.ask("POST", "/v1/sessions/s/stop", body)
            assert (bad.status, bad.body["field"]) == (422, "call_id")
        assert not (await client.stop(scope="call", call_id="other")).body["stopped"]
        assert (await client.stop(scope="call", call_id="c1")).body["stopped"]
        events = await client.finished()
        outcome = next(each["data"]["outcome"] for each in events if each["data"]["type"] == "tool.finished")
        assert (outcome["status"], events[-1]["data"]["status"]) == ("cancelled", "done")


@pytest.mark.parametrize("path", ["/v1/sessions/s/stop", "/v1/stop"])
@looped
async def test_a_stop_that_cannot_hold_messages_is_not_acknowledged(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is full: the turn is stopped, but the client is told to send the stop again, as "later" may run."""
    monkeypatch.setattr(serving, "_BACKOFF", Backoff(base=60.0, cap=60.0))  # "later" does not run before the next stop
    store, gate = HookedStore(), Gate()
    async with gateway_of(["Wait", gate], store=store) as (_, client):
        await client.create()
        await client.post("Go.")
        await gate.await_reached()
        await client.post("Later.", id="later")
        store.fill_up("message.held")
        refused = await client.ask("POST", path, {})
        assert (refused.status, refused.body["type"].rpartition(":")[2]) == (503, "store")
        store.empty()
        stopped = await client.ask("POST", path, {})
        assert stopped.status == 200
        inbox = await client.ask("GET", "/v1/sessions/s/inbox")
        assert [(each["id"], each["state"]) for each in inbox.body] == [("later", "held")]
