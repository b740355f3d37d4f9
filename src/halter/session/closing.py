"""Closing a session in bounded time: stop and seal the turn, close the resources, release the lease."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from halter.cancel.loop_bridge import running_loop
from halter.cancel.one_shot_event import OneShotEvent
from halter.errors import StoreError
from halter.session.turn_writer import seal_open_turn
from halter.stores.writer import writer_of

if TYPE_CHECKING:
    from halter.session.log import Transaction
    from halter.session.session import Session
    from halter.session.turn_control import TurnControl
    from halter.stores.base import Lease, Store

__all__ = ["aclose", "close", "submit_release"]


def close(session: Session, timeout: float) -> None:
    """Close a session; blocks for at most *timeout* seconds."""
    end = time.monotonic() + timeout
    control = _stop_work(session)
    can_wait = control is None or control.loop is not running_loop()
    try:
        if control is not None and can_wait:
            control.turn.ended.wait(timeout)
    except BaseException:
        end, can_wait = 0.0, False  # interrupted: no more waiting, and the turn releases the lease when it ends
        raise
    finally:
        try:
            session._resources.close(max(end - time.monotonic(), 0.0))
            session._files.close(max(end - time.monotonic(), 0.0))
        finally:
            done = _seal_and_release(session, control, by_force=can_wait)
    if done is not None and not session._log.writer.is_interrupted_here:
        done.wait(max(end - time.monotonic(), 0.0))


async def aclose(session: Session, timeout: float) -> None:  # noqa: ASYNC109  (as its twin)
    """Close a session; waits for at most *timeout* seconds, without blocking the loop."""
    end = time.monotonic() + timeout
    control = _stop_work(session)
    can_wait = True
    try:
        if control is not None:
            await control.turn.ended.wait_async(timeout)
    except BaseException:
        end, can_wait = 0.0, False
        raise
    finally:
        try:
            await session._resources.aclose(max(end - time.monotonic(), 0.0))
            await session._files.aclose(max(end - time.monotonic(), 0.0))
        finally:
            done = _seal_and_release(session, control, by_force=can_wait)
    if done is not None:
        await done.wait_async(max(end - time.monotonic(), 0.0))


def _stop_work(session: Session) -> TurnControl | None:
    """Stop everything below the session; returns the running turn."""
    session._closed = True
    control = session._log.control
    if control is not None and control.turn.ended.is_set:
        control = None
    if control is not None:
        control.cancel("shutdown", detail="the session was closed", by="close()")
    session.token.cancel("shutdown", detail="the session was closed")
    return control


def _seal_and_release(session: Session, control: TurnControl | None, *, by_force: bool) -> OneShotEvent | None:
    """Release the lease after the last event; returns an event that is set when that is done.

    With *by_force*, a turn that has not ended in time is sealed here, and its later events are dropped. Without, the
    lease is released when the turn ends.
    """
    if control is not None and not by_force and not control.turn.ended.is_set:
        control.turn.ended.on_set(lambda: _seal_and_release(session, None, by_force=True))
        return None
    done = OneShotEvent()
    log, finalizer = session._log, session._release_lease

    def seal(tx: Transaction) -> None:
        seal_open_turn(tx, "shutdown", "the session was closed, and it did not end in time")
        tx.after_commit(log.close)

    def release() -> None:
        log.close()  # also when the seal could not be written
        if finalizer.detach() is not None:
            with contextlib.suppress(StoreError):
                log.store.release(log.lease)
        done.set()

    log.submit(seal)
    log.writer.submit(log.writer.job(release))
    return done


def submit_release(store: Store, leases: list[Lease]) -> None:
    """Submit the release of a lease. Does not wait, since the garbage collector may call this."""

    def release() -> None:  # runs after the job that acquires the lease, if that was submitted
        while leases:
            with contextlib.suppress(StoreError):
                store.release(leases.pop())

    writer = writer_of(store)
    writer.submit(writer.job(release))
