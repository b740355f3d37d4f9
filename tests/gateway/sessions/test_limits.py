"""What is too much is refused, with a time to try again, and never dropped; a stop is never refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from halter.events import MessageAccepted, MessageApplied
from halter.gateway import GatewayLimits
from halter.gateway.sessions.limits import per_minute
from halter.models.types import ModelRequest
from halter.testing import Gate, ScriptedModel
from tests.support.gateway_client import Answer, Client, client_session, gateway_of, keys_of, sqlite
from tests.support.looped import looped


def refused(answer: Answer, field: str) -> bool:
    """Whether this is a refusal by a limit, as clients are promised it."""
    assert answer.status == 429, answer
    assert answer.body["type"] == "urn:halter:problem:limit"
    assert int(answer.headers["Retry-After"]) >= 1
    return bool(answer.body["field"] == field)


def test_an_allowance_is_given_back_over_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """After as many as a minute has there is one more for each part of it, and a pause gives all of them back."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    allowance = per_minute(60)
    for _ in range(60):
        assert allowance.delay() == 0
        allowance.take()
    assert allowance.delay() == pytest.approx(1.0)
    now[0] += 1.0
    assert allowance.delay() == 0
    allowance.take()
    assert allowance.delay() > 0
    now[0] += 3600
    for _ in range(60):
        assert allowance.delay() == 0
        allowance.take()
    assert allowance.delay() > 0


@looped
async def test_too_many_messages_of_a_session() -> None:
    """The session is told when, another one is not touched, and the same id again is no new message."""
    async with gateway_of("One.", "Two.", limits=GatewayLimits(session_messages=1)) as (_, client):
        await client.create("a")
        await client.create("b")
        assert (await client.post("x", "a", id="m1")).status == 202
        answer = await client.post("y", "a")
        assert refused(answer, "messages")
        assert 50 < answer.body["retry_after"] <= 60
        assert (await client.post("x", "a", id="m1")).status == 202
        assert (await client.post("x", "b")).status == 202


@looped
async def test_too_many_messages_of_a_key(tmp_path: Path) -> None:
    """In whichever sessions; another key is not touched."""
    keys, made = keys_of(tmp_path)
    async with gateway_of("One.", "Two.", "Three.", keys=keys, limits=GatewayLimits(key_messages=2)) as (
        gateway,
        client,
    ):
        async with client_session(gateway, made["write"]) as http:
            writer = Client(http)
            for name in "abc":
                await writer.create(name)
            assert (await writer.post("x", "a")).status == 202
            assert (await writer.post("x", "b")).status == 202
            assert refused(await writer.post("x", "c"), "messages")
        assert (await client.post("x", "c")).status == 202


@looped
async def test_too_many_sessions_of_a_key() -> None:
    """Making sessions without end is refused."""
    async with gateway_of(limits=GatewayLimits(key_sessions=2)) as (_, client):
        await client.create("a")
        await client.create("b")
        assert refused(await client.ask("POST", "/v1/sessions"), "sessions")


@looped
async def test_a_full_inbox() -> None:
    """Messages that wait are bounded; when one is taken out there is room again."""
    gate = Gate()
    async with gateway_of(["One ", gate], limits=GatewayLimits(inbox=2)) as (_, client):
        await client.create()
        await client.post("x")
        await gate.await_reached()
        for name in ("a", "b"):
            assert (await client.post("x", id=name)).status == 202
        assert refused(await client.post("x", id="c"), "inbox")
        await client.ask("DELETE", "/v1/sessions/s/inbox/a")
        assert (await client.post("x", id="c")).status == 202


@looped
async def test_too_many_turns_at_once() -> None:
    """A message that would set off one more is refused; one for a turn that runs is taken, and so is each stop."""
    gates = [Gate(), Gate(), Gate()]
    async with gateway_of(*(["One ", gate] for gate in gates), limits=GatewayLimits(turns=2)) as (_, client):
        for name in "abc":
            await client.create(name)
        for name, gate in zip("ab", gates, strict=False):
            await client.post("x", name)
            await gate.await_reached()
        assert refused(await client.post("x", "c"), "turns")
        assert (await client.post("later", "a")).status == 202
        assert (await client.stop("b", wait=True)).body["finished"]
        assert (await client.post("x", "c")).status == 202
        await gates[2].await_reached()


@looped
async def test_too_many_turns_of_a_key(tmp_path: Path) -> None:
    """Another key may still begin one."""
    keys, made = keys_of(tmp_path)
    gates = [Gate(), Gate()]
    script = (["One ", gate] for gate in gates)
    async with gateway_of(*script, keys=keys, limits=GatewayLimits(key_turns=1)) as (gateway, client):
        async with client_session(gateway, made["write"]) as http:
            writer = Client(http)
            for name in "abc":
                await writer.create(name)
            assert (await writer.post("x", "a")).status == 202
            await gates[0].await_reached()
            assert refused(await writer.post("x", "b"), "turns")
        assert (await client.post("x", "b")).status == 202
        await gates[1].await_reached()


@looped
async def test_bodies_that_are_too_large() -> None:
    """Refused by their length, or, if that is not told, as soon as they are too long; a form may be longer."""
    async with gateway_of("One.", limits=GatewayLimits(body=1000, upload=5000)) as (_, client):
        await client.create()

        async def endless() -> AsyncIterator[bytes]:
            while True:
                yield b'{"text": "' + b"x" * 500
                await asyncio.sleep(0)

        path = "/v1/sessions/s/messages"
        told = await client.ask("POST", path, {"text": "x" * 2000})
        assert (told.status, told.body["field"]) == (413, "body")
        untold = await client.ask("POST", path, data=endless(), headers={"Content-Type": "application/json"})
        assert untold.status == 413
        form = {"Content-Type": "multipart/form-data; boundary=x"}
        start = b'--x\r\nContent-Disposition: form-data; name="audio"\r\nContent-Type: audio/wav\r\n\r\n'
        assert (await client.ask("POST", path, data=start + b"x" * 2000 + b"\r\n--x--", headers=form)).status == 202
        assert (await client.ask("POST", path, data=start + b"x" * 9000 + b"\r\n--x--", headers=form)).status == 413


@looped
async def test_streams_are_bounded() -> None:
    """One too many is refused, and when another has gone there is room."""
    async with gateway_of(limits=GatewayLimits(streams=1)) as (_, client):
        await client.create()
        async with client.events() as stream:
            await stream.next()
            assert refused(await client.ask("GET", "/v1/sessions/s/events"), "streams")


@looped
async def test_ten_times_too_much_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    """Of what was answered with 202 all is applied, once; what was refused is nowhere."""
    answered = asyncio.Event()

    class Model:
        name = "slow"

        async def stream(self, request: ModelRequest) -> object:
            await answered.wait()
            async for event in ScriptedModel(["Hm ", "so."]).stream(request):
                yield event

    sessions = [f"s{number}" for number in range(100)]
    with sqlite(tmp_path) as store:
        async with gateway_of(model=Model(), store=store, limits=GatewayLimits(turns=10, inbox=3)) as (_, client):  # type: ignore[arg-type]
            await asyncio.gather(*(client.create(name) for name in sessions))
            answers = await asyncio.gather(*(client.post("x", name, id=f"m-{name}") for name in sessions))
            taken = {name for name, answer in zip(sessions, answers, strict=True) if answer.status == 202}
            assert len(taken) == 10
            assert {answer.status for answer in answers} == {202, 429}
            answered.set()
            for name in taken:
                await client.finished(name)
        for name in sessions:
            data = [event.data for event in store.read(name)]
            assert sum(isinstance(each, MessageAccepted) for each in data) == (name in taken)
            assert sum(isinstance(each, MessageApplied) for each in data) == (name in taken)


@looped
async def test_a_noisy_session_does_not_starve_another() -> None:
    """While one session says a hundred thousand words as fast as it can, another is asked and answers."""
    quiet = "Here."

    class Model:
        name = "noisy"

        async def stream(self, request: ModelRequest) -> object:
            noisy = "noise" in str(request.messages[-1])
            for _ in range(100_000 if noisy else 1):
                async for event in ScriptedModel([quiet]).stream(request):
                    if event.__class__.__name__ == "TextDelta":
                        yield event
                await asyncio.sleep(0)
            async for event in ScriptedModel([""]).stream(request):
                yield event

    async with gateway_of(model=Model()) as (gateway, client):  # type: ignore[arg-type]
        for name in ("loud", "quiet"):
            await client.create(name)
        await client.post("noise", "loud")
        began = time.monotonic()
        await client.post("Are you there?", "quiet")
        events = await client.finished("quiet")
        assert events[-1]["data"]["status"] == "done"
        assert gateway.registry.live_sessions["loud"].session.is_running  # it is by far not done
        assert (await client.stop("loud", wait=True)).body["finished"]
        assert time.monotonic() - began < 15


@looped
async def test_a_retry_at_the_limit_of_messages_loses_no_turn() -> None:
    """It counted twice: the second count refused the message when its turn was out of the history already."""
    async with gateway_of("One.", "Two.", limits=GatewayLimits(session_messages=2)) as (gateway, client):
        await client.create()
        await client.post("Hi.")
        await client.finished()
        again = await client.ask("POST", "/v1/sessions/s/retry", {"text": "Hi again."})
        assert again.status == 202, again
        await client.finished(turns=2)
        refused = await client.ask("POST", "/v1/sessions/s/retry", {})
        assert refused.status == 429
        history = gateway.registry.live_sessions["s"].session.history
        assert [message.text for message in history] == ["Hi again.", "Two."]


@looped
async def test_a_branch_that_is_refused_is_not_created() -> None:
    """A client was told that nothing was accepted, and had a session without its message."""
    async with gateway_of("One.", limits=GatewayLimits(key_messages=1)) as (_, client):
        await client.create()
        await client.post("Hi.")
        turn = (await client.finished())[-1]["turn"]
        refused = await client.ask("POST", "/v1/sessions/s/branch", {"turn": turn, "id": "b"})
        assert refused.status == 429
        assert (await client.ask("GET", "/v1/sessions/b")).status == 404
