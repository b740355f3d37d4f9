"""`compact()`: a compaction between two turns, under a token of its own that `stop()` and `close()` cancel."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from halter.cancel.token import Cancelled
from halter.errors import SessionBusy
from halter.session.compaction.compactor import Compactor
from halter.session.running import caller_token, permit
from halter.session.turn import Turn
from halter.session.turn_control import TurnControl

if TYPE_CHECKING:
    from halter.events import ContextCompacted, SummaryDiscarded
    from halter.session.history_view import HistoryView
    from halter.session.log import Transaction
    from halter.session.session import Session

__all__ = ["compact"]


async def compact(session: Session) -> ContextCompacted | None:
    """Compact a session; None if there was nothing to do, it was stopped, or the next request will do it."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(permit(session))
        except SessionBusy:
            session._log.compaction_requested = True
            return None
        return await _compact(session)


async def _compact(session: Session) -> ContextCompacted | None:
    """Compact a session in which no turn is running; None if there was nothing to do, or it was stopped."""
    log = session._log
    token = caller_token(session).child("compaction")
    work = Turn("", token)  # never in the log: it is what a stop finds and waits for
    control = log.control = TurnControl(work, asyncio.get_running_loop())

    async def write(view: HistoryView, record: ContextCompacted) -> bool:
        def decide(tx: Transaction) -> bool:
            if token.is_cancelled or tx.history.turn is not None or not tx.history.is_same_context(view):
                return False
            tx.write("", record)
            return True

        return await log.run_async(decide)

    def write_discarded(event: SummaryDiscarded) -> None:
        log.submit(lambda tx: tx.write("", event))

    try:
        with token.bind():
            instructions = await session._instructions.get(token)
            return await Compactor(session.agent, instructions, log, write, write_discarded).compact(token)
    except Cancelled as stop:
        if not stop.belongs_to(token):
            raise
        return None
    finally:
        control.claim_end()
        work.ended.set()
        log.control = None
