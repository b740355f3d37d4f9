"""`compact()`: a compaction between two turns, under a token of its own that `stop()` and `close()` cancel."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from halter.cancel.context import current_token
from halter.cancel.token import NEVER, CancellationToken, Cancelled
from halter.session.compactor import Compactor
from halter.session.turn import Turn
from halter.session.turn_control import TurnControl

if TYPE_CHECKING:
    from halter.events import ContextCompacted, SummaryDiscarded
    from halter.session.history_view import HistoryView
    from halter.session.log import Transaction
    from halter.session.session import Session

__all__ = ["compact"]


async def compact(session: Session) -> ContextCompacted | None:
    """Compact a session in which no turn is running; None if there was nothing to do, or it was stopped.

    The caller has the permit to run turns.
    """
    log, outer = session._log, current_token()
    above = session.token if outer is NEVER else CancellationToken.any_of(session.token, outer)
    token = above.child("compaction")
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
