"""Work that stops when its client disconnects, with real FastAPI under real uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from halter import Agent, Turn
from halter.asgi import stop_on_disconnect
from halter.testing import Gate, ScriptedModel
from tests.support.looped import looped

AT_MOST = aiohttp.ClientTimeout(total=15)


@contextlib.asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[str]:
    """The app under uvicorn, in this loop."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment,method-assign]  # signals are pytest's
    task = asyncio.create_task(server.serve([listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await asyncio.wait_for(task, 15)


class Asked:
    """An app whose model waits at a gate, and the turns that have ended."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.turns: asyncio.Queue[Turn] = asyncio.Queue()
        self.app = FastAPI()
        self.agent = Agent(ScriptedModel(["One ", self.gate, "two."]))
        self.app.post("/ask")(self.ask)
        self.app.get("/stream")(self.stream)

    async def ask(self, question: dict[str, str], request: Request) -> dict[str, str]:
        async with stop_on_disconnect(request):
            turn = await self.agent.session().arun(question["text"])
        self.turns.put_nowait(turn)
        return {"answer": turn.text}

    async def stream(self, request: Request) -> StreamingResponse:
        session = self.agent.session()

        async def events() -> AsyncIterator[str]:
            try:
                async with stop_on_disconnect(request.receive):
                    async for event in session.stream("Hi."):
                        if event.kind == "text.delta":
                            yield "delta\n"
            finally:  # Starlette cancels it at a disconnect, or leaves it alone: that depends on the server
                assert session.turn is not None
                self.turns.put_nowait(session.turn)

        return StreamingResponse(events(), media_type="text/plain")

    async def ended(self) -> Turn:
        return await asyncio.wait_for(self.turns.get(), 15)


@looped
async def test_a_client_that_stays_gets_its_answer() -> None:
    """The handler's body was read before, and the turn is done."""
    asked = Asked()
    asked.gate.open()
    async with served(asked.app) as url, aiohttp.ClientSession(url, timeout=AT_MOST) as http:
        async with http.post("/ask", json={"text": "Hi."}) as response:
            assert await response.json() == {"answer": "One two."}
    assert (await asked.ended()).status == "done"


@looped
async def test_a_client_that_goes_away_stops_the_turn() -> None:
    """The turn ends with the reason "disconnect", and its text so far is kept."""
    asked = Asked()
    async with served(asked.app) as url:
        async with aiohttp.ClientSession(url, timeout=AT_MOST) as http:
            request = asyncio.create_task(http.post("/ask", json={"text": "Hi."}))
            await asyncio.to_thread(asked.gate.wait_reached)
            request.cancel()
            await asyncio.wait({request})
        turn = await asked.ended()
    assert (turn.status, turn.reason, turn.text) == ("interrupted", "disconnect", "One ")


@looped
async def test_a_reader_of_a_stream_that_goes_away_stops_the_turn() -> None:
    """The same for a response that is sent piece by piece, with ASGI's `receive` given."""
    asked = Asked()
    async with served(asked.app) as url:
        async with aiohttp.ClientSession(url, timeout=AT_MOST) as http:
            async with http.get("/stream") as response:
                assert await response.content.readline() == b"delta\n"
        turn = await asked.ended()
    assert (turn.status, turn.reason) == ("interrupted", "disconnect")


@looped
async def test_a_client_that_was_gone_before_the_turn_stops_it_too() -> None:
    """A disconnect is not lost because nothing was running yet."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async with stop_on_disconnect(receive) as token:
        await asyncio.wait_for(token.wait_async(), 15)
        turn = await Agent(ScriptedModel("Never.")).session().arun("Hi.")
    assert (turn.status, turn.reason, turn.text) == ("interrupted", "disconnect", "")


@looped
async def test_what_the_server_raises_is_logged_and_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The turn goes on: only a disconnect stops it."""
    failed = asyncio.Event()

    async def receive() -> dict[str, Any]:
        failed.set()
        raise RuntimeError("closed")

    async with stop_on_disconnect(receive):
        await failed.wait()
        turn = await Agent(ScriptedModel("Done.")).session().arun("Hi.")
    assert turn.status == "done"
    assert "cannot tell whether the client has disconnected" in caplog.text
