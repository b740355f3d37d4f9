"""Turns as a stream of events, and turn after turn as messages arrive."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import TYPE_CHECKING, Final

from halter.cancel.context import current_token
from halter.cancel.loop_bridge import run_in_thread
from halter.cancel.token import CancellationToken
from halter.errors import LeaseLost, NothingToDo, SessionClosed, StoreError
from halter.events import Missed
from halter.models.backoff import Backoff
from halter.session import background_loop
from halter.session.running import run_turn
from halter.session.subscription import with_missed
from halter.session.turn_writer import seal_open_turn
from halter.stores.refusals import lease_lost

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from halter.events import Event
    from halter.session.inbox import Content
    from halter.session.log import Transaction
    from halter.session.session import Session
    from halter.session.turn import Turn

__all__ = ["serve", "stream", "stream_sync"]

_log = logging.getLogger(__name__)
_BACKOFF: Final = Backoff(base=0.1)
_NO_READER: Final = "nobody reads its events"


async def stream(session: Session, text: Content | None) -> AsyncGenerator[Event, None]:
    """Run one turn, and yield its events as they become durable. Leaving early stops the turn."""
    with session.subscribe() as subscription:
        task = asyncio.ensure_future(run_turn(session, text))
        task.add_done_callback(lambda _: subscription.end())
        try:
            async for event in subscription:
                if isinstance(event.data, Missed):
                    for each in await run_in_thread(functools.partial(with_missed, session, event)):
                        yield each
                else:
                    yield event
            await task
        finally:
            await _stop_unread(session, task)


def stream_sync(session: Session, text: Content | None) -> Generator[Event, None, None]:
    """Run one turn on Halter's own event loop, and yield its events to this thread. Leaving early stops the turn."""
    caller = current_token().child("stream_sync")
    events = session.stream(text)
    lock = asyncio.Lock()  # a step whose caller was interrupted may still run: the close waits for it

    def leave(exc: BaseException) -> None:
        caller.cancel("interrupt", detail=type(exc).__name__)

    async def step() -> Event | None:
        async with lock:
            return await anext(events, None)

    async def close() -> None:
        async with lock:
            await events.aclose()

    try:
        while True:
            with caller.bind():  # not across the yield: it is the caller's context
                event = background_loop.run(step, leave)
            if event is None:
                return
            yield event
    finally:
        background_loop.run(close, leave)


async def _stop_unread(session: Session, task: asyncio.Task[Turn]) -> None:
    """Stop a turn whose events nobody reads any more, and wait for its end."""
    if not task.done() and not session.interrupt(reason="disconnect", detail=_NO_READER, by="stream()").stopped:
        # It has not begun; or it was stopped before, or is about to end, and then this changes nothing in how it ends.
        task.cancel()
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as exc:  # a stopped turn ends soon, so it is not left behind
            cancellation = exc
            task.cancel()
    if not task.cancelled():
        task.exception()  # retrieved, or asyncio would log that nobody did
    if cancellation is not None:
        raise cancellation


async def serve(session: Session) -> None:
    """Run turns until the session is closed. A store that fails is tried again, with back-off."""
    failures = 0
    while await _has_work(session):
        try:
            if _has_open_turn(session):
                await session._log.run_async(_seal)
            else:
                await run_turn(session, may_continue=False)
        except NothingToDo:
            continue  # the messages were held or removed meanwhile
        except SessionClosed:
            return
        except LeaseLost:
            raise  # another process has taken the session: there is nothing to try again
        except StoreError as error:
            delay = _BACKOFF.delay(failures)
            failures += 1
            _log.warning("session %s: the store failed; trying again in %.1f s: %s", session.id, delay, error)
            await CancellationToken.any_of(session.token, CancellationToken(timeout=delay)).wait_async()
        else:
            failures = 0
    if session.token.reason == "lease_lost":  # found by the store's own clock, before any write was refused
        raise lease_lost(session._log.lease)


async def _has_work(session: Session) -> bool:
    """Wait for a message that may be applied, or a turn to seal; False when the session is closed."""
    while not session.token.is_cancelled:
        changed = session._log.watch()
        if session.inbox.ready() or _has_open_turn(session):
            return True
        await changed.wait_async(token=session.token)
    return False


def _has_open_turn(session: Session) -> bool:
    """Whether the end of a turn could not be written: nothing runs, and in the log the turn is open."""
    return session._log.view.history.turn is not None and not session.is_running


def _seal(tx: Transaction) -> None:
    if tx.running is None:
        seal_open_turn(tx, "crash", "its end could not be written")
