"""Requests to the servers: one, and one that is made again while they do not answer."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final, TypeVar

import nats.errors

from halter.stores.nats.streams import StreamRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from nats.aio.client import Client

__all__ = ["ANSWER_SECONDS", "ask", "retry_unanswered"]

T = TypeVar("T")
ANSWER_SECONDS: Final = 2.0  # for one request
_PAUSE: Final = 0.1  # seconds between two tries


async def ask(client: Client, subject: str, body: dict[str, Any]) -> dict[str, Any]:
    """Ask JetStream something. Raises `StreamRefused`, or an error of `nats`."""
    message = await client.request(subject, json.dumps(body).encode() if body else b"", ANSWER_SECONDS)
    answer: dict[str, Any] = json.loads(message.data)
    error = answer.get("error")
    if error is not None:
        raise StreamRefused(error["description"], error.get("err_code", 0))
    return answer


async def retry_unanswered(make: Callable[[], Coroutine[Any, Any, T]], patience: float) -> T:
    """Try something again while NATS does not answer, for *patience* seconds."""
    loop = asyncio.get_running_loop()
    until = loop.time() + patience
    while True:
        try:
            return await make()
        except (nats.errors.Error, OSError, StreamRefused) as error:
            if loop.time() > until or (isinstance(error, StreamRefused) and not error.is_temporary):
                raise
            await asyncio.sleep(_PAUSE)
