"""Any node takes any request: it is done where the session is, and its events are seen everywhere."""

from __future__ import annotations

import asyncio
import contextlib
import io
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from halter import tool
from halter.cancel.threads.blocking import run_blocking_async
from halter.cancel.token import NEVER
from halter.gateway import KeyFile, Keys
from halter.gateway.cluster import cluster
from halter.models.types import ToolCall
from halter.stores.nats import log_writer
from halter.testing import Gate, ScriptedModel
from tests.support.gateway_client import kinds, numbers
from tests.support.looped import looped
from tests.support.nats_server import NATSServer
from tests.support.nodes import node_of
from tests.support.waiting import until


@looped
async def test_a_message_for_a_session_of_another_node_is_run_there(nats_server: NATSServer, prefix: str) -> None:
    """The client does not notice: the receipt, the state and the events are the same on both nodes."""
    async with (
        node_of(nats_server, prefix, ScriptedModel("An answer.")) as one,
        node_of(nats_server, prefix) as two,
    ):
        await one.client.create()
        receipt = await two.client.post("Hello.", id="m1")
        assert (receipt.status, receipt.body["id"]) == (202, "m1")
        here = await one.client.finished()
        there = await two.client.finished()
        assert numbers(here) == list(range(1, len(here) + 1))
        assert there == here
        view = await two.client.ask("GET", "/v1/sessions/s")
        assert (view.body["turn"]["text"], view.body["turn"]["status"]) == ("An answer.", "done")
        assert (one.has, two.has) == ({"s"}, set())


@looped
async def test_the_same_message_sent_to_several_nodes_is_applied_once(nats_server: NATSServer, prefix: str) -> None:
    """An id is known on whatever node it arrives, also when all of them arrive at the same time."""
    async with contextlib.AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(node_of(nats_server, prefix, ScriptedModel("One.", "Two.")))
            for _ in range(3)
        ]
        await nodes[0].client.create()
        receipts = await asyncio.gather(*(node.client.post("Hello.", id="m1") for node in nodes * 3))
        assert {receipt.status for receipt in receipts} == {202}
        events = await nodes[2].client.finished()
        assert kinds(events).count("message.accepted") == 1


@looped
async def test_whoever_gets_a_message_takes_a_session_that_nobody_has(nats_server: NATSServer, prefix: str) -> None:
    """A session that its node has unloaded is loaded by the next node that is asked for it."""
    async with (
        node_of(nats_server, prefix, ScriptedModel("First."), idle_after=0.0) as one,
        node_of(nats_server, prefix, ScriptedModel("Second.")) as two,
    ):
        await one.client.create()
        await one.client.post("Go.")
        await one.client.finished()
        while one.has:
            await one.gateway.registry.wait_for_unload()
        await two.client.post("Go on.")
        events = await two.client.finished(turns=2)
        assert [each["data"]["status"] for each in events if each["data"]["type"] == "turn.finished"] == ["done"] * 2
        assert two.has == {"s"}


@looped
async def test_events_of_another_node_come_without_gap_or_repeat(nats_server: NATSServer, prefix: str) -> None:
    """A stream on another node has every event once, in order, also those that came while it was being opened."""
    words = [f"word{number} " for number in range(400)]
    gate = Gate()
    async with (
        node_of(nats_server, prefix, ScriptedModel([*words[:200], gate, *words[200:]])) as one,
        node_of(nats_server, prefix) as two,
    ):
        await one.client.create()
        await one.client.post("Talk.")
        streams = [asyncio.create_task(two.client.finished()) for _ in range(3)]
        await gate.await_reached()
        late = asyncio.create_task(two.client.finished(after=5))
        gate.open()
        whole = await one.client.finished()
        for stream in streams:
            assert await stream == whole
        assert await late == whole[5:]
        assert not two.has


@looped
async def test_a_stream_from_another_node_goes_on_while_the_log_is_merged(
    nats_server: NATSServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node that has a session opens it again and again, and merges its log: who follows it gets each event once."""
    monkeypatch.setattr(log_writer, "MERGE_COMMITS", 3)
    gate = Gate()
    async with (
        node_of(nats_server, prefix, ScriptedModel(["1", gate], *"234567"), idle_after=0.0) as one,
        node_of(nats_server, prefix) as two,
    ):
        await one.client.create()
        await one.client.post("Go.")
        async with two.client.events() as stream:
            events = await stream.until("turn.started")
            gate.open()
            for turns in range(1, 8):
                events += await stream.until("turn.finished")
                while one.has:
                    await one.gateway.registry.wait_for_unload()
                if turns < 7:
                    await one.client.post("Go on.")
        assert not two.has
        assert events == await one.client.finished(turns=7)
        assert numbers(events) == list(range(1, len(events) + 1))
        state = await run_blocking_async(two.store.state, token=NEVER)
        assert state["state"]["first_seq"] > 1  # it was merged, and its old messages were purged


@looped
async def test_a_message_larger_than_nats_allows_reaches_another_node(nats_server: NATSServer, prefix: str) -> None:
    """Images travel in parts, to the node of the session and in the events that are told of it."""
    picture = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 12_000
    async with (
        node_of(nats_server, prefix, ScriptedModel("A picture.")) as one,
        node_of(nats_server, prefix) as two,
    ):
        await one.client.create()
        following = asyncio.create_task(two.client.finished())
        form = aiohttp.FormData()
        form.add_field("text", "What is this?")
        form.add_field("image", io.BytesIO(picture), content_type="image/png", filename="p.png")
        answer = await two.client.ask("POST", "/v1/sessions/s/media", data=form)
        assert answer.status == 202, answer
        events = await following
        assert numbers(events) == list(range(1, len(events) + 1))
        number = next(each["seq"] for each in events if each["data"]["type"] == "message.accepted")
        again = await two.client.ask("GET", f"/v1/sessions/s/media/{number}/1")
        assert again.status == 200
        assert again.data == picture
        assert one.has == {"s"}


@looped
async def test_questions_are_answered_from_another_node(nats_server: NATSServer, prefix: str) -> None:
    """An approval that is asked on one node is answered on another, and the tool runs."""
    done: list[str] = []

    @tool(approval=True)
    def write(text: str) -> str:
        """Write a text."""
        done.append(text)
        return "written"

    model = ScriptedModel(ToolCall("c1", "write", '{"text": "x"}'), "Done.")
    async with (
        node_of(nats_server, prefix, model, tools=[write], approve="ask") as one,
        node_of(nats_server, prefix) as two,
    ):
        await one.client.create()
        await two.client.post("Write.")
        async with two.client.events() as stream:
            asked = (await stream.until("approval.asked"))[-1]
            place = f"/v1/sessions/s/answers/{asked['data']['request']['id']}"
            answer = await two.client.ask("POST", place, {"value": True})
            assert answer.body == {"answered": True}
            await stream.until("turn.finished")
        assert done == ["x"]
        again = await two.client.ask("POST", place, {"value": True})
        assert again.status == 404


@looped
async def test_the_inbox_is_changed_from_another_node(nats_server: NATSServer, prefix: str) -> None:
    """Queued messages are listed, edited and removed on whatever node somebody asks."""
    gate = Gate()
    async with (
        node_of(nats_server, prefix, ScriptedModel(["Wait", gate], "Second.")) as one,
        node_of(nats_server, prefix) as two,
    ):
        await one.client.create()
        await two.client.post("Go.")
        await gate.await_reached()
        for name in ("a", "b"):
            await two.client.post(name, id=name)
        inbox = await two.client.ask("GET", "/v1/sessions/s/inbox")
        assert [each["id"] for each in inbox.body] == ["a", "b"]
        edited = await two.client.ask("PATCH", "/v1/sessions/s/inbox/a", {"text": "changed"})
        assert edited.body["text"] == "changed"
        assert (await two.client.ask("DELETE", "/v1/sessions/s/inbox/b")).body["state"] == "removed"
        assert (await two.client.ask("DELETE", "/v1/sessions/s/inbox/nothing")).status == 404
        gate.open()
        await one.client.finished(turns=2)
        rolled = await two.client.ask("POST", "/v1/sessions/s/rollback", {})
        assert (rolled.status, rolled.body["mode"]) == (200, "rollback")


@looped
async def test_a_session_of_another_key_is_not_found_on_any_node(
    nats_server: NATSServer, prefix: str, tmp_path: Path
) -> None:
    """The node that has a session decides who may use it, for clients of all nodes."""
    file = KeyFile(tmp_path / "keys.json")
    first, second = file.create("first", "write"), file.create("second", "write")
    async with (
        node_of(nats_server, prefix, ScriptedModel("Mine."), keys=Keys(file), key=first) as one,
        node_of(nats_server, prefix, keys=Keys(file), key=second) as two,
    ):
        await one.client.create()
        for method, path in (("GET", ""), ("GET", "/inbox"), ("POST", "/stop"), ("GET", "/events"), ("GET", "/ws")):
            assert (await two.client.ask(method, f"/v1/sessions/s{path}")).status == 404, path
        assert (await two.client.post("Not mine.")).status == 404
        taken = await two.client.ask("POST", "/v1/sessions", {"id": "s"})
        assert taken.status == 409
        assert (await two.client.ask("GET", "/v1/sessions")).body["sessions"] == []


@looped
async def test_a_session_is_deleted_from_another_node(nats_server: NATSServer, prefix: str) -> None:
    """It ends where it is, its streams end everywhere, and a new one of the same name begins with event 1."""
    gate = Gate()
    async with (
        node_of(nats_server, prefix, ScriptedModel(["Wait", gate])) as one,
        node_of(nats_server, prefix, ScriptedModel("New.")) as two,
    ):
        await one.client.create()
        await two.client.post("Go.")
        async with two.client.events() as stream:
            await stream.until("text.delta")
            assert (await two.client.ask("DELETE", "/v1/sessions/s")).status == 204
            await stream.rest()
        assert (await two.client.ask("GET", "/v1/sessions/s")).status == 404
        await two.client.create()
        await two.client.post("Again.")
        assert numbers(await one.client.finished())[0] == 1


@looped
async def test_the_list_shows_sessions_of_all_nodes(
    nats_server: NATSServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node lists all sessions, and knows which of them are running elsewhere."""
    monkeypatch.setattr(cluster, "_STATES", 20.0)  # on a busy machine a node may need more than its second
    gate = Gate()
    async with (
        node_of(nats_server, prefix, ScriptedModel(["Wait", gate])) as one,
        node_of(nats_server, prefix) as two,
    ):
        await one.client.create("busy")
        await one.client.post("Go.", "busy")
        await two.client.create("quiet")
        await gate.await_reached()
        listed = (await two.client.ask("GET", "/v1/sessions")).body["sessions"]
        assert {each["id"]: each["state"] for each in listed} == {"busy": "running", "quiet": "idle"}
        gate.open()


@looped
async def test_a_websocket_reaches_a_session_of_another_node(nats_server: NATSServer, prefix: str) -> None:
    """Commands and events of a WebSocket pass to and from the node that has the session."""
    async with (
        node_of(nats_server, prefix, ScriptedModel("An answer.")) as one,
        node_of(nats_server, prefix) as two,
    ):
        await one.client.create()
        seen: list[object] = []
        async with two.client.http.ws_connect("/v1/sessions/s/ws") as socket:
            await socket.send_json({"type": "message", "ref": 1, "text": "Hello."})
            async for message in socket:
                body = message.json()
                seen.append(body.get("data", body)["type"])
                if seen[-1] == "turn.finished":
                    break
        assert {"answer", "turn.finished"} <= set(seen)
        assert "problem" not in seen


@looped
async def test_a_stream_of_a_session_that_is_deleted_while_it_opens_ends(nats_server: NATSServer, prefix: str) -> None:
    """The deletion came while the servers were asked for the events: the stream never ended, and said nothing."""
    async with node_of(nats_server, prefix) as one, node_of(nats_server, prefix) as two:
        await one.client.create()
        assert two.gateway._cluster is not None
        logs = two.gateway._cluster._logs
        subscribed, may_go_on = asyncio.Event(), asyncio.Event()
        flush = logs._client.flush

        async def slow_flush(seconds: int) -> None:
            await flush(seconds)
            subscribed.set()
            await may_go_on.wait()

        logs._client.flush = slow_flush  # type: ignore[assignment]

        async def follow() -> list[dict[str, Any]]:
            async with two.client.events() as stream:
                return await stream.rest()

        following = asyncio.create_task(follow())
        await subscribed.wait()
        assert (await one.client.ask("DELETE", "/v1/sessions/s")).status == 204

        async def has_ended() -> bool:
            return "s" not in logs._open

        await until(has_ended)
        may_go_on.set()
        assert await asyncio.wait_for(following, 20) == []
