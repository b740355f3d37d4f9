"""A WebSocket: the same events and the same commands as over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from halter import ToolContext, tool
from halter.gateway.http import websocket
from halter.models import ToolCall
from halter.testing import Gate
from tests.support.gateway_client import client_session, gateway_of, keys_of, kinds, numbers
from tests.support.looped import looped
from tests.support.paused_writer import WriterPaused


class Wire:
    """A client's end: events and answers, told apart."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.events: list[dict[str, Any]] = []

    async def _next(self) -> dict[str, Any]:
        message: dict[str, Any] = await self.socket.receive_json(timeout=10)
        if "seq" in message:
            self.events.append(message)
        return message

    async def ask(self, ref: object = 1, **command: object) -> dict[str, Any]:
        """Send a command; what comes back for it."""
        await self.socket.send_json({**command, "ref": ref})
        while True:
            message = await self._next()
            if "ref" in message:
                assert message["ref"] == ref
                return message

    async def until(self, kind: str) -> dict[str, Any]:
        while True:
            found = [event for event in self.events if event["data"]["type"] == kind]
            if found:
                return found[-1]
            await self._next()


@looped
async def test_messages_and_stops_over_a_socket() -> None:
    """A message is answered with its receipt, events come beside it, and a stop that waits holds up nothing."""
    gate = Gate()
    async with gateway_of(["One ", gate], "Two.") as (_, client):
        await client.create()
        async with client.http.ws_connect("/v1/sessions/s/ws") as socket:
            wire = Wire(socket)
            sent = await wire.ask({"any": "thing"}, type="message", text="Hi.", id="m1")
            assert (sent["type"], sent["body"]["id"], sent["body"]["state"]) == ("answer", "m1", "accepted")
            await wire.until("text.delta")
            queued = await wire.ask(type="message", text="Next.", id="m2")
            assert queued["body"]["mode"] == "queue"
            edited = await wire.ask(type="edit", message="m2", text="After that.")
            assert edited["body"]["text"] == "After that."
            stopped = await wire.ask(type="stop", wait=True)
            assert (stopped["body"]["stopped"], stopped["body"]["finished"]) == (True, True)
            assert (await wire.until("turn.finished"))["data"]["reason"] == "stop"
            removed = await wire.ask(type="remove", message="m2")
            assert removed["body"]["state"] == "removed"
            back = await wire.ask(type="rollback")
            assert back["body"]["mode"] == "rollback"
            await wire.until("turn.rolled_back")
            assert numbers(wire.events) == list(range(1, len(wire.events) + 1))
            seen = await client.finished()
            assert wire.events[: len(seen)] == seen


@looped
async def test_words_of_every_length_come_over_a_socket() -> None:
    """A frame says its size in one, two or eight bytes; around each bound nothing is lost."""
    words = ["x" * size for size in (1, *range(130), *range(65_400, 65_440), 200_000)]
    async with gateway_of(words) as (_, client):
        await client.create()
        async with client.http.ws_connect("/v1/sessions/s/ws", max_msg_size=0) as socket:
            wire = Wire(socket)
            await wire.ask(type="message", text="Hi.")
            await wire.until("turn.finished")
        said = [each["data"]["text"] for each in wire.events if each["data"]["type"] == "text.delta"]
        assert "".join(said) == "".join(words)
        assert numbers(wire.events) == list(range(1, len(wire.events) + 1))


@looped
async def test_a_socket_resumes() -> None:
    """`after` is the last number that was seen."""
    async with gateway_of("One.") as (_, client):
        await client.create()
        await client.post("Hi.")
        events = await client.finished()
        async with client.http.ws_connect("/v1/sessions/s/ws?after=3") as socket:
            wire = Wire(socket)
            await wire.until("turn.finished")
            assert wire.events == events[3:]


@looped
async def test_closing_a_socket_stops_nothing() -> None:
    """Neither by a goodbye nor by a cut."""
    gate = Gate()
    async with gateway_of(["One ", gate, "two."]) as (_, client):
        await client.create()
        async with client.http.ws_connect("/v1/sessions/s/ws") as socket:
            await Wire(socket).ask(type="message", text="Hi.")
        other = await client.http.ws_connect("/v1/sessions/s/ws")
        await gate.await_reached()
        assert other._response.connection is not None
        assert other._response.connection.transport is not None
        other._response.connection.transport.abort()
        gate.open()
        assert (await client.finished())[-1]["data"]["status"] == "done"


@looped
async def test_a_stop_that_waits_is_done_although_the_socket_is_closed_behind_it() -> None:
    """A client sent `wait: true` and closed: its stop was cancelled before it began, and the agent went on working."""
    gate = Gate()
    async with gateway_of(["One ", gate]) as (_, client):
        await client.create()
        async with client.http.ws_connect("/v1/sessions/s/ws") as socket:
            await Wire(socket).ask(type="message", text="Hi.")
            await gate.await_reached()
            await socket.send_json({"type": "stop", "wait": True})
        assert (await client.finished())[-1]["data"]["reason"] == "stop"


@looped
async def test_what_was_sent_before_the_socket_was_closed_is_done() -> None:
    """Commands wait for each other, so some may not have begun when the client disconnects."""
    async with gateway_of("One.", "Two.") as (_, client):
        await client.create()
        async with client.http.ws_connect("/v1/sessions/s/ws") as socket:
            for number in range(2):
                await socket.send_json({"type": "message", "text": f"{number}"})
        async with client.events() as stream:
            await stream.until("message.accepted", 2)


@looped
async def test_a_stop_overtakes_messages_and_holds_them() -> None:
    """Behind a message that waited for a locked store, a stop was not even read while the agent went on working.

    The second message is written after the stop: it must not start the next turn.
    """
    gate = Gate()
    async with gateway_of(["One ", gate], "Two.") as (gateway, client):
        await client.create()
        await client.post("Hi.")
        await gate.await_reached()
        session = gateway.registry.live_sessions["s"].session
        turn = session.turn
        assert turn is not None
        async with client.http.ws_connect("/v1/sessions/s/ws") as socket:
            with WriterPaused(session):
                for ref in (1, 2):
                    await socket.send_json({"type": "message", "ref": ref, "text": "Then this.", "id": f"m{ref}"})
                await socket.send_json({"type": "stop", "ref": 3, "expect_turn": turn.id})
                await socket.send_json({"type": "stop", "ref": 4, "expect_turn": "another"})
                await asyncio.wait_for(turn.token.wait_async(), 20)
            answers: dict[int, Any] = {}
            while len(answers) < 4:
                message = await socket.receive_json(timeout=20)
                if "ref" in message:
                    answers[message["ref"]] = message["type"]
            assert set(answers.values()) == {"answer"}
        assert [each.state for each in session.inbox] == ["held", "held"]
        assert kinds(await client.finished()).count("turn.started") == 1


@looped
async def test_too_many_commands_are_refused_and_a_stop_is_still_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends without end fills no memory, and its stop does not have to wait for room."""
    monkeypatch.setattr(websocket, "_MAX_WAITING", 2)
    gate = Gate()
    async with gateway_of(["One ", gate]) as (gateway, client):
        await client.create()
        await client.post("Hi.")
        await gate.await_reached()
        session = gateway.registry.live_sessions["s"].session
        async with client.http.ws_connect("/v1/sessions/s/ws") as socket:
            with WriterPaused(session):
                for ref in (1, 2, 3):
                    await socket.send_json({"type": "message", "ref": ref, "text": "Then this."})
                await socket.send_json({"type": "stop", "ref": 4})
                await asyncio.wait_for(session.cancel_token.wait_async(), 20)
            answers: dict[int, Any] = {}
            while len(answers) < 4:
                message = await socket.receive_json(timeout=20)
                if "ref" in message:
                    answers[message["ref"]] = message["body"].get("status", message["type"])
            assert answers == {1: "answer", 2: "answer", 3: 429, 4: "answer"}


@looped
async def test_questions_over_a_socket() -> None:
    """They are asked by an event, and answered by a command."""

    @tool
    async def ask(ctx: ToolContext) -> str:
        """Ask."""
        return str(await ctx.ask("Which?", None))

    async with gateway_of(ToolCall("c1", "ask"), "Done.", tools=[ask]) as (_, client):
        await client.create()
        async with client.http.ws_connect("/v1/sessions/s/ws") as socket:
            wire = Wire(socket)
            await wire.ask(type="message", text="Hi.")
            asked = (await wire.until("question.asked"))["data"]["id"]
            none = await wire.ask(type="answer", request="nothing", value=1)
            assert (none["type"], none["body"]["status"]) == ("problem", 404)
            assert (await wire.ask(type="answer", request=asked, value="blue"))["body"] == {"answered": True}
            assert (await wire.until("tool.finished"))["data"]["outcome"]["content"] == "blue"


@looped
async def test_what_is_wrong_is_told_and_the_socket_stays() -> None:
    """A command that cannot be read, or is refused, is answered with a problem that names the field."""
    async with gateway_of("One.") as (_, client):
        await client.create()
        async with client.http.ws_connect("/v1/sessions/s/ws") as socket:
            wire = Wire(socket)
            for command, field in (
                ({"type": "message"}, "text"),
                ({"type": "message", "text": " "}, "text"),
                ({"type": "message", "text": "x", "mode": "fast"}, "mode"),
                ({"type": "sing"}, "type"),
                ({"text": "x"}, "type"),
                ({"type": "stop", "wait": 1e9}, "wait"),
                ({"type": "stop", "scope": "call"}, "call_id"),
                ({"type": "edit", "message": "none", "text": "x"}, "message"),
            ):
                problem = await wire.ask(**command)
                assert (problem["type"], problem["body"]["field"]) == ("problem", field), problem
            await socket.send_str("{")
            await socket.send_bytes(b"\xff\xfe")
            assert [(await wire._next())["type"] for _ in range(2)] == ["problem", "problem"]
            await wire.ask(type="message", text="Hi.")
            await wire.until("turn.finished")
            assert kinds(wire.events).count("message.accepted") == 1


@looped
async def test_a_key_that_may_only_read_can_listen(tmp_path: Path) -> None:
    """It gets the events, and its commands are refused one by one."""
    keys, made = keys_of(tmp_path)
    async with gateway_of("One.", keys=keys) as (gateway, client), client_session(gateway, made["read"]) as http:
        await gateway.registry.create("s", None, made["read"].split("_")[1])
        async with http.ws_connect("/v1/sessions/s/ws") as socket:
            wire = Wire(socket)
            refused = await wire.ask(type="message", text="Hi.")
            assert (refused["type"], refused["body"]["status"]) == ("problem", 403)
            assert (await wire.ask(type="stop"))["body"]["status"] == 403
            await client.post("Hi.")
            await wire.until("turn.finished")
