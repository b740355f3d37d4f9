"""A batch: the calls that a model asked for in one step, run in parallel, each stoppable alone.

Each call has its own token: below *step* if a steer may break it, directly below *token* if it is to finish first. A
batch ends when all its calls have ended, or at the stop plus a short grace for those that check their token. Outcomes
come in the order of the calls, exactly one for each, and those of calls that had ended before the stop are complete.

A foreign cancellation of the task that runs the batch is a stop with reason "external": the calls are stopped as for
any other reason, each has its outcome, and then the cancellation is raised.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from halter.cancel.processes import guardian
from halter.cancel.registration import run_first_on_cancel
from halter.cancel.switch_interval import lower
from halter.cancel.token import Cancelled
from halter.tools.resources import SessionResources
from halter.tools.run.call_run import CallRun
from halter.tools.run.scheduler import MAX_PARALLEL, Scheduler

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from halter.cancel.token import CancellationToken
    from halter.events.tools import ToolEvent, ToolStarted
    from halter.models.types import ToolCall
    from halter.tools.approval import ApprovalRequest, Ask, Policy
    from halter.tools.file_history import FileHistory
    from halter.tools.outcome import ToolOutcome
    from halter.tools.run.tool_loop import ToolLoop
    from halter.tools.tool import Tool

_log = logging.getLogger(__name__)
GRACE: Final = 0.1  # seconds for a stopped call to return what it has


@dataclass(slots=True)
class BatchEnvironment:
    """What the calls of a batch may use. Everything but the tools is optional."""

    tools: Mapping[str, Tool[..., Any]]
    session_id: str = ""
    deps: Any = None
    approve: Policy = None
    # Puts an approval to a person, for the policy "ask". Whoever does that also reports that it was asked and answered.
    ask_approval: Ask | None = None
    # What a person has allowed for the session: the requests that they were asked.
    allowed: Callable[[], Sequence[ApprovalRequest]] = tuple
    ask: Callable[[str, list[str] | None], Awaitable[Any]] | None = None
    delegate: Callable[[Any, str, CancellationToken], Awaitable[Any]] | None = None
    begin: Callable[[Any, str, CancellationToken | None, float | None], Awaitable[Any]] | None = None
    resources: SessionResources = field(default_factory=SessionResources)
    grace: float = GRACE
    # Called with each event, in the thread in which it happens: the loop's, a tool's, or that of an abandoned call.
    listener: Callable[[ToolEvent], object] | None = None
    # Awaited before a function is launched, until its start is durable. False: the turn was stopped, so do not launch.
    # If it raises, the call is not launched and has failed. Without it the listener gets `ToolStarted`.
    start: Callable[[ToolStarted], Awaitable[bool]] | None = None
    # Awaited before a call of a tool that may change files, with its file history and the files that it names, so that
    # they can be restored. Returns a note for people.
    before_change: Callable[[FileHistory, Sequence[str], CancellationToken], Awaitable[str]] | None = None
    # The loop in which async tools run; None: the running one.
    tool_loop: Callable[[], ToolLoop] | None = None

    def emit(self, event: ToolEvent) -> None:
        """Pass an event to the listener, in this thread. A boundary: a listener that fails must not stop the calls."""
        try:
            if self.listener is not None:
                self.listener(event)
        except (Exception, Cancelled, asyncio.CancelledError):  # noqa: BLE001  (a boundary)
            _log.exception("a listener failed with %s", type(event).__name__)


class Batch:
    """The calls of one step."""

    def __init__(
        self,
        calls: Sequence[ToolCall],
        environment: BatchEnvironment,
        *,
        token: CancellationToken,
        step: CancellationToken | None = None,
        max_parallel: int = MAX_PARALLEL,
    ) -> None:
        breakable = token if step is None else step
        self._was_run = False
        self._breakable = breakable
        self._scheduler = Scheduler(max_parallel)
        self._calls = [
            CallRun(
                order,
                call,
                (token if _must_finish(call, environment) else breakable).child(f"call {call.id}"),
                environment,
            )
            for order, call in enumerate(calls)
        ]

    async def run(self) -> list[ToolOutcome]:
        """Run all calls and return their outcomes, in order."""
        if self._was_run:
            raise RuntimeError("this batch has already run; make a new one for each step")
        self._was_run = True
        await guardian.started()  # a tool may start processes of its own
        # The calls may hold the interpreter. Lowered at the stop, and for what follows: what waits for the batch.
        with run_first_on_cancel(self._breakable, lower):
            await self._run_all()
        if self._breakable.is_cancelled:
            lower()
        return self.settle_all()

    async def _run_all(self) -> None:
        tasks = [asyncio.ensure_future(call.drive(self._scheduler)) for call in self._calls]
        cancellation: asyncio.CancelledError | None = None
        pending = set(tasks)
        while pending:
            try:
                _, pending = await asyncio.wait(pending)
            except asyncio.CancelledError as exc:
                cancellation = exc
                self._stop_all()
                pending = {task for task in tasks if not task.done()}
        if cancellation is not None:
            raise cancellation
        for task in tasks:
            task.result()  # a defect of ours must not be hidden

    def _stop_all(self) -> None:
        for call in self._calls:
            call.token.cancel("external", detail="the task that awaited the batch was cancelled")

    def settle_all(self) -> list[ToolOutcome]:
        """Settle every call now and return the outcomes, in order: a call that still runs is abandoned by this.

        For when `run()` was left by an exception. After it, this changes nothing and only returns the outcomes.
        """
        for call in self._calls:
            call.settle_now()
        return [call.outcome for call in self._calls if call.outcome is not None]

    def cancel_call(self, call_id: str, reason: str = "stop", *, detail: str = "") -> bool:
        """Stop one call, from any thread; the others go on. True if this did it."""
        stopped = [call.token.cancel(reason, detail=detail) for call in self._calls if call.request.id == call_id]
        return any(stopped)


def _must_finish(call: ToolCall, environment: BatchEnvironment) -> bool:
    tool = environment.tools.get(call.name)
    return tool is not None and tool.on_steer == "finish"
