"""Stopping work when the client has disconnected, under ASGI servers and frameworks such as uvicorn and FastAPI.

    @app.post("/ask")
    async def ask(question: str, request: Request) -> dict[str, str]:
        async with stop_on_disconnect(request):
            turn = await agent.session().arun(question)
        return {"answer": turn.text}

These servers do not cancel the handler of a client that goes away: without this the turn runs to its end for nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from halter.cancel.context import current_token

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping

    from halter.cancel.token import CancellationToken

    Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]

__all__ = ["stop_on_disconnect"]

_log = logging.getLogger(__name__)


@runtime_checkable
class HasReceive(Protocol):
    """A request that has ASGI's `receive`, as those of Starlette and FastAPI do."""

    @property
    def receive(self) -> Receive:
        """Wait for the next message of the client."""
        ...


@contextlib.asynccontextmanager
async def stop_on_disconnect(request: HasReceive | Receive) -> AsyncGenerator[CancellationToken, None]:
    """Stop the turns that run in the block when the client disconnects. They end with the reason "disconnect".

    *request* is a request, or ASGI's `receive` itself. Its body has to be read before: what comes meanwhile is dropped.
    Yields the block's token, for other work than turns.
    """
    receive: Receive = request.receive if isinstance(request, HasReceive) else request
    token = current_token().child("client")
    watching = asyncio.create_task(_watch(receive, token))
    try:
        with token.bind():
            yield token
    finally:
        watching.cancel()
        await asyncio.wait({watching})


async def _watch(receive: Receive, token: CancellationToken) -> None:
    """Cancel *token* once the client has disconnected. A boundary: what a server raises is logged."""
    try:
        while (await receive())["type"] not in ("http.disconnect", "websocket.disconnect"):
            pass
    except Exception:  # noqa: BLE001
        _log.exception("cannot tell whether the client has disconnected")
    else:
        token.cancel("disconnect", detail="the client has disconnected")
