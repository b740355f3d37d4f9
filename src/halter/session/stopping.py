"""Stops and rollbacks: what a caller does at once, and what the store's writer decides.

A stop cancels the turn's token in the calling thread and waits for nobody. What it changes in the log, such as the hold
of the inbox, is a command like any other. A signal handler may call `interrupt()` and make a `TurnStop`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from halter.errors import SessionClosed, StoreError
from halter.events import MessageHeld, TurnRolledBack
from halter.session.inbox import Receipt

if TYPE_CHECKING:
    from halter.session.history import History
    from halter.session.history_view import HistoryView
    from halter.session.log import EventLog, Transaction
    from halter.session.session import Session
    from halter.session.turn_control import TurnControl

__all__ = ["TurnStop", "interrupt", "is_last", "not_last", "roll_back", "roll_back_last", "roll_back_running"]


class TurnStop:
    """A stop of the running turn.

    The turn is stopped as soon as this object exists; `wait()` says whether the inbox could be held.
    """

    __slots__ = ("_control", "_hold", "_log", "_stopped")

    def __init__(self, session: Session, when: str, scope: str, reason: str, detail: str, said_in: str) -> None:
        if when not in ("now", "step"):
            raise ValueError(f'when must be "now" or "step", not {when!r}')
        if scope not in ("turn", "all"):
            raise ValueError(f'scope must be "turn" or "all", not {scope!r}')
        log = self._log = session._log
        # Queued before the turn can end: otherwise a waiting message could start the next turn first.
        hold = log.writer.add(log.command(lambda tx: _hold(tx, said_in)))
        control = self._control = log.control
        self._stopped = False
        if control is not None and when == "step":
            control.pause_requested = True
            self._stopped = not control.is_over and not control.turn.token.is_cancelled
        elif control is not None:
            self._stopped = control.cancel(reason, detail=detail, by="stop()")
        if said_in:
            log.note_stopped_by(said_in, self._stopped)
        if scope == "all":
            session._resources.stop_all()
        self._hold = hold if session.inbox else None  # what to wait for

    def wait(self) -> Receipt:
        """Block until the hold is durable."""
        failure: StoreError | SessionClosed | None = None
        try:
            if self._hold is not None:
                self._log.wait(self._hold, in_handler=0)
        except (StoreError, SessionClosed) as error:  # the turn is stopped all the same
            failure = error
        return _receipt(self._log, "stop", self._control, stopped=self._stopped, error=failure)

    async def wait_async(self) -> Receipt:
        """Wait as `wait()` does, without blocking the event loop."""
        failure: StoreError | SessionClosed | None = None
        try:
            if self._hold is not None:
                await self._hold.wait_async()
                self._hold.outcome()
        except (StoreError, SessionClosed) as error:
            failure = error
        return _receipt(self._log, "stop", self._control, stopped=self._stopped, error=failure)


def interrupt(session: Session, reason: str, detail: str, by: str) -> Receipt:
    """Stop the running turn, and hold nothing."""
    control = session._log.control
    stopped = control is not None and control.cancel(reason, detail=detail, by=by)
    return _receipt(session._log, "interrupt", control, stopped=stopped)


def roll_back(session: Session, expect_turn: str | None) -> Receipt:
    """Take the running turn, or if there is none the last one, out of the history."""
    log = session._log
    control = log.running
    if control is not None and expect_turn not in (None, control.turn.id):
        return Receipt(log, "", "rollback", not_last(expect_turn), stopped=False, turn=None)
    stopped = control is not None and control.cancel("rollback", by="rollback()")
    begun: list[TurnControl] = []  # a turn that began meanwhile, and was stopped by this call

    def decide(tx: Transaction) -> bool:
        running = tx.running
        if stopped and control is not None and tx.history.was_rolled_back(control.turn.id):
            return True  # the turn has ended since it was cancelled, and its seal took it out
        if not is_last(tx.history, expect_turn):
            return False
        if control is None and running is not None:
            tx.after_commit(lambda: begun.append(running) if running.cancel("rollback", by="rollback()") else None)
        return _roll_back(tx, control or running)

    is_done = log.wait(log.submit(decide), in_handler=True)
    turn = control.turn if control is not None else begun[0].turn if begun else None
    note = "" if is_done else not_last(expect_turn)
    return Receipt(log, "", "rollback", note, stopped=stopped or bool(begun), turn=turn)


def roll_back_running(log: EventLog, control: TurnControl, by: str) -> bool:
    """Stop a turn and take it out of the history, without waiting; True if this call stopped it."""
    stopped = control.cancel("rollback", by=by)
    log.submit(lambda tx: _roll_back(tx, control))
    return stopped


def is_last(history: History | HistoryView, turn: str | None) -> bool:
    """Whether a turn is running, or is the last one if none is; True if no turn is named."""
    last = history.turn or history.last
    return turn is None or (last is not None and last.id == turn)


def not_last(turn: str | None) -> str:
    """Why nothing was rolled back."""
    return "there is no turn to roll back" if turn is None else f"turn {turn} is not the last one any more"


def _receipt(
    log: EventLog,
    mode: Literal["stop", "interrupt"],
    control: TurnControl | None,
    *,
    stopped: bool,
    error: StoreError | SessionClosed | None = None,
) -> Receipt:
    note = ""
    if error is not None:
        note = f"queued messages could not be held: {error}"
    elif control is None:
        note = "no turn was running"
    elif not stopped:
        note = "the turn had been stopped before, or was over"
    turn = control.turn if control is not None else None
    return Receipt(log, "", mode, note, stopped=stopped, turn=turn, error=error)


# -- decisions of the writer -----------------------------------------------------------------------------------------


def _hold(tx: Transaction, up_to: str) -> int:
    """Hold the waiting messages, or those up to message *up_to*; returns how many."""
    last = tx.inbox.find(up_to) if up_to else None
    held = [
        MessageHeld(each.id)
        for each in tx.inbox
        if each.state == "accepted" and (last is None or each.number <= last.number)
    ]
    if held:
        tx.write("", *held)
    return len(held)


def _roll_back(tx: Transaction, control: TurnControl | None) -> bool:
    """Roll a turn back: a running one when it is sealed, another now; by default the last. False if there is none."""
    if control is not None and tx.history.is_open(control.turn.id):
        control.rollback_requested = True  # its seal is decided after this command
        return True
    return roll_back_last(tx, control.turn.id if control is not None else "")


def roll_back_last(tx: Transaction, turn: str = "") -> bool:
    """Take the last turn out of the history, with *turn* only if it is that one; False if it was not done."""
    last = tx.history.last
    if last is None or tx.history.turn is not None or (turn and last.id != turn):
        return False
    tx.write(last.id, TurnRolledBack())
    return True
