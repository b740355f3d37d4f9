"""Turns in views of Django, under real uvicorn: a client that goes away stops its turn, without any helper."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import aiohttp
import uvicorn
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, JsonResponse, StreamingHttpResponse
from django.urls import path

from halter import Agent, Session
from halter.models import TextDelta
from halter.testing import Gate, ScriptedModel
from tests.support.looped import looped

if not settings.configured:
    settings.configure(ROOT_URLCONF=__name__, SECRET_KEY="for tests", ALLOWED_HOSTS=["127.0.0.1"], LOGGING_CONFIG=None)

sessions: dict[str, Session] = {}


async def ask(_request: HttpRequest, user: str) -> JsonResponse:
    return JsonResponse({"text": (await sessions[user].arun("Hi.")).text})


async def stream(_request: HttpRequest, user: str) -> StreamingHttpResponse:
    async def answer() -> AsyncIterator[str]:
        async for event in sessions[user].stream("Hi."):
            if isinstance(event.data, TextDelta):
                yield event.data.text

    return StreamingHttpResponse(answer())


urlpatterns = [path("ask/<user>", ask), path("stream/<user>", stream)]


@contextlib.asynccontextmanager
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """A client of the views, which uvicorn serves in this loop."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(get_asgi_application(), log_level="error", lifespan="off"))
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment,method-assign]  # signals are pytest's
    task = asyncio.create_task(server.serve([listener]))
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{listener.getsockname()[1]}") as http:
            yield http
    finally:
        server.should_exit = True
        await asyncio.wait_for(task, 15)


@looped
async def test_a_client_that_leaves_a_view_stops_its_turn() -> None:
    """Django cancels the view, which seals the turn: reason `external`, with the words so far."""
    gate = Gate()
    async with client() as http, Agent(ScriptedModel(["One ", gate])).session() as session:
        sessions["anna"] = session
        asking = asyncio.create_task(http.get("/ask/anna").__aenter__())
        await gate.await_reached()
        asking.cancel()
        assert session.turn is not None
        assert await session.turn.ended.wait_async(15)
        assert (session.turn.status, session.turn.reason, session.turn.text) == ("interrupted", "external", "One ")


@looped
async def test_a_client_that_leaves_a_stream_stops_its_turn() -> None:
    """The same for a streaming response: reason `disconnect`."""
    gate = Gate()
    async with client() as http, Agent(ScriptedModel(["One ", gate])).session() as session:
        sessions["ben"] = session
        async with http.get("/stream/ben") as response:
            assert await response.content.readexactly(4) == b"One "
            await gate.await_reached()
            response.close()
        assert session.turn is not None
        assert await session.turn.ended.wait_async(15)
        assert (session.turn.status, session.turn.reason) == ("interrupted", "disconnect")
