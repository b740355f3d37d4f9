"""Runs one turn, step after step. A step is a request and the calls that the model asked for.

Every step has its own token below the turn's. A steer cancels the step: the request is closed and its text is kept, or
the running calls end with what they have; then the next step begins with the steer in the conversation. A stop cancels
the turn, and everything below it.

Whatever happens, including a foreign cancellation or a store that fails, the turn is sealed when `run()` returns.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from halter.cancel.registration import call_in_loop, wake_on_cancel
from halter.cancel.token import Cancelled
from halter.errors import LimitReached, StoreError
from halter.events import RequestCancelled, RequestFinished, RequestRetry, RequestStarted, ToolFinished
from halter.models.errors import ContextTooLong, ModelError
from halter.models.model_call import ModelCall
from halter.models.types import ModelRequest, ReasoningDelta, TextDelta
from halter.session.compaction.compactor import Compactor
from halter.session.output import OutputCheck
from halter.session.turn_writer import TurnEnd, TurnWriter
from halter.tools.run.batch import Batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halter.agent import Agent
    from halter.cancel.token import CancellationToken
    from halter.events import ContextCompacted, RequestEvent, SummaryDiscarded
    from halter.models.answer import Answer
    from halter.models.types import ToolCall, UserMessage
    from halter.session.history_view import HistoryView
    from halter.session.instructions import SessionInstructions
    from halter.session.limits import Spending
    from halter.session.log import EventLog
    from halter.session.turn_control import TurnControl
    from halter.tools.run.batch import BatchEnvironment

__all__ = ["TurnRunner"]

_log = logging.getLogger(__name__)
_MAX_COMPACTIONS: Final = 3  # compactions for one request that a provider refuses


class TurnRunner:
    """The work of one turn, in one task."""

    def __init__(
        self,
        agent: Agent,
        log: EventLog,
        control: TurnControl,
        environment: BatchEnvironment,
        instructions: SessionInstructions,
        spending: Spending,
    ) -> None:
        self._agent = agent
        self._instructions = instructions
        self._spending = spending
        self._log = log
        self._control = control
        self._turn = control.turn
        self._writer = TurnWriter(log, control, agent.tools, self._on_error)
        self._environment = environment
        environment.listener = self._writer.write_tool_event
        environment.start = self._writer.start_call
        self._steps_left = agent.limits.steps
        self._output = OutputCheck(agent)
        self._ended: RequestFinished | RequestCancelled | None = None
        self._failure: Exception | None = None  # of a write that nobody waited for

    async def run(self, message: UserMessage | None, *, may_continue: bool) -> None:
        """Run the turn to its end. Raises if it could not begin, or if the task was cancelled by somebody else."""
        task = asyncio.current_task()
        assert task is not None  # a coroutine runs in a task
        others = task.cancelling()
        try:
            await self._writer.begin(message, self._agent.model.name, may_continue=may_continue)
        except BaseException:
            if task.cancelling() > others:
                raise asyncio.CancelledError from None
            raise
        await self._run_to_end(task, others)
        if task.cancelling() > others:
            raise asyncio.CancelledError

    async def _run_to_end(self, task: asyncio.Task[object], others: int) -> None:
        is_over = False
        end: TurnEnd | None = None
        while not is_over:
            self._note_foreign(task, others)
            try:
                end = await self._run_steps(end)
            except BaseException:
                self._note_foreign(task, others)
                await self._writer.finish(TurnEnd("failed", "error"))
                raise
            self._note_foreign(task, others)
            is_over = await self._writer.finish(end)

    def _note_foreign(self, task: asyncio.Task[object], others: int) -> None:
        if task.cancelling() > others:
            self._control.cancel("external", detail="its task was cancelled", by="the surrounding program")

    def _on_error(self, error: Exception) -> None:
        """End the step: a write that nobody waited for has failed. Called in any thread."""
        self._failure = error
        self._control.step.cancel("error", detail=str(error))

    async def _run_steps(self, before: TurnEnd | None) -> TurnEnd:
        """Run the steps; returns how the turn should end. A boundary: an error becomes the end of the turn.

        *before* is how it should have ended before, if it continues because of a steer.
        """
        turn = self._turn
        try:
            with turn.token.bind():
                return await self._steps(before)
        except Cancelled as stop:
            if turn.token.is_cancelled:
                return TurnEnd("interrupted")
            error: Exception = self._failure or RuntimeError(f"it was cancelled by another token: {stop}")
            return TurnEnd("failed", "error", str(error), error)
        except LimitReached as error:
            return TurnEnd("failed", error.reason, str(error), error, unless_steered=error.reason == "output_limit")
        except ContextTooLong as error:
            return TurnEnd("failed", "context_limit", str(error), error)
        except Exception as error:  # noqa: BLE001
            if not isinstance(error, (ModelError, StoreError)):
                _log.exception("turn %s failed", turn.id)
            return TurnEnd("failed", "error", str(error), error)

    async def _steps(self, before: TurnEnd | None) -> TurnEnd:
        """Run step after step; returns how the turn should end."""
        is_first = before is None
        while True:
            self._turn.token.raise_if_cancelled()
            if not is_first and not await self._begin_step() and before is not None:
                return before  # the steer was removed or held meanwhile, and the model has nothing to answer
            is_first, before = False, None
            answer = await self._request()
            if answer is None:
                continue  # a steer has ended the request
            if answer.calls:
                await self._call(answer.calls)
            elif answer.reason == "length":
                raise LimitReached(
                    "the answer was cut off at the model's output limit; run() continues it", "output_limit"
                )
            elif answer.reason != "pause":
                checked = self._output.check(answer)
                if isinstance(checked, TurnEnd):
                    return checked
                await self._writer.reject_output(checked)
            if self._control.pause_requested:
                return TurnEnd("interrupted", "pause", unless_steered=True)

    async def _begin_step(self) -> bool:
        """Begin a step; True if it began with steers."""
        await self._wait_for_steers()
        has_steers = await self._writer.begin_step(self._turn.token.child("step"))
        if has_steers:
            self._steps_left = self._agent.limits.steps
            self._output.reset()
        if self._failure is not None:
            raise self._failure
        return has_steers

    async def _wait_for_steers(self) -> None:
        """Wait while a complete steer is queued behind one in preparation: steers keep their order."""
        token = self._turn.token
        while not token.is_cancelled:
            changed = self._log.watch()
            steers = [each for each in self._log.view.inbox if each.mode == "steer" and each.state == "accepted"]
            if not steers or not steers[0].preparing or all(each.preparing for each in steers):
                return
            await changed.wait_async(token=token)

    # -- the request -------------------------------------------------------------------------------------------------

    async def _request(self) -> Answer | None:
        """Make one request; returns None if a steer has ended it."""
        turn, agent, step = self._turn, self._agent, self._control.step
        if self._steps_left <= 0:
            raise LimitReached(
                f"the turn took {agent.limits.steps} steps and was not done; run() continues it", "step_limit"
            )
        await self._spending.check(turn.token)
        instructions = await self._instructions.get(turn.token)
        self._steps_left -= 1
        if step.is_cancelled:
            turn.token.raise_if_cancelled()
            return None
        try:
            return await self._ask_with_room(step, instructions)
        except Cancelled as stop:
            if self._failure is not None:
                raise self._failure from None
            if turn.token.is_cancelled or not stop.belongs_to(step):
                raise
            return None

    async def _ask_with_room(self, step: CancellationToken, instructions: str) -> Answer:
        """Make room in the model's context if it is full, and ask; again if the provider says that it is too long."""
        compactor = Compactor(
            self._agent, instructions, self._log, self._write_compaction, self._write_discarded_summary
        )
        retries = _MAX_COMPACTIONS
        await compactor.make_room(step)
        while True:
            call = self._model_call(step, instructions)
            try:
                await call.run()
            except ContextTooLong as error:
                await self._end_request(call.answer)
                if not retries or call.answer.text or not await compactor.make_room_after(error, step):
                    raise
                retries -= 1
            except BaseException:
                await self._end_request(call.answer)
                raise
            else:
                return await self._end_request(call.answer)

    async def _write_compaction(self, view: HistoryView, record: ContextCompacted) -> bool:
        is_written = await self._writer.write_compaction(view, record)
        if is_written:
            self._spending.add(record.usage)
        return is_written

    def _write_discarded_summary(self, event: SummaryDiscarded) -> None:
        self._spending.add(event.usage)
        self._writer.write_discarded_summary(event)

    def _model_call(self, step: CancellationToken, instructions: str) -> ModelCall:
        agent = self._agent
        output = agent.output_type.schema if agent.output_type is not None else None
        messages = self._log.view.history.request_messages
        request = ModelRequest(
            messages, instructions, agent.tool_specs, agent.settings, cache_key=self._log.id, output=output
        )
        return ModelCall(
            agent.model,
            request,
            token=step,
            emit=self._on_request,
            fallbacks=agent.fallbacks,
            backoff=agent.backoff,
            prices=agent.prices,
        )

    def _on_request(self, event: RequestEvent) -> None:
        """Handle an event of the request, in the loop."""
        kind = type(event)
        if kind is TextDelta or kind is ReasoningDelta:
            self._writer.write_delta(event)  # type: ignore[arg-type]  # compared by class: isinstance costs more
        elif isinstance(event, (RequestFinished, RequestCancelled)):
            self._ended = event
        elif isinstance(event, (RequestStarted, RequestRetry)):
            self._writer.write_request(event)

    async def _end_request(self, answer: Answer) -> Answer:
        """Record the end of the request, complete or not."""
        ended, self._ended = self._ended, None
        if ended is None:
            return answer
        self._spending.add(answer.usage)
        answer = await self._writer.end_request(ended, answer)
        turn = self._turn
        turn.text = answer.text or turn.text
        return answer

    # -- the calls ---------------------------------------------------------------------------------------------------

    async def _call(self, calls: Sequence[ToolCall]) -> None:
        """Run the calls of one answer. Whatever happens, each of them gets an outcome in the log."""
        turn, control = self._turn, self._control
        step = control.step
        loop = asyncio.get_running_loop()
        # If a steer came before they started, none of them starts, not even one with on_steer="finish".
        token: CancellationToken = step if step.is_cancelled else turn.token
        batch = control.batch = Batch(calls, self._environment, token=token, step=step)
        try:
            # Unlike a request, calls may take their grace, so the stop is recorded at once.
            with wake_on_cancel(turn.token, lambda: call_in_loop(loop, self._writer.write_stop)):
                await batch.run()
        finally:
            control.batch = None
            outcomes = batch.settle_all()
            turn.outcomes += outcomes
            for outcome in outcomes:
                self._writer.write_tool_event(ToolFinished(outcome))
