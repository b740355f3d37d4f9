"""A batch: the calls that a model asked for in one step, run side by side, each stoppable alone.

Each call has its own token: below *step* if a steer may break it, directly below *token* if it is to finish first. A
batch ends when all its calls have ended, or at the stop plus a short grace for those who listen. Outcomes come in the
order of the calls, exactly one for each, and those of calls that had ended before the stop are whole.

A foreign cancellation of the task that runs the batch is a stop with reason "external": the ladder is gone down as for
any other, the outcomes are complete, and then the cancellation is raised.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from halter.cancel.token import Cancelled, call_in_loop
from halter.tools.call import Call
from halter.tools.keep import Keeper
from halter.tools.slots import MOST_AT_ONCE, Slots

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from halter.cancel.token import CancellationToken
    from halter.models.model import ToolCall
    from halter.tools.approval import Ask, Policy
    from halter.tools.events import ToolEvent
    from halter.tools.outcome import ToolOutcome
    from halter.tools.tool import Tool

_log = logging.getLogger(__name__)
GRACE: Final = 0.1


@dataclass(slots=True)
class Surroundings:
    """What the calls of a batch have around them, all of it optional but the tools."""

    tools: Mapping[str, Tool[..., Any]]
    session_id: str = ""
    approve: Policy = None
    ask_approval: Ask | None = None
    ask: Callable[[str, list[str] | None], Awaitable[Any]] | None = None
    delegate: Callable[[Any, str, CancellationToken], Awaitable[Any]] | None = None
    begin: Callable[[Any, str, CancellationToken | None], Awaitable[Any]] | None = None
    keeper: Keeper = field(default_factory=Keeper)
    grace: float = GRACE
    listener: Callable[[ToolEvent], object] | None = None  # called in the loop
    late_hook: Callable[[ToolOutcome], object] | None = None  # called in any thread
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    untold: deque[ToolEvent] = field(default_factory=deque, init=False)  # so a copy has its own

    def emit(self, event: ToolEvent) -> None:
        """Tell of an event, from any thread, in order; soon, in the loop."""
        if self.listener is not None:
            self.untold.append(event)
            call_in_loop(self.loop, self.tell)

    def tell(self) -> None:
        """Hand over what was emitted, now; in the loop. A boundary: a listener that fails must not stop the calls."""
        while self.untold:
            event = self.untold.popleft()
            try:
                if self.listener is not None:
                    self.listener(event)
            except Exception:  # noqa: BLE001  (a boundary)
                _log.exception("a listener failed with %s", type(event).__name__)
            except (Cancelled, asyncio.CancelledError) as error:  # as the loop does with what a callback raises
                self.loop.call_exception_handler({"message": "a listener was cancelled", "exception": error})

    def on_late(self, outcome: ToolOutcome) -> None:
        """Hand a late end over. A boundary, in whatever thread the abandoned call ended."""
        try:
            if self.late_hook is not None:
                self.late_hook(outcome)
        except Exception:  # noqa: BLE001  (a boundary)
            _log.exception("the hook for late results failed")


class Batch:
    """The calls of one step."""

    def __init__(
        self,
        calls: Sequence[ToolCall],
        around: Surroundings,
        *,
        token: CancellationToken,
        step: CancellationToken | None = None,
        most_at_once: int = MOST_AT_ONCE,
    ) -> None:
        breakable = token if step is None else step
        self._was_run = False
        self._slots = Slots(most_at_once)
        self._calls = [
            Call(order, call, (token if _must_finish(call, around) else breakable).child(f"call {call.id}"), around)
            for order, call in enumerate(calls)
        ]

    async def run(self) -> list[ToolOutcome]:
        """Run all calls and return their outcomes, in order."""
        if self._was_run:
            msg = "this batch was run already; make a new one for each step"
            raise RuntimeError(msg)
        self._was_run = True
        tasks = [asyncio.ensure_future(call.drive(self._slots)) for call in self._calls]
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
            task.result()  # a defect of ours is not to be hidden
        return self.outcomes

    def _stop_all(self) -> None:
        for call in self._calls:
            call.token.cancel("external", detail="the task that awaited the batch was cancelled")

    @property
    def outcomes(self) -> list[ToolOutcome]:
        """One for each call, in order, at any instant; a call that runs is taken for abandoned, and is from then on."""
        for call in self._calls:
            call.settle_now()
        return [call.outcome for call in self._calls if call.outcome is not None]

    def cancel_call(self, call_id: str, reason: str = "stop", *, detail: str = "") -> bool:
        """Stop one call, from any thread; the others go on. True if this did it."""
        stopped = [call.token.cancel(reason, detail=detail) for call in self._calls if call.request.id == call_id]
        return any(stopped)


def _must_finish(call: ToolCall, around: Surroundings) -> bool:
    tool = around.tools.get(call.name)
    return tool is not None and tool.on_steer == "finish"
