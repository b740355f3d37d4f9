"""One call of a batch, from the model's request to its one outcome."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from halter.cancel.blocking import run_blocking_async
from halter.cancel.token import Cancelled, call_in_loop, wake_on_cancel
from halter.models.model import ToolCall
from halter.tools.approval import ApprovalRequest, is_approved, why_to_ask
from halter.tools.arguments import BadArguments
from halter.tools.content import error_text
from halter.tools.context import ToolContext
from halter.tools.events import (
    ApprovalAnswered,
    ApprovalAsked,
    ToolCancelling,
    ToolFinished,
    ToolFinishedLate,
    ToolProgress,
    ToolStarted,
)
from halter.tools.outcome import LateEnd, Status, ToolOutcome
from halter.tools.running import Run
from halter.tools.slots import Claim, Slots
from halter.tools.toolset import no_such_tool

if TYPE_CHECKING:
    from halter.cancel.token import CancellationToken
    from halter.tools.batch import Surroundings
    from halter.tools.content import Content
    from halter.tools.events import ToolEvent
    from halter.tools.tool import Tool


class Call:
    """One call: prepared, allowed, admitted, launched, settled. Its token is asked again after each of these waits."""

    def __init__(self, order: int, request: ToolCall, token: CancellationToken, around: Surroundings) -> None:
        self.request = request
        self.token = token
        self.outcome: ToolOutcome | None = None
        self._order = order
        self._around = around
        self._tool: Tool[..., Any] | None = around.tools.get(request.name)
        self._started_at: float | None = None
        self._stopped_at: float | None = None  # time.monotonic(), set in the thread that cancels
        self._is_announced = False
        self._inner = 0  # calls of other tools that this one has made
        self._run: Run | None = None
        self._run_token: CancellationToken | None = None
        # A thread may end in the moment in which it is left, before there is an outcome to add that to.
        self._lock = threading.Lock()
        self._early_late: tuple[Content, BaseException | None] | None = None
        self._stop_watch = wake_on_cancel(token, self._note_stop)

    def _note_stop(self) -> None:
        if self._stopped_at is None:
            self._stopped_at = time.monotonic()

    async def drive(self, slots: Slots) -> None:
        """Bring the call to its outcome. A boundary: whatever goes wrong with it is that, and harms no other call."""
        try:
            await self._prepare_and_run(slots)
        except Cancelled as stop:
            if stop.belongs_to(self.token):
                self._settle("not_started")
            else:
                self._settle("failed", detail=error_text(stop))
        except Exception as error:  # noqa: BLE001  (such as no thread to be had)
            self._settle("failed", detail=error_text(error))
        except asyncio.CancelledError:
            self.token.cancel("external", detail="the task that ran it was cancelled")
            self.settle_now()
            raise

    async def _prepare_and_run(self, slots: Slots) -> None:
        tool = self._tool
        if tool is None:
            self._settle("failed", detail=no_such_tool(self.request.name, self._around.tools))
            return
        try:
            kwargs = tool.bind_arguments(self.request.arguments)
        except BadArguments as error:
            self._settle("failed", detail=str(error))
            return
        self.token.raise_if_cancelled()
        why = await why_to_ask(tool.approval, dict(kwargs), self.token)
        if why and not await self._is_allowed(tool, kwargs, why):
            return
        claim = Claim(self._order, exclusive=tool.exclusive, touches_paths=tool.touches_paths)
        slots.line_up(claim)  # in the order of the calls, however long it takes to find the paths
        try:
            if tool.touches_paths:
                slots.know_paths(claim, await run_blocking_async(tool.paths, kwargs, token=self.token))
            await claim.wait(self.token)
            self.token.raise_if_cancelled()  # nothing starts after the stop
            if self.outcome is None:  # nor after it was told of as not started
                await self._launch(tool, kwargs)
        finally:
            slots.leave(claim)

    def _make_context(self, tool: Tool[..., Any], token: CancellationToken) -> ToolContext:
        around = self._around
        return ToolContext(
            token,
            call_id=self.request.id,
            session_id=around.session_id,
            is_async=tool.kind in ("coroutine", "async_generator"),
            loop=around.loop,
            report=lambda text: around.emit(ToolProgress(self.request.id, tool.name, text)),
            ask=around.ask,
            delegate=around.delegate,
            call=self._call_inner,
            begin=around.begin,
            keeper=around.keeper,
        )

    async def _call_inner(self, tool: Tool[..., Any], arguments: str, token: CancellationToken) -> ToolOutcome:
        """Run another tool for this one, with the same surroundings. Its outcome is this call's business alone."""
        from halter.tools.batch import Batch  # noqa: PLC0415  (a batch is made of calls)

        self._inner += 1
        request = ToolCall(f"{self.request.id}.{self._inner}", tool.name, arguments)
        around = replace(self._around, tools={tool.name: tool}, listener=self._hear_inner, late_hook=None)
        [outcome] = await Batch([request], around, token=token).run()
        return outcome

    def _hear_inner(self, event: ToolEvent) -> None:
        """Pass on what a person is asked, and progress as this call's own. The log knows only a model's own calls."""
        if isinstance(event, (ApprovalAsked, ApprovalAnswered)):
            self._around.emit(event)
        elif isinstance(event, ToolProgress) and self.outcome is None:
            self._around.emit(ToolProgress(self.request.id, self.request.name, f"{event.name}: {event.text}"))

    async def _is_allowed(self, tool: Tool[..., Any], kwargs: dict[str, Any], why: str) -> bool:
        request = ApprovalRequest(call_id=self.request.id, tool=tool.name, arguments=dict(kwargs), reason=why)
        if self._around.approve == "ask":
            self._around.emit(ApprovalAsked(request))
        approval = await is_approved(self._around.approve, request, self.token, self._around.ask_approval)
        self._around.emit(ApprovalAnswered(request.id, self.request.id, approval.granted, approval.note))
        if not approval.granted:
            reason = f"{why}; " if callable(tool.approval) else ""  # that every call needs approval is no news
            self._settle("denied", detail=reason + approval.note)
        return approval.granted

    async def _launch(self, tool: Tool[..., Any], kwargs: dict[str, Any]) -> None:
        token = self._run_token = self.token.child("run", tool.timeout)  # its time starts now, not while it waited
        context = self._make_context(tool, token)
        if tool.context_name is not None:
            kwargs = {**kwargs, tool.context_name: context}
        self._started_at = time.time()
        self._around.emit(ToolStarted(self.request.id, tool.name, self.request.arguments))
        self._around.tell()  # before it begins: if the process dies in it, nobody is to believe that it did not start
        grace = self._around.grace if tool.grace is None else tool.grace
        run = self._run = Run(tool, kwargs, token, context, grace, self._ended_late)
        try:
            with wake_on_cancel(token, self._hear_stop):
                await run.run()
        finally:
            context.detach()
        self.settle_now()

    def _hear_stop(self) -> None:
        """Runs in the thread that cancels."""
        self._note_stop()
        call_in_loop(self._around.loop, self._announce_stop)

    def _announce_stop(self) -> None:
        """Tell once that it was told to stop; in the loop, and before its end is told."""
        token = self._run_token
        if token is None or self._is_announced or self.outcome is not None:
            return
        self._is_announced = True
        self._around.emit(ToolCancelling(self.request.id, self.request.name, token.reason or "", token.detail))

    def settle_now(self) -> None:
        """Give the call its outcome, whatever state it is in."""
        run, token = self._run, self._run_token
        if self.outcome is not None:
            return
        if run is None or token is None:
            self._settle("not_started")
            return
        run.leave()
        if not run.is_whole:
            self._settle_stopped(run, token)
        elif run.error is None:
            self._settle("completed", run.content)
        else:
            self._settle("failed", run.content, detail=error_text(run.error))

    def _settle_stopped(self, run: Run, token: CancellationToken) -> None:
        self._note_stop()  # it may have ended before those who cancel came round to telling it
        self._announce_stop()
        content = run.content
        if not run.rungs:
            run.rungs.append("cooperated")
        status: Status
        if token.reason == "timeout" and not self.token.is_cancelled:
            status = "timed_out"
        elif not run.has_ended:
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
            rungs=list(self._run.rungs) if self._run is not None else [],
        )
        self._stop_watch()
        after = None if self._stopped_at is None else time.monotonic() - self._stopped_at
        self._around.emit(ToolFinished(outcome, after))
        # From here on a late end adds itself; one that came before is added now. In either case after the event above.
        with self._lock:
            self.outcome = outcome
            late = self._early_late
        if late is not None:
            self._tell_late(outcome, *late)

    def _ended_late(self, content: Content, error: BaseException | None) -> None:
        """The abandoned function has ended; may be called in any thread, when nobody waits any more."""
        with self._lock:
            outcome = self.outcome
            if outcome is None:
                self._early_late = (content, error)
                return
        self._tell_late(outcome, content, error)

    def _tell_late(self, outcome: ToolOutcome, content: Content, error: BaseException | None) -> None:
        now = time.monotonic()
        seconds = now - (self._stopped_at if self._stopped_at is not None else now)
        outcome.late = LateEnd(time.time(), seconds, content, error_text(error) if error is not None else "")
        self._around.emit(ToolFinishedLate(outcome))
        self._around.on_late(outcome)


_STOPPED: frozenset[Literal["denied", "not_started"]] = frozenset({"denied", "not_started"})
