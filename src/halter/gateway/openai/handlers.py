"""The handlers of OpenAI's routes. The name of a route is that of the method here."""

from __future__ import annotations

import contextlib
import secrets
import time
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from aiohttp import web

from halter.cancel.loop_bridge import run_in_thread
from halter.gateway.http.errors import Problem
from halter.gateway.http.schemas import read_file
from halter.gateway.openai.chat_completions import ChatAnswer, read_chat
from halter.gateway.openai.chunk_stream import ChunkStream
from halter.gateway.openai.model_list import list_models
from halter.gateway.openai.responses import ResponseAnswer, read_response

if TYPE_CHECKING:
    from collections.abc import Callable

    from halter.gateway.openai.request_turns import RequestTurns
    from halter.gateway.openai.turn_request import TurnRequest
    from halter.gateway.sessions.registry import SessionRegistry

__all__ = ["OpenAIHandlers"]

_JSON: Final = "application/json"
_encode = msgspec.json.Encoder().encode
A = TypeVar("A", ChatAnswer, ResponseAnswer)


class OpenAIHandlers:
    """One method for each route."""

    def __init__(self, registry: SessionRegistry, turns: RequestTurns) -> None:
        self._registry = registry
        self._turns = turns
        self._started = int(time.time())

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        return await self._run(request, read_chat, "chatcmpl-", ChatAnswer)

    async def responses(self, request: web.Request) -> web.StreamResponse:
        return await self._run(request, read_response, "resp_", ResponseAnswer)

    async def models(self, _request: web.Request) -> web.Response:
        return _json(list_models(self._registry.agents, self._started))

    async def model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        found = [each for each in list_models(self._registry.agents, self._started).data if each.id == name]
        if not found:
            raise Problem(404, f"there is no agent {name!r}", field="model", kind="no-model")
        return _json(found[0])

    async def _run(
        self, request: web.Request, read: Callable[[bytes], TurnRequest], prefix: str, kind: type[A]
    ) -> web.StreamResponse:
        """Run the turn that a request asks for, and answer as it goes or at its end."""
        data = await read_file(request, _JSON, self._registry.limits)
        asked = await run_in_thread(lambda: read(data))  # in a thread: a body may be long
        name = f"{prefix}{secrets.token_hex(12)}"
        async with self._turns.run(request, asked, name) as turn:
            answer = kind(name, asked, last_only=turn.has_output_type)
            if asked.is_streamed:
                stream = ChunkStream(request)
                with contextlib.suppress(ConnectionError):  # the client has disconnected, which has stopped the turn
                    async with stream:
                        await answer.send(turn.events, stream)
                return stream.response
            return _json(await answer.collect(turn.events))


def _json(view: object) -> web.Response:
    return web.Response(body=_encode(view), content_type=_JSON)
