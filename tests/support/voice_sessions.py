"""What the tests of voice messages share: a session that answers, and waiting for what it says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from halter import Session
from halter.voice.voice_messages import echo
from tests.support.sessions import agent_of, data_of, next_event


@contextlib.asynccontextmanager
async def serving(*script: Any, store: Any = None, tools: Any = ()) -> AsyncIterator[Session]:
    """A session that answers what comes."""
    session = agent_of(*script, tools=tools).session(None, store)
    task = asyncio.ensure_future(session.serve())
    try:
        yield session
    finally:
        await session.aclose()
        await task


async def until(session: Session, kind: str, is_it: Callable[[Any], bool] = lambda _: True) -> Any:
    """Wait for an event that has come already, or comes; gives what it says."""
    with session.subscribe() as listener:
        for event in session.events():
            if event.kind == kind and is_it(event.data):
                return event.data
        while True:
            event = await next_event(listener, kind)
            if is_it(event.data):
                return event.data


async def heard(session: Session, message: str) -> Any:
    """Wait until a recording has its words."""
    return await until(session, "message.edited", lambda data: data.id == message)


async def done(session: Session) -> Any:
    """Wait until a turn has come to its own end."""
    return await until(session, "turn.finished", lambda data: data.status == "done")


def echoes(session: Session) -> list[str]:
    """What people were shown of recordings."""
    return [shown for data in data_of(session, "message.edited") if (shown := echo(data))]
