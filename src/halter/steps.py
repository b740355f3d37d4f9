"""A turn at work: step after step, each a request and the calls that the model asked for, and one way out.

Every step has a token of its own below the turn's. A steer cancels the step: the request is closed and its words are
kept, or the running calls are broken off with what they have; then the next step begins with the steer in the
conversation. A stop cancels the turn, and with it all.

Whatever happens, a foreign cancellation and a store that fails included, `run()` leaves the turn sealed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from halter.bundle import Entry, bundle_here
from halter.cancel.token import CancellationToken, Cancelled, call_in_loop, wake_on_cancel
from halter.errors import LimitReached, StoreError
from halter.events import MessageApplied, TurnFinished, TurnRolledBack, TurnStopping
from halter.models.errors import ContextTooLong, ModelError
from halter.models.model import ModelRequest, ReasoningDelta, TextDelta, Usage
from halter.models.progress import RequestCancelled, RequestFinished, RequestRetry, RequestStarted
from halter.models.request import Exchange
from halter.tools.batch import Batch, Surroundings
from halter.tools.events import ToolCancelling, ToolFinished, ToolFinishedLate, ToolProgress, ToolStarted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halter.agent import Agent
    from halter.events import EventData, TurnStatus
    from halter.journal import Journal
    from halter.models.answer import Answer
    from halter.models.model import ToolCall
    from halter.models.progress import RequestEvent
    from halter.people import People
    from halter.tools.events import ToolEvent
    from halter.tools.outcome import ToolOutcome
    from halter.turn import Turn

_log = logging.getLogger(__name__)
_NO_USAGE: Final = Usage()


class Steps:
    """The work of one turn, in one task."""

    def __init__(self, agent: Agent, journal: Journal, turn: Turn, people: People) -> None:
        self._agent = agent
        self._journal = journal
        self._turn = turn
        self._loop = asyncio.get_running_loop()
        self._around = Surroundings(
            agent.tools,
            session_id=journal.session,
            approve=agent.approve,
            ask_approval=people.ask_approval,
            ask=people.ask,
            delegate=people.delegate,
            begin=people.begin,
            keeper=people.keeper,
            grace=people.grace,
            listener=self._on_tool,
            late_hook=self._on_late,
        )
        self._exchange: Exchange | None = None
        self._bundle = bundle_here()
        self._words: list[EventData] = []  # said and not written yet: until the loop's next turn
        self._words_entry = Entry(journal, turn.id, self._say_words, self._on_words_written)
        self._ended: RequestFinished | RequestCancelled | None = None  # not written yet: until what follows it is known
        self._failure: Exception | None = None  # of the store, where nobody could be told
        self._is_stop_told = False
        self._told: set[str] = set()  # calls whose outcome is in the log
        self._end: tuple[TurnStatus, str, str] | None = None  # status, reason and detail, when they are decided
        self._answer: Answer | None = None

    async def run(self) -> None:
        """Bring the turn to its end. Only foreign cancellations pass on."""
        task = asyncio.current_task()
        assert task is not None  # whoever awaits is in one
        others = task.cancelling()
        try:
            end = await self._try()
        except BaseException:
            self._hear_of_others(task, others)
            self._seal()
            raise
        self._hear_of_others(task, others)
        await self._seal_with_others(*end)
        if task.cancelling() > others:
            raise asyncio.CancelledError  # something on the way has made another error of it

    def _hear_of_others(self, task: asyncio.Task[Any], others: int) -> None:
        if task.cancelling() > others:
            self._turn.cancel("external", detail="its task was cancelled", by="the surrounding program")

    async def _try(self) -> tuple[TurnStatus, str, str]:
        """Do the work; gives the status, the reason and its detail. A boundary: whatever fails is how it ended."""
        turn = self._turn
        try:
            with turn.token.bind():
                reason = await self._go()
        except Cancelled as stop:
            if turn.token.is_cancelled:
                return "interrupted", "", ""
            turn.error = RuntimeError(f"a stop that is not this turn's came out of it: {stop}")
            return "failed", "error", ""
        except LimitReached as error:
            turn.error = error
            return "failed", error.reason, str(error)
        except ContextTooLong as error:
            turn.error = error
            return "failed", "context_limit", str(error)
        except Exception as error:  # noqa: BLE001
            turn.error = error
            if not isinstance(error, (ModelError, StoreError)):
                _log.exception("turn %s failed", turn.id)
            return "failed", "error", str(error)
        return "interrupted" if reason == "pause" else "done", reason, ""

    async def _go(self) -> str:
        """Step after step; gives the reason why it ended well."""
        turn = self._turn
        left = self._agent.max_steps
        while True:
            turn.token.raise_if_cancelled()
            await self._await_steers()
            if self._begin_step():
                left = self._agent.max_steps
            if left <= 0:
                msg = f"the turn took {self._agent.max_steps} steps and was not done; run() goes on with it"
                raise LimitReached(msg, "step_limit")
            left -= 1
            answer = await self._ask()
            if answer is None:
                continue  # a steer has ended the request
            if answer.calls:
                await self._call(answer.calls)
                if turn.wants_pause and self._may_end():
                    return "pause"
            elif answer.reason == "length" and not self._has_steers():
                msg = "the answer came to the model's limit of output and is cut off; run() goes on with it"
                raise LimitReached(msg, "output_limit")
            elif answer.reason != "pause" and self._may_end():
                return "" if answer.reason in ("stop", "tool_calls", "other", "length") else str(answer.reason)

    # -- steps and steers --------------------------------------------------------------------------------------------

    async def _await_steers(self) -> None:
        """Wait, if steers are there that stand behind one that is still being prepared: they keep their order."""
        token = self._turn.token
        while (whole := self._journal.inbox.awaited()) is not None and not token.is_cancelled:
            await CancellationToken.any_of(token, whole).wait_async()

    def _begin_step(self) -> bool:
        """Make a fresh step and put the steers that wait into the conversation; True if there were any.

        In one hold of the lock: a steer that comes before is taken here, and cancels the step before; one that comes
        after finds the new step.
        """
        turn, journal = self._turn, self._journal
        with journal.lock:
            self._write()
            turn.step = turn.token.child("step")
            steers = journal.inbox.ready(steers_only=True)
            if steers and not turn.token.is_cancelled:
                journal.append(turn.id, *(MessageApplied(letter.id, "steer") for letter in steers))
        return bool(steers)

    def _has_steers(self) -> bool:
        return bool(self._journal.inbox.ready(steers_only=True))

    def _may_end(self) -> bool:
        """End the turn, unless there is a steer; with nobody in between: one that comes later is for the next turn."""
        turn, journal = self._turn, self._journal
        with journal.lock:
            if self._has_steers() and not turn.token.is_cancelled:
                return False
            if not turn.claim_end():
                turn.token.raise_if_cancelled()
            return True

    # -- the request -------------------------------------------------------------------------------------------------

    async def _ask(self) -> Answer | None:
        """Make one request; None if a steer has broken it off."""
        turn, agent = self._turn, self._agent
        request = ModelRequest(self._journal.history.messages, agent.instructions, agent.tool_specs)
        step = turn.step
        if step.is_cancelled:
            turn.token.raise_if_cancelled()
            return None
        self._exchange = Exchange(
            agent.model, request, token=step, emit=self._on_request, fallbacks=agent.fallbacks, backoff=agent.backoff
        )
        try:
            await self._exchange.run()
        except Cancelled as stop:
            if self._failure is not None:
                raise self._failure from None
            if turn.token.is_cancelled or not stop.belongs_to(step):
                raise
            return None
        finally:
            answer = self._answer
            self._exchange = None
        return answer

    def _on_request(self, event: RequestEvent) -> None:
        """Hear of the request, in the loop. Words of one turn of the loop are written together."""
        kind = type(event)
        if kind is TextDelta or kind is ReasoningDelta:
            self._words.append(event)  # type: ignore[arg-type]  # told apart by class: isinstance costs more
            if len(self._words) == 1:
                self._bundle.add(self._words_entry)
        elif isinstance(event, (RequestFinished, RequestCancelled)):
            self._end_request(event)
        elif isinstance(event, (RequestStarted, RequestRetry)):
            self._write(event, unless_stopped=True)

    def _end_request(self, event: RequestFinished | RequestCancelled) -> None:
        assert self._exchange is not None
        answer = self._exchange.answer
        if answer.calls:
            calls = self._journal.history.with_fresh_ids(answer.calls)
            if isinstance(event, RequestCancelled) or event.status == "failed":
                # Nobody will run the calls of an answer that was broken off, so they are not part of what was said.
                answer = msgspec.structs.replace(answer, calls=[], unfinished=[*calls, *answer.unfinished])
            else:
                answer = msgspec.structs.replace(answer, calls=calls)
        self._answer = answer
        turn = self._turn
        turn.text = answer.text or turn.text
        if answer.usage != _NO_USAGE:
            turn.usage = _sum(turn.usage, answer.usage)
        self._ended = msgspec.structs.replace(event, answer=answer)
        if answer.calls:
            self._write()  # before one of them runs
        # Else the next step or the end of the turn writes it with its own word: the loop has no turn before that.

    def _say_words(self) -> list[EventData]:
        """What was said since the loop's last turn, if that is not written already."""
        if not self._journal.history.is_open(self._turn.id):
            self._words = []
        if not self._words or self._turn.token.is_cancelled:
            return []  # the second: what ends the turn writes them, and that it is stopped, in one go
        return self._unwritten(is_stopped=False)

    def _on_words_written(self, _: object, error: Exception | None) -> None:
        """Hear whether the words could be written. Nobody waits for that who could be told."""
        if error is not None:
            self._failure = error
            self._turn.step.cancel("error", detail=str(error))

    def _write(self, *data: EventData, unless_stopped: bool = False) -> None:
        """Write, behind what is not written yet, and behind the news that there is a stop, if so.

        What is not to begin after a stop is then not written, and `Cancelled` is raised.
        """
        token = self._turn.token
        is_stopped = token.is_cancelled  # asked once: the log has nothing that contradicts it
        events = self._unwritten(is_stopped=is_stopped)
        if not (is_stopped and unless_stopped):
            events += data
        if events:
            self._journal.append_in(self._turn.id, *events)
        if is_stopped and unless_stopped:
            raise Cancelled(token)

    def _unwritten(self, *, is_stopped: bool) -> list[EventData]:
        """Take what is not written yet: words, that there is a stop if so, and only then what came of it."""
        unwritten, self._words = self._words, []
        if is_stopped and not self._is_stop_told:
            self._is_stop_told = True
            unwritten.append(self._stopping())
        if self._ended is not None:
            unwritten.append(self._ended)
            self._ended = None
        return unwritten

    # -- the calls ---------------------------------------------------------------------------------------------------

    async def _call(self, calls: Sequence[ToolCall]) -> None:
        """Run the calls of one answer. Whatever happens, each has its outcome in the log afterwards."""
        turn = self._turn
        step = turn.step
        # A steer that came before they began: then none begins, not even one that must not be broken.
        batch = Batch(calls, self._around, token=step if step.is_cancelled else turn.token, step=step)
        turn.batch = batch
        try:
            # A request ends with the stop, and says so itself. Calls may take their grace.
            with wake_on_cancel(turn.token, lambda: call_in_loop(self._loop, self._tell_soon)):
                await batch.run()
        finally:
            turn.batch = None
            turn.outcomes += batch.outcomes
            left = [ToolFinished(outcome) for outcome in batch.outcomes if outcome.call_id not in self._told]
            self._write(*left)
            self._told.update(each.outcome.call_id for each in left)

    def _on_tool(self, event: ToolEvent) -> None:
        """Hear of the calls, in the loop."""
        if isinstance(event, ToolFinishedLate):
            return  # comes by _on_late(), for it may be that this loop is gone by then
        if isinstance(event, ToolFinished):
            if event.outcome.call_id not in self._told:
                self._write(event)
                self._told.add(event.outcome.call_id)
        elif isinstance(event, ToolStarted):
            self._tell_start(event)
        elif not (isinstance(event, (ToolProgress, ToolCancelling)) and event.call_id in self._told):
            self._write(event)

    def _tell_start(self, event: ToolStarted) -> None:
        """Write that a call starts; it is about to. What could not be written does not happen, so then it does not."""
        try:
            if event.call_id not in self._told:
                self._write(event)
        except StoreError as error:
            if self._turn.batch is not None:
                self._turn.batch.cancel_call(event.call_id, "error", detail=str(error))

    def _on_late(self, outcome: ToolOutcome) -> None:
        """Hear of an abandoned call that has ended after all; in any thread, in any turn, at any time. A boundary."""
        try:
            self._journal.append(self._turn.id, ToolFinishedLate(outcome))
        except Exception as error:  # noqa: BLE001  (as a rule, the session was closed meanwhile)
            _log.info("call %s ended late, and that could not be written down: %s", outcome.call_id, error)

    # -- the end -----------------------------------------------------------------------------------------------------

    def _stopping(self) -> TurnStopping:
        stop, token = self._turn.stop, self._turn.token
        reason, detail = token.reason or "", token.detail
        if stop is None or stop.reason != reason:
            return TurnStopping(reason, detail, "", time.time())
        return TurnStopping(reason, detail, stop.by, stop.asked_at)

    def _tell_soon(self) -> None:
        """Give the loop's next turn to the task, which the same stop has woken: what ends at once says it itself."""
        self._loop.call_soon(self._tell_stop)

    def _tell_stop(self) -> None:
        """Say that there is a stop, at once. A boundary, as nobody calls this."""
        if self._is_stop_told:
            return
        try:
            self._write()
        except Exception as error:  # noqa: BLE001
            self._failure = error

    def _seal(self) -> None:
        """Write the end of a turn that was left, whatever is open, and let everybody know."""
        try:
            self._decide_end("failed", "", "").write()
        finally:
            self._turn.end()

    async def _seal_with_others(self, status: TurnStatus, reason: str, detail: str) -> None:
        """Write its end and let everybody know; in one go with what other turns write, if they do just now."""
        entry = self._decide_end(status, reason, detail)
        try:
            is_in_two_pieces = self._words and self._ended is None  # see _say_end()
            if self._bundle.has_others(self._journal) and not is_in_two_pieces:
                await self._bundle.write(entry)
            else:
                entry.write()
        finally:
            self._turn.end()

    def _decide_end(self, status: TurnStatus, reason: str, detail: str) -> Entry:
        """Say how the turn has ended, once and for all; it only has to be written."""
        turn = self._turn
        if status != "done" and not turn.claim_end():
            reason, detail = turn.token.reason or "", turn.token.detail
            status = "interrupted"
        if status != "failed":
            turn.error = None
        self._end = (status, reason, detail)
        return Entry(self._journal, turn.id, self._say_end, self._on_end_written)

    def _say_end(self) -> list[EventData]:
        """What has to be written for the turn to be over; nothing if it was sealed from outside."""
        turn, journal = self._turn, self._journal
        if not journal.history.is_open(turn.id):
            return []
        assert self._end is not None
        status, reason, detail = self._end
        is_closed = self._ended is not None  # without calls it leaves nothing open
        if self._words and not is_closed:
            self._write()  # what is left open depends on them
        end = self._unwritten(is_stopped=turn.token.is_cancelled)
        if not is_closed:
            end += journal.history.closing(reason or status, detail, time.time())
        after = time.monotonic() - turn.stop.moment if turn.stop is not None and status == "interrupted" else None
        error = "" if turn.error is None else str(turn.error) or type(turn.error).__name__
        end.append(TurnFinished(status, reason, detail, error, turn.usage, after))
        if turn.wants_rollback or reason == "rollback":
            end.append(TurnRolledBack())
        return end

    def _on_end_written(self, said: list[EventData], error: Exception | None) -> None:
        """Hear that the end is written, and the lock is held; or why it could not be."""
        turn = self._turn
        assert self._end is not None
        status, reason, detail = self._end
        if error is not None:
            # The log ends in an open turn. It is sealed before the next one begins, here or wherever it is loaded.
            _log.warning("the end of turn %s could not be written: %s", turn.id, error)
            turn.error, status, reason, detail = error, "failed", "error", str(error)
        elif said:
            self._journal.inbox.demote_steers("the turn that it was for ended first")
            if turn.wants_rollback and self._journal.history.ends_with(turn.id):
                self._journal.append(turn.id, TurnRolledBack())  # a handler came, when the last word had been said
        # Within the lock: whoever holds it finds the turn running and open in the log, or neither.
        turn.status, turn.reason, turn.detail = status, reason or None, detail


def _sum(one: Usage, other: Usage) -> Usage:
    return Usage(*(getattr(one, name) + getattr(other, name) for name in Usage.__struct_fields__))
