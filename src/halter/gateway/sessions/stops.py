"""Stops that clients ask for: of a turn, of a call, of every session, and those that were recorded for this node."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Literal

from halter.errors import LeaseLost, SessionClosed
from halter.gateway.http.errors import Problem
from halter.gateway.http.schemas import ReceiptView, StoppedView, view_receipt

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from halter.errors import StoreError
    from halter.gateway.cluster.stop_records import StopRecord
    from halter.gateway.http.keys import Key
    from halter.gateway.http.schemas import StopAllBody, StopBody
    from halter.gateway.sessions.live_session import LiveSession
    from halter.gateway.sessions.registry import SessionRegistry
    from halter.session.inbox import Receipt
    from halter.session.session import Session
    from halter.session.turn import Turn

__all__ = ["Stops"]

_MIN_WAIT: Final = 0.03  # seconds
_MAX_STOPS: Final = 10_000  # that are recognized if they are repeated


class Stops:
    """Stops sessions. A stop that is sent again with the same id is carried out once."""

    def __init__(self, registry: SessionRegistry) -> None:
        self._registry = registry
        self._receipts: dict[str, ReceiptView] = {}  # of the last stops that had an id

    async def stop(self, live: LiveSession, key: Key, body: StopBody, stop_id: str = "") -> ReceiptView:
        """Stop a turn or a call; not an error if it is not running. The same *stop_id* stops once."""
        if stop_id and stop_id in self._receipts:
            return self._receipts[stop_id]
        if stop_id:
            self._receipts[stop_id] = _unstopped(live.session.id, "this stop is being carried out")
            if len(self._receipts) > _MAX_STOPS:
                del self._receipts[next(iter(self._receipts))]
        try:
            receipt = await self._stop(live, key, body)
        except BaseException:
            self._receipts.pop(stop_id, None)  # it was not done as a whole: the same stop may be sent again
            raise
        if stop_id:
            self._receipts[stop_id] = receipt
        return receipt

    async def _stop(self, live: LiveSession, key: Key, body: StopBody) -> ReceiptView:
        session = live.session
        if (body.scope == "call") != (body.call_id is not None):
            raise Problem(
                422, 'call_id is required with scope "call", and allowed only there', field="call_id", kind="field"
            )
        turn = session.turn if session.is_running else None
        if body.expect_turn is not None and (turn is None or turn.id != body.expect_turn):
            return _unstopped(session.id, f"turn {body.expect_turn} is not running")
        if body.call_id is not None:
            stopped = session.cancel_call(body.call_id, body.reason)
            note = "" if stopped else "there is no such call, or it has ended"
            return _stopped(session.id, turn, note, stopped=stopped)
        scope: Literal["all", "turn"] = "all" if body.scope == "all" else "turn"
        receipt = await session.astop(scope=scope, reason=body.reason, detail=key.title)
        if isinstance(receipt.error, (LeaseLost, SessionClosed)):
            raise receipt.error  # the stop is for the next owner of the session
        if receipt.error is not None:
            raise _unheld(receipt.error) from receipt.error
        if turn is not None:
            await _wait_for_end([turn], body.patience)
        return view_receipt(session.id, receipt, finished=turn is not None and turn.ended.is_set)

    async def stop_recorded(self, live: LiveSession, record: StopRecord) -> None:
        """Carry out a stop that was recorded when the log ended with `record.last`.

        Messages accepted until then are held. A running turn that has one of them is stopped, even if it began later:
        it may have been starting when the stop was recorded. Raises an error of the store if messages could not be
        held: the record has to be kept then.
        """
        if record.id in self._receipts:
            return
        session = live.session
        self._receipts[record.id] = _unstopped(session.id, "this stop was recorded")
        try:
            await self._stop_as_recorded(session, record)
        except BaseException:
            self._receipts.pop(record.id, None)
            raise

    async def _stop_as_recorded(self, session: Session, record: StopRecord) -> None:
        if record.turn and (session.turn is None or session.turn.id != record.turn):
            return
        turn = session.turn if session.is_running else None
        if turn is not None and all(each.number > record.last for each in session.inbox.applied_in(turn.id)):
            return
        earlier = [each.id for each in session.inbox if each.number <= record.last]
        if earlier or not len(session.inbox):
            said_in = earlier[-1] if earlier else ""
            receipt = await session.astop(
                scope=record.scope, reason=record.reason, detail=record.detail, said_in=said_in
            )
            if receipt.error is not None:
                raise receipt.error
        else:  # all queued messages came later
            session.interrupt(reason=record.reason, detail=record.detail, by="a recorded stop")

    async def stop_all(self, key: Key, body: StopAllBody) -> StoppedView:
        """Stop every session. Messages queued in unloaded sessions wait until a client opens the session."""
        self._registry.resumption.cancel()
        turns = self._registry.transient.stop(body.reason, key.title, "stop()")
        loaded, errors = await self._stop_loaded(key, body)
        turns += loaded
        if await self._registry.loaded():
            loaded, of_loaded = await self._stop_loaded(key, body)
            turns += loaded
            errors += of_loaded
        if errors:
            raise _unheld(errors[0]) from errors[0]
        await _wait_for_end(turns, body.patience)
        return StoppedView(stopped=len(turns), finished=sum(turn.ended.is_set for turn in turns))

    async def _stop_loaded(self, key: Key, body: StopAllBody) -> tuple[list[Turn], list[StoreError | SessionClosed]]:
        """Stop the loaded sessions; returns the stopped turns, and the errors of those that could not hold messages."""
        stops: list[tuple[Turn | None, Coroutine[Any, Any, Receipt]]] = []
        for live in list(self._registry.live_sessions.values()):
            session = live.session
            if live.is_busy or (body.scope == "all" and session.has_resources):
                stops.append((session.turn, session.astop(scope=body.scope, reason=body.reason, detail=key.title)))
        receipts = [(turn, await held) for turn, held in stops]
        turns = [turn for turn, receipt in receipts if receipt.stopped and turn is not None]
        return turns, [receipt.error for _, receipt in receipts if receipt.error is not None]


async def _wait_for_end(turns: list[Turn], seconds: float) -> None:
    """Wait for turns to end, at least `_MIN_WAIT`, which is usually enough."""
    until = time.monotonic() + max(seconds, _MIN_WAIT)
    for turn in turns:
        await turn.ended.wait_async(max(until - time.monotonic(), 0.0))


def _unheld(error: StoreError | SessionClosed) -> Problem:
    """The problem of a stop that could not hold queued messages. They would run later, so it is not acknowledged."""
    msg = f"what was running is stopped, but queued messages could not be held: send the stop again ({error})"
    return Problem(503, msg, kind="store", retry_after=1.0)


def _unstopped(session_id: str, note: str) -> ReceiptView:
    return _stopped(session_id, None, note, stopped=False)


def _stopped(session_id: str, turn: Turn | None, note: str, *, stopped: bool) -> ReceiptView:
    turn_id = turn.id if turn is not None else ""
    return ReceiptView(
        session=session_id, id="", state="applied", mode="stop", turn_id=turn_id, stopped=stopped, note=note
    )
