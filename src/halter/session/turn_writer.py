"""Writes one turn into the log, from its start to its end. The only file that decides how a turn ends.

Every method submits one command; the store's writer makes the decisions, in the order of the commands. So each of these
is atomic: a turn begins with what is in the inbox at that moment; a step begins with the steers that have come, and a
later steer finds the new step; a turn ends unless a steer is waiting, and a later steer is for the next turn; a call
starts unless the turn was stopped before.

The first command after a stop writes `turn.stopping` before anything else. A turn that is sealed, by its own end or
from outside, takes no more events except the late ends of calls; all others are dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from halter.errors import NothingToDo, SessionClosed
from halter.events import (
    ApprovalAnswered,
    ApprovalAsked,
    MessageAccepted,
    MessageApplied,
    QuestionAnswered,
    QuestionAsked,
    RequestCancelled,
    RequestFinished,
    ToolCancelling,
    ToolFinished,
    ToolFinishedLate,
    ToolProgress,
    TurnFinished,
    TurnRolledBack,
    TurnStarted,
)
from halter.models.sanitize import clean_answer
from halter.session.text_pieces import TextPieces

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from halter.cancel.token import CancellationToken
    from halter.events import (
        ContextCompacted,
        Mode,
        OutputRejected,
        RequestRetry,
        RequestStarted,
        SummaryDiscarded,
        ToolEvent,
        ToolStarted,
        TurnStatus,
    )
    from halter.models.answer import Answer
    from halter.models.types import ReasoningDelta, TextDelta, Usage, UserMessage
    from halter.session.history_view import HistoryView
    from halter.session.inbox import InboxMessage
    from halter.session.log import EventLog, Transaction
    from halter.session.turn_control import TurnControl

__all__ = ["TurnEnd", "TurnWriter", "seal_open_turn", "withdrawal"]

_log = logging.getLogger(__name__)
_CALL_EVENTS: Final = frozenset({ToolFinished, ToolProgress, ToolCancelling})
R = TypeVar("R")


class TurnEnd(NamedTuple):
    """How a turn should end. With *unless_steered* it continues instead if a steer is waiting.

    *output* is the typed answer of a turn that is done.
    """

    status: TurnStatus
    reason: str = ""
    detail: str = ""
    error: BaseException | None = None
    unless_steered: bool = False
    output: Any = None


class TurnWriter:
    """Writes one turn. Used by the task that runs it; `write_tool_event()` may be called from any thread."""

    def __init__(
        self, log: EventLog, control: TurnControl, tools: Container[str], on_error: Callable[[Exception], object]
    ) -> None:
        """*on_error* is called, in any thread, if an event that nobody waits for could not be written."""
        self._log = log
        self._tools = tools
        self._control = control
        self._turn = control.turn
        self._on_error = on_error
        self._ended: RequestFinished | RequestCancelled | None = None  # written with the next command
        self._pieces: TextPieces | None = None

    # -- start -------------------------------------------------------------------------------------------------------

    async def begin(self, message: UserMessage | None, model: str, *, may_continue: bool) -> None:
        """Accept *message*, and begin the turn with all messages that are ready.

        Raises `NothingToDo` if there is no message, and no turn to continue. If this task is cancelled meanwhile, that
        is not raised here once the turn has begun: the turn must be sealed first.
        """
        turn = self._turn
        own = secrets.token_hex(8)

        def decide(tx: Transaction) -> None:
            seal_open_turn(tx, "crash", "its end could not be written")
            if message is not None:
                tx.write("", MessageAccepted(own, "queue", message))
            may_begin = {each.id for each in tx.inbox.ready()} | {own}  # its own message need not wait for others
            ready = [each for each in tx.inbox if each.id in may_begin]
            last = tx.history.last
            if not ready and not (may_continue and tx.history.can_continue):
                held = sum(each.state == "held" for each in tx.inbox)
                raise NothingToDo(
                    f"{held} messages are held: release() them" if held else "the inbox is empty: pass a text"
                )
            continues = last.id if not ready and last is not None else ""
            applied = [MessageApplied(each.id, _applied_mode(each), each.note) for each in ready]
            tx.write(turn.id, TurnStarted(model, continues), *applied)

        await self._outcome(decide)

    async def begin_step(self, step: CancellationToken) -> bool:
        """Begin the next step and apply the waiting steers; True if there were any."""
        control = self._control
        write_ended = self._take_ended()

        def decide(tx: Transaction) -> bool:
            write_ended(tx)
            control.step = step  # a later steer cancels this one
            steers = tx.inbox.ready(steers_only=True)
            if not steers or self._turn.token.is_cancelled:
                return False
            tx.write(self._turn.id, *(MessageApplied(each.id, "steer") for each in steers))
            return True

        has_steers = bool(await self._outcome(self._in_turn(decide)))
        self._show_usage()
        return has_steers

    def _show_usage(self) -> None:
        turn = self._log.view.history.turn
        if turn is not None and turn.id == self._turn.id:
            self._turn.usage = turn.usage

    # -- the request -------------------------------------------------------------------------------------------------

    def write_delta(self, delta: TextDelta | ReasoningDelta) -> None:
        """Write a piece of text. Nobody waits for it.

        While the writer is busy, further pieces are added to those that wait for it; many of them are written as one.
        So a provider that is faster than the store makes larger pieces, and not an ever longer queue.
        """
        pieces = self._pieces
        if pieces is None or pieces.kind is not type(delta):
            pieces = self._pieces = TextPieces(type(delta), self._turn.id)
        pieces.texts.append(delta.text)
        if not pieces.is_waiting:  # added, then looked: the writer does it the other way round
            pieces.is_waiting = True
            self._add(pieces.write)

    def write_request(self, event: RequestStarted | RequestRetry) -> None:
        """Record that an attempt begins or is retried, unless the turn was stopped before. Does not wait."""

        def decide(tx: Transaction) -> None:
            if not self._turn.token.is_cancelled:
                tx.write(self._turn.id, event)

        self._pieces = None  # what comes from here on is written behind this
        self._add(self._in_turn(decide))

    async def end_request(self, event: RequestFinished | RequestCancelled, answer: Answer) -> Answer:
        """Record the end of a request; returns the answer as it is in the log.

        An answer with calls is durable before any of them starts. Any other answer is written with the next command.
        """
        is_cut = isinstance(event, RequestCancelled) or event.status == "failed"
        if answer.calls and is_cut:
            # The calls of an answer that was cut off are never run, so they are not part of the message.
            answer = msgspec.structs.replace(answer, calls=[], unfinished=[*answer.calls, *answer.unfinished])
        if not answer.calls:
            answer = clean_answer(answer, ())
            self._ended = msgspec.structs.replace(event, answer=answer)
            return answer

        def decide(tx: Transaction) -> Answer:
            cleaned = clean_answer(answer, tx.history.call_ids, self._tools)
            tx.write(self._turn.id, msgspec.structs.replace(event, answer=cleaned))
            return cleaned

        cleaned = await self._outcome(self._in_turn(decide))
        self._show_usage()
        return cleaned or msgspec.structs.replace(answer, calls=[])

    async def reject_output(self, event: OutputRejected) -> None:
        """Record that an answer does not fit its type, unless the turn was stopped before."""
        write_ended = self._take_ended()

        def decide(tx: Transaction) -> None:
            write_ended(tx)
            if not self._turn.token.is_cancelled:
                tx.write(self._turn.id, event)

        await self._outcome(self._in_turn(decide))

    async def write_compaction(self, view: HistoryView, record: ContextCompacted) -> bool:
        """Record a compaction; False if it was stopped before, or the conversation is no longer that of *view*."""
        control = self._control
        write_ended = self._take_ended()

        def decide(tx: Transaction) -> bool:
            write_ended(tx)
            if control.step.is_cancelled or not tx.history.is_same_context(view):
                return False
            tx.write(self._turn.id, record)
            return True

        is_written = bool(await self._outcome(self._in_turn(decide)))
        self._show_usage()
        return is_written

    def write_discarded_summary(self, event: SummaryDiscarded) -> None:
        """Record what a summary has used that a stop or a steer has ended. Does not wait."""
        self._log.submit(self._in_turn(lambda tx: tx.write(self._turn.id, event)), self._on_error)

    # -- the calls ---------------------------------------------------------------------------------------------------

    async def start_call(self, event: ToolStarted) -> bool:
        """Record that a call starts; False if it must not, because the turn was stopped before."""

        def decide(tx: Transaction) -> bool:
            if self._turn.token.is_cancelled or not tx.history.is_open_call(event.call_id):
                return False
            tx.write(self._turn.id, event)
            return True

        return bool(await self._log.run_async(self._in_turn(decide)))

    def write_tool_event(self, event: ToolEvent) -> None:
        """Record an event of a call, from any thread, without waiting."""
        if type(event) is ToolFinishedLate:
            # Usually its turn is over by now, and the session may be closed.
            self._log.submit(lambda tx: tx.write(self._turn.id, event), self._on_late_error)
            return

        def decide(tx: Transaction) -> None:
            call = event.outcome.call_id if type(event) is ToolFinished else getattr(event, "call_id", "")
            if type(event) in _CALL_EVENTS and not tx.history.is_open_call(call):
                return  # too late: the call already has its result
            tx.write(self._turn.id, event)

        self._log.submit(self._in_turn(decide), self._on_error)

    def _on_late_error(self, error: Exception) -> None:
        _log.info("a call of turn %s ended late, and that could not be written: %s", self._turn.id, error)

    # -- the end -----------------------------------------------------------------------------------------------------

    def write_stop(self) -> None:
        """Record the stop at once: the turn may take a while until it ends."""
        self._log.submit(self._in_turn(lambda _: None), self._on_error)

    async def finish(self, end: TurnEnd) -> bool:
        """Seal the turn and announce its end; False if a steer is waiting, and the turn continues instead.

        Waits for the seal even if this task is cancelled.
        """
        write_ended = self._take_ended()

        def decide(tx: Transaction) -> bool:
            if tx.history.is_open(self._turn.id):
                self._note_stop(tx)
                write_ended(tx)
            if end.unless_steered and not self._turn.token.is_cancelled and tx.inbox.ready(steers_only=True):
                return False
            self._seal(tx, end)
            return True

        try:
            return bool(await self._outcome(decide))
        except SessionClosed:  # close() has waited long enough and sealed it
            self._show_end(TurnEnd("interrupted", self._turn.token.reason or "", self._turn.token.detail))
            return True
        except Exception as error:  # noqa: BLE001  (a boundary: how the turn ended must be known, whatever happens)
            # The turn stays open in the log. It is sealed when the next turn begins, or when the session is loaded.
            _log.warning("the end of turn %s could not be written: %s", self._turn.id, error)
            self._control.claim_end()
            self._show_end(TurnEnd("failed", "error", str(error), error))
            return True

    def _seal(self, tx: Transaction, end: TurnEnd) -> None:
        turn, control = self._turn, self._control
        if not control.claim_end():
            end = TurnEnd("interrupted", turn.token.reason or "", turn.token.detail)
        if tx.history.is_open(turn.id):
            stop = control.stop
            after = time.monotonic() - stop.moment if stop is not None and end.status == "interrupted" else None
            error = "" if end.error is None else str(end.error) or type(end.error).__name__
            finished = TurnFinished(end.status, end.reason, end.detail, error, after=after)
            usage = _write_end(tx, finished, is_rolled_back=control.rollback_requested or end.reason == "rollback")
            tx.show(lambda: self._show_end(end, usage))
        else:
            tx.show(lambda: self._show_end(end))

    def _show_end(self, end: TurnEnd, usage: Usage | None = None) -> None:
        turn = self._turn
        turn.usage = turn.usage if usage is None else usage
        turn.status, turn.reason, turn.detail = end.status, end.reason or None, end.detail
        turn.error, turn.output = end.error, end.output
        turn.ended.set()

    # -- how commands are run ----------------------------------------------------------------------------------------

    def _add(self, decide: Callable[[Transaction], object]) -> None:
        """Have a decision of the turn's own task run soon, together with whatever comes in the same moment."""
        writer = self._log.writer
        writer.add(self._log.command(decide, self._on_error))
        writer.wake_soon(self._control.loop)

    def _in_turn(self, decide: Callable[[Transaction], R]) -> Callable[[Transaction], R | None]:
        """Wrap a decision: it runs only while the turn is open, and after a stop has been recorded."""

        def decide_in_turn(tx: Transaction) -> R | None:
            if not tx.history.is_open(self._turn.id):
                return None
            self._note_stop(tx)
            return decide(tx)

        return decide_in_turn

    def _take_ended(self) -> Callable[[Transaction], None]:
        """Return a function that writes the end of the last request. Only the turn's own task calls this."""
        ended, self._ended = self._ended, None

        def write(tx: Transaction) -> None:
            if ended is not None:
                tx.write(self._turn.id, ended)

        return write

    def _note_stop(self, tx: Transaction) -> None:
        turn = tx.history.turn
        if self._turn.token.is_cancelled and turn is not None and turn.id == self._turn.id and turn.stopping is None:
            tx.write(turn.id, self._control.stopping())

    async def _outcome(self, decide: Callable[[Transaction], R]) -> R:
        """Run a decision to its end, even if this task is cancelled meanwhile; the turn runner handles that."""
        writer = self._log.writer
        command = writer.add(self._log.command(decide))
        writer.wake_in_loop()
        while not command.is_done:
            with contextlib.suppress(asyncio.CancelledError):
                await command.wait_async()
        return command.outcome()


def _applied_mode(message: InboxMessage) -> Mode:
    """The mode with which a message is applied when a turn begins."""
    return "queue" if message.mode == "steer" else message.mode


def seal_open_turn(tx: Transaction, reason: str, detail: str) -> None:
    """Seal a turn that is open in the log but no longer running."""
    turn = tx.history.turn
    if turn is None:
        return
    is_rolled_back = turn.stopping is not None and turn.stopping.reason == "rollback"
    if turn.stopping is not None:
        detail += f", after it had been asked to stop ({turn.stopping.reason})"
    _write_end(tx, TurnFinished("interrupted", reason, detail), is_rolled_back=is_rolled_back)


def _write_end(tx: Transaction, finished: TurnFinished, *, is_rolled_back: bool) -> Usage:
    """Write the end of the open turn, after closing everything that is open in it; returns its usage."""
    turn = tx.history.turn
    assert turn is not None
    end = tx.history.closing(finished.reason or finished.status, finished.detail, time.time())
    end += [
        withdrawal(asked)
        for question, (of_turn, asked) in tx.state.questions.items()
        if of_turn == turn.id and question not in tx.child_questions
    ]
    tx.write(turn.id, *end)
    turn = tx.history.turn  # with what the open request has used
    assert turn is not None
    usage = turn.usage
    tx.write(turn.id, msgspec.structs.replace(finished, usage=usage))
    if is_rolled_back:
        tx.write(turn.id, TurnRolledBack())
    return usage


def withdrawal(asked: ApprovalAsked | QuestionAsked) -> ApprovalAnswered | QuestionAnswered:
    """The event that closes a question without an answer."""
    if isinstance(asked, ApprovalAsked):
        return ApprovalAnswered(
            asked.request.id, asked.request.call_id, granted=False, note="the question was withdrawn"
        )
    return QuestionAnswered(asked.id, withdrawn=True)
