"""One call of a batch, from the model's request to its one outcome."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from halter.cancel.registration import wake_loop_on_cancel, wake_on_cancel
from halter.cancel.threads.blocking import run_blocking_async
from halter.cancel.token import Cancelled
from halter.events.tools import (
    ApprovalAnswered,
    ToolCancelling,
    ToolFinished,
    ToolFinishedLate,
    ToolProgress,
    ToolStarted,
)
from halter.models.types import ToolCall
from halter.tools.approval import (
    Approval,
    ApprovalNeed,
    ApprovalRequest,
    asks_person,
    find_need,
    is_approved,
    was_allowed,
)
from halter.tools.content import error_text, plain_value
from halter.tools.context import ToolContext
from halter.tools.outcome import LateEnd, Status, ToolOutcome
from halter.tools.run.execution import ToolExecution
from halter.tools.run.scheduler import Reservation, Scheduler
from halter.tools.schema.arguments import BadArguments
from halter.tools.toolset import no_such_tool

if TYPE_CHECKING:
    from halter.cancel.token import CancellationToken
    from halter.events.tools import ToolEvent
    from halter.tools.content import Content
    from halter.tools.run.batch import BatchEnvironment
    from halter.tools.tool import Tool


class CallRun:
    """One call: prepared, approved, scheduled, launched, settled. Its token is checked again after each of these waits.

    Its coroutines run in the session's event loop.
    """

    def __init__(self, order: int, request: ToolCall, token: CancellationToken, environment: BatchEnvironment) -> None:
        self.request = request
        self.token = token
        self.outcome: ToolOutcome | None = None
        self._order = order
        self._environment = environment
        self._tool: Tool[..., Any] | None = environment.tools.get(request.name)
        self._started_at: float | None = None
        self._stopped_at: float | None = None  # time.monotonic(), set in the thread that cancels
        self._is_announced = False
        self._inner_calls = 0  # calls of other tools that this one has made
        self._execution: ToolExecution | None = None
        self._execution_token: CancellationToken | None = None
        # A thread may end at the moment it is abandoned, before there is an outcome to attach that to.
        self._lock = threading.Lock()
        self._early_late: tuple[Content, BaseException | None] | None = None
        self._stop_watch = wake_on_cancel(token, self._note_stop)

    def _note_stop(self) -> None:
        if self._stopped_at is None:
            self._stopped_at = time.monotonic()

    async def drive(self, scheduler: Scheduler) -> None:
        """Bring the call to its outcome. A boundary: whatever goes wrong is the outcome, and harms no other call."""
        try:
            await self._prepare_and_run(scheduler)
        except Cancelled as stop:
            if stop.belongs_to(self.token):
                self._settle("not_started")
            else:
                self._settle("failed", detail=error_text(stop))
        except Exception as error:  # noqa: BLE001  (such as a thread that cannot be started)
            self._settle("failed", detail=error_text(error))
        except asyncio.CancelledError:
            self.token.cancel("external", detail="the task that ran it was cancelled")
            self.settle_now()
            raise

    async def _prepare_and_run(self, scheduler: Scheduler) -> None:
        tool = self._tool
        if tool is None:
            self._settle("failed", detail=no_such_tool(self.request.as_written.name, self._environment.tools))
            return
        try:
            kwargs = tool.bind_arguments(self.request.as_written.arguments)
        except BadArguments as error:
            self._settle("failed", detail=str(error))
            return
        self.token.raise_if_cancelled()
        need = await find_need(tool.approval, dict(kwargs), self.token)
        if need is not None and not await self._is_allowed(tool, kwargs, need):
            return
        reservation = Reservation(self._order, exclusive=tool.exclusive, touches_paths=tool.touches_paths)
        scheduler.enqueue(reservation)  # in the order of the calls, however long it takes to find the paths
        try:
            paths: list[str] = []
            if tool.touches_paths:
                paths = await run_blocking_async(tool.paths, kwargs, token=self.token)
                scheduler.set_paths(reservation, paths)
            await reservation.wait(self.token)
            note = await self._keep_files(tool, paths)
            if await self._may_start(tool):
                if note:
                    self._environment.emit(ToolProgress(self.request.id, tool.name, f"[{note}]\n"))
                await self._launch(tool, kwargs)
        finally:
            scheduler.release(reservation)

    async def _keep_files(self, tool: Tool[..., Any], paths: list[str]) -> str:
        """Have the files kept that the call may change; returns a note for people."""
        keep = self._environment.before_change
        if tool.file_history is None or keep is None:
            return ""
        self.token.raise_if_cancelled()
        return await keep(tool.file_history, paths, self.token)

    async def _may_start(self, tool: Tool[..., Any]) -> bool:
        """Announce the start; False if the call must not be launched any more. Raises Cancelled after a stop."""
        self.token.raise_if_cancelled()
        if self.outcome is not None:  # settle_all() came first
            return False
        started = ToolStarted(self.request.id, tool.name, self.request.arguments)
        start = self._environment.start
        if start is None:
            self._environment.emit(started)
        else:
            async with self.token.scope():  # a store that hangs must not delay the stop
                if not await start(started):
                    self._settle("not_started")
        self.token.raise_if_cancelled()  # nothing starts after the stop
        return self.outcome is None

    def _make_context(self, tool: Tool[..., Any], token: CancellationToken) -> ToolContext:
        environment = self._environment
        return ToolContext(
            token,
            call_id=self.request.id,
            session_id=environment.session_id,
            deps=environment.deps,
            is_async=tool.kind in ("coroutine", "async_generator"),
            loop=asyncio.get_running_loop(),
            report=lambda text, is_diff: environment.emit(ToolProgress(self.request.id, tool.name, text, is_diff)),
            ask=environment.ask,
            delegate=environment.delegate,
            call=self._call_inner,
            begin=environment.begin,
            resources=environment.resources,
        )

    async def _call_inner(self, tool: Tool[..., Any], arguments: str, token: CancellationToken) -> ToolOutcome:
        """Run another tool for this one, in the same environment. Its outcome is this call's business alone."""
        from halter.tools.run.batch import Batch

        self._inner_calls += 1
        request = ToolCall(f"{self.request.id}.{self._inner_calls}", tool.name, arguments)
        environment = replace(self._environment, tools={tool.name: tool}, listener=self._on_inner_event, start=None)
        [outcome] = await Batch([request], environment, token=token).run()
        return outcome

    def _on_inner_event(self, event: ToolEvent) -> None:
        """Pass on approvals, and progress as this call's own. The log has only the calls of the model."""
        if isinstance(event, ApprovalAnswered):
            self._environment.emit(event)
        elif isinstance(event, ToolProgress) and self.outcome is None:
            text = event.text if event.is_diff else f"{event.name}: {event.text}"
            self._environment.emit(ToolProgress(self.request.id, self.request.name, text, event.is_diff))

    async def _is_allowed(self, tool: Tool[..., Any], kwargs: dict[str, Any], need: ApprovalNeed) -> bool:
        environment = self._environment
        policy, ask = environment.approve, environment.ask_approval
        # A function decides here and now, so it may have the Python values; a question is written to the log.
        arguments = dict(kwargs) if callable(policy) else {name: plain_value(value) for name, value in kwargs.items()}
        request = ApprovalRequest(
            call_id=self.request.id,
            tool=tool.name,
            arguments=arguments,
            reason=need.reason,
            automatic=need.automatic,
            unattended=need.unattended,
            covers=need.covers,
            prefixes=need.prefixes,
        )
        if not callable(policy) and was_allowed(request, need, environment.allowed()):
            approval, is_reported = Approval(granted=True, note="it was allowed for this session"), False
        else:
            approval = await is_approved(policy, request, self.token, ask)
            is_reported = ask is not None and asks_person(policy, request)  # `ask_approval` does it
        if not is_reported:
            environment.emit(ApprovalAnswered(request.id, self.request.id, approval.granted, approval.note))
        if not approval.granted:
            reason = f"{need.reason}; " if callable(tool.approval) else ""  # else it is the same for every call
            self._settle("denied", detail=reason + approval.note)
        return approval.granted

    async def _launch(self, tool: Tool[..., Any], kwargs: dict[str, Any]) -> None:
        # The timeout starts now, and not while the call waited for its turn.
        token = self._execution_token = self.token.child("run", tool.timeout)
        context = self._make_context(tool, token)
        if tool.context_name is not None:
            kwargs = {**kwargs, tool.context_name: context}
        self._started_at = time.time()
        grace = self._environment.grace if tool.grace is None else tool.grace
        execution = self._execution = ToolExecution(
            tool, kwargs, token, context, grace, self._ended_late, self._environment.tool_loop
        )
        loop = asyncio.get_running_loop()
        try:
            with wake_on_cancel(token, self._note_stop), wake_loop_on_cancel(token, loop, self._announce_stop):
                await execution.run()
        finally:
            context.detach()
        self.settle_now()

    def _announce_stop(self) -> None:
        """Report once that the token of a running call was cancelled."""
        token = self._execution_token
        if token is None or self._is_announced or self.outcome is not None:
            return
        self._is_announced = True
        event = ToolCancelling(self.request.id, self.request.name, token.reason or "", token.detail)
        self._environment.emit(event)

    def settle_now(self) -> None:
        """Give the call its outcome, whatever state it is in. In the loop."""
        execution, token = self._execution, self._execution_token
        if self.outcome is not None:
            return
        if execution is None or token is None:
            self._settle("not_started")
            return
        execution.abandon()
        if not execution.is_complete:
            self._settle_stopped(execution, token)
        elif execution.error is None:
            self._settle("completed", execution.content)
        else:
            self._settle("failed", execution.content, detail=error_text(execution.error))

    def _settle_stopped(self, execution: ToolExecution, token: CancellationToken) -> None:
        self._note_stop()  # the function may have ended before the thread that cancels has called this
        self._announce_stop()
        content = execution.content
        if not execution.stop_steps:
            execution.stop_steps.append("cooperated")
        status: Status
        if token.reason == "timeout" and not self.token.is_cancelled:
            status = "timed_out"
        elif not execution.has_ended:
            status = "abandoned"
        else:
            status = "partial" if content else "cancelled"
        self._settle(status, content, reason=token.reason, detail=token.detail)

    def _settle(self, status: Status, content: Content = "", *, reason: str | None = None, detail: str = "") -> None:
        """Settle the outcome: the first one is the one."""
        if self.outcome is not None:
            return
        if status in _STOPPED and self.token.is_cancelled:
            reason = reason or self.token.reason
            detail = detail or self.token.detail
        outcome = ToolOutcome(
            call_id=self.request.id,
            name=self.request.name,
            status=status,
            content=content,
            reason=reason,
            detail=detail,
            started_at=self._started_at,
            ended_at=time.time(),
            stop_steps=list(self._execution.stop_steps) if self._execution is not None else [],
        )
        self._stop_watch()
        after = None if self._stopped_at is None else time.monotonic() - self._stopped_at
        self._environment.emit(ToolFinished(outcome, after))
        # From here on a late end adds itself; one that came before is added now. Either way after the event above.
        with self._lock:
            self.outcome = outcome
            late = self._early_late
        if late is not None:
            self._report_late(outcome, *late)

    def _ended_late(self, content: Content, error: BaseException | None) -> None:
        """The abandoned function has ended. Called in any thread."""
        with self._lock:
            outcome = self.outcome
            if outcome is None:
                self._early_late = (content, error)
                return
        self._report_late(outcome, content, error)

    def _report_late(self, outcome: ToolOutcome, content: Content, error: BaseException | None) -> None:
        now = time.monotonic()
        seconds = now - (self._stopped_at if self._stopped_at is not None else now)
        outcome.late = LateEnd(time.time(), seconds, content, error_text(error) if error is not None else "")
        self._environment.emit(ToolFinishedLate(outcome))


_STOPPED: frozenset[Literal["denied", "not_started"]] = frozenset({"denied", "not_started"})
