"""A closed connection stops the turn of a completion at once; so do a stop of everything and the gateway's end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openai import APIError, AsyncOpenAI, InternalServerError
from openai.types.responses import ResponseFailedEvent

from halter import Agent, Session, run_process, tool
from halter.events import Event, TurnFinished
from halter.gateway import Gateway
from halter.models import OpenAIModel
from halter.models.types import ToolCall
from halter.testing import (
    FakeProvider,
    Gate,
    ScriptedModel,
    hang_before_first_byte,
    hang_mid_stream,
    slow_stream,
    tool_calls,
)
from tests.support.gateway_client import OWN, gateway_of
from tests.support.looped import looped
from tests.support.openai_client import HELLO, openai_client, openai_gateway
from tests.support.processes import is_alive
from tests.support.waiting import until

PROMPT = 5.0  # seconds, on a busy machine; usually some milliseconds


def agent_of(provider: FakeProvider, *tools: Any) -> Agent:
    return Agent(OpenAIModel("any", base_url=provider.openai_url, api_key="any"), list(tools))


def ends_of(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> list[TurnFinished]:
    """The ends of turns from now on, as metrics, logs and traces get them."""
    ends: list[TurnFinished] = []
    count = gateway.metrics.count

    def note(event: Event) -> None:
        count(event)
        if isinstance(event.data, TurnFinished):
            ends.append(event.data)

    monkeypatch.setattr(gateway.metrics, "count", note)
    return ends


async def until_idle(gateway: Gateway) -> None:
    async def is_idle() -> bool:
        return not list(gateway.registry.transient) and not gateway.registry.busy

    await until(is_idle)


async def until_some(ends: list[TurnFinished]) -> None:
    async def has_ended() -> bool:
        return bool(ends)

    await until(has_ended)


BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "halter", "messages": HELLO},
    "/v1/responses": {"model": "halter", "input": "Hello."},
}


@pytest.mark.parametrize("path", list(BODIES))
@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("reply", [hang_before_first_byte(), hang_mid_stream(2)], ids=["before", "within"])
def test_the_provider_is_left_when_the_client_leaves(
    path: str, streams: bool, reply: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the first byte or within the answer, streamed or not: its connection is closed at once, and that is no
    error in the log.
    """

    @looped
    async def run() -> None:
        with FakeProvider(reply) as provider:
            async with gateway_of(agents=agent_of(provider)) as (gateway, client):
                ends = ends_of(gateway, monkeypatch)
                body = BODIES[path] | {"stream": streams}
                asking = asyncio.create_task(client.ask("POST", path, body))
                await provider.await_request()
                if reply.after:
                    await provider.await_pieces(2)
                left = time.monotonic()
                asking.cancel()  # aiohttp closes the connection
                assert await provider.await_close() - left < PROMPT
                await until_idle(gateway)
                await until_some(ends)
                [end] = ends
                assert (end.status, end.reason) == ("interrupted", "disconnect")
                assert end.detail == "the client closed the connection"
                assert len(provider.requests) == 1  # it was not tried again

    run()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@looped
async def test_leaving_a_stream_of_the_sdk_stops_the_turn() -> None:
    """The client reads a chunk or two, and closes the stream: the provider sees that it may stop."""
    with FakeProvider(slow_stream(0.005)) as provider:
        async with openai_gateway(agents=agent_of(provider)) as (gateway, client, _):
            async with await client.chat.completions.create(model="halter", messages=HELLO, stream=True) as stream:
                async for chunk in stream:
                    if chunk.choices[0].delta.content:
                        break
            left = time.monotonic()
            assert await provider.await_close() - left < PROMPT
            await until_idle(gateway)


@pytest.mark.parametrize("streams", [True, False])
def test_processes_of_tools_are_dead_when_the_client_has_left(streams: bool, tmp_path: Path) -> None:
    """A tool runs a process, and that has started another: neither outlives the connection for long."""
    note = tmp_path / "pids"

    @tool
    async def work() -> str:
        """Work."""
        await run_process(["sh", "-c", f"sleep 300 & echo $$ $! > {note}.new; mv {note}.new {note}; wait"])
        return "done"

    @looped
    async def run() -> None:
        with FakeProvider(tool_calls([ToolCall("c1", "work", "{}")])) as provider:
            async with openai_gateway(agents=agent_of(provider, work)) as (gateway, client, _):
                asking = asyncio.create_task(read(client, streams=streams))

                async def has_begun() -> bool:
                    return note.exists()

                await until(has_begun)
                pids = [int(each) for each in note.read_text().split()]
                assert all(is_alive(pid) for pid in pids)
                asking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asking
                await until_idle(gateway)

                async def are_dead() -> bool:
                    return not any(is_alive(pid) for pid in pids)

                await until(are_dead, 5)
            assert len(provider.requests) == 1  # nobody was told of a result

    run()


async def read(client: AsyncOpenAI, *, streams: bool) -> None:
    if streams:
        async with await client.chat.completions.create(model="halter", messages=HELLO, stream=True) as stream:
            async for _ in stream:
                pass
    else:
        await client.chat.completions.create(model="halter", messages=HELLO)


def test_a_client_that_leaves_before_its_turn_begins_starts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection was closed while the gateway opened the session: the turn ends before the model is asked."""
    model = ScriptedModel("Never.")
    open_session = Agent.session

    @looped
    async def run() -> None:
        async with gateway_of(model=model) as (gateway, _):
            loop = asyncio.get_running_loop()

            async def is_lost() -> bool:
                return not len(gateway._connections)

            async def leave() -> None:
                writer.transport.abort()
                await until(is_lost)

            def session(*given: Any, **options: Any) -> Session:  # in a thread, after the request has been read
                asyncio.run_coroutine_threadsafe(leave(), loop).result(10)
                return open_session(*given, **options)

            monkeypatch.setattr(Agent, "session", session)
            ends = ends_of(gateway, monkeypatch)
            _, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
            body = json.dumps(BODIES["/v1/chat/completions"])
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {OWN}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write((head + body).encode())

            await until_some(ends)
            assert (ends[0].status, ends[0].reason) == ("interrupted", "disconnect")

    run()
    assert not model.requests


@looped
async def test_a_stop_of_everything_stops_completions() -> None:
    """It counts them; their clients get an error, and do not try again."""
    gates = [Gate() for _ in range(3)]
    script: list[Any] = [["One, ", gate] for gate in gates]
    model = ScriptedModel(*script)
    async with gateway_of(model=model) as (gateway, own), openai_client(gateway, retries=3) as client:
        whole = asyncio.create_task(client.chat.completions.create(model="halter", messages=HELLO))
        await gates[0].await_reached()
        stream = await client.chat.completions.create(model="halter", messages=HELLO, stream=True)
        await gates[1].await_reached()
        response = await client.responses.create(model="halter", input="Hello.", stream=True)
        await gates[2].await_reached()
        stopped = await own.ask("POST", "/v1/stop", {"reason": "fire", "wait": True})
        assert stopped.body == {"stopped": 3, "finished": 3}
        with pytest.raises(InternalServerError, match=r"the turn was stopped \(fire: gateway key") as error:
            await whole
        assert (error.value.status_code, error.value.code) == (503, "turn_stopped")
        with pytest.raises(APIError, match="fire"):
            [chunk async for chunk in stream]
        last = [event async for event in response][-1]
        assert isinstance(last, ResponseFailedEvent)
        assert last.response.error is not None
        assert "fire" in last.response.error.message
        assert len(model.requests) == 3
        assert [seen.state for seen in model.streams] == ["cancelled"] * 3


@pytest.mark.parametrize("patience", [0.0, 20.0])
@looped
async def test_the_end_of_the_gateway_waits_for_completions_or_stops_them(patience: float) -> None:
    """With patience they are answered; without, they are stopped, and their clients are told why."""
    gate = Gate()
    model = ScriptedModel(["One, ", gate, "two."])
    async with gateway_of(model=model) as (gateway, _), openai_client(gateway) as client:
        stream = await client.chat.completions.create(model="halter", messages=HELLO, stream=True)
        await gate.await_reached()
        began = time.monotonic()
        stopping = asyncio.create_task(gateway.stop(patience))
        await asyncio.sleep(0)
        with pytest.raises(InternalServerError) as refused:
            await client.chat.completions.create(model="halter", messages=HELLO)
        assert (refused.value.status_code, refused.value.code) == (503, "draining")
        if patience:
            gate.open()
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "One, two."
        else:
            with pytest.raises(APIError, match="the gateway is shutting down"):
                [chunk async for chunk in stream]
        assert await stopping == (0 if patience else 1)
        assert time.monotonic() - began < 10


@looped
async def test_other_clients_go_on_when_one_leaves() -> None:
    """Only the turn of the lost connection is stopped; neither another completion nor a session."""
    gates = [Gate() for _ in range(3)]
    script: list[Any] = [[f"{number}, ", gate, "done."] for number, gate in enumerate(gates)]
    model = ScriptedModel(*script)
    async with openai_gateway(model=model) as (gateway, client, own):
        await own.create()
        await own.post("Hello.")
        await gates[0].await_reached()
        staying = asyncio.create_task(client.chat.completions.create(model="halter", messages=HELLO))
        await gates[1].await_reached()
        async with aiohttp.ClientSession(gateway.url, headers={"Authorization": f"Bearer {OWN}"}) as http:
            body = BODIES["/v1/chat/completions"]
            leaving = asyncio.create_task(http.post("/v1/chat/completions", json=body))
            await gates[2].await_reached()
            leaving.cancel()

            async def is_stopped() -> bool:
                return model.streams[2].state == "cancelled"

            await until(is_stopped)
        for gate in gates:
            gate.open()
        assert (await staying).choices[0].message.content == "1, done."
        assert (await own.finished())[-1]["data"]["status"] == "done"
