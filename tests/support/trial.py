"""One call of one tool, stopped or steered at a chosen moment, run as the product runs it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

from halter import CancellationToken, ToolOutcome
from halter.events.tools import ToolEvent, ToolFinished, ToolProgress, ToolStarted
from halter.models.types import ToolCall
from halter.tools import collect_tools
from halter.tools.resources import SessionResources
from halter.tools.run.batch import Batch, BatchEnvironment

REASONS = ("stop", "steer")
MOMENTS = ("rest", "start", "middle", "twice", "end")
STOPPED = ("partial", "cancelled")
STATUSES = {
    "rest": ("not_started",),
    "start": STOPPED,
    "middle": STOPPED,
    "twice": STOPPED,
    "end": ("completed",),
}
_PATIENCE = 60.0


class Trial:
    """A batch of one call. `stop()` may be called from any thread."""

    def __init__(
        self, tool: Any, reason: str = "stop", resources: SessionResources | None = None, **arguments: Any
    ) -> None:
        self.reason = reason
        self.token = CancellationToken(name="turn")
        self.step = self.token.child("step")
        self.events: list[ToolEvent] = []
        self.progress: list[str] = []
        self.stop_at: type[ToolEvent] | None = None
        self.resources = SessionResources() if resources is None else resources
        self.tools = collect_tools([tool])
        self.call = ToolCall("call_1", tool.name, json.dumps(arguments))

    def stop(self) -> bool:
        node = self.step if self.reason == "steer" else self.token
        return node.cancel(self.reason, detail="typed")

    def _hear(self, event: ToolEvent) -> None:
        self.events.append(event)
        if isinstance(event, ToolProgress):
            self.progress.append(event.text)
        if self.stop_at is not None and isinstance(event, self.stop_at):
            asyncio.get_running_loop().call_soon(self.stop)  # a call that starts is launched by then

    async def outcome(self) -> ToolOutcome:
        # A busy machine may take long to let it obey: how it is stopped is looked at, not how soon.
        around = BatchEnvironment(self.tools, listener=self._hear, resources=self.resources, grace=_PATIENCE / 2)
        batch = Batch([self.call], around, token=self.token, step=self.step)
        async with asyncio.timeout(_PATIENCE):
            [outcome] = await batch.run()
        await asyncio.sleep(0)  # what was told last is still on its way
        return outcome

    async def outcome_at(self, moment: str, middle: Callable[[], object] | None = None) -> ToolOutcome:
        """Stop it at that moment; *middle* blocks until the call is in the middle of its work."""
        if moment == "rest":
            self.stop()
        elif moment == "start":
            self.stop_at = ToolStarted
        elif moment == "end":
            self.stop_at = ToolFinished
        else:
            assert middle is not None
            threading.Thread(target=self._stop_in, args=(middle, moment == "twice"), daemon=True).start()
        outcome = await self.outcome()
        assert outcome.status in STATUSES[moment], outcome
        if moment != "end":
            assert outcome.reason == self.reason
        return outcome

    def _stop_in(self, middle: Callable[[], object], is_twice: bool) -> None:
        try:
            middle()
        finally:  # should it never be there, the outcome will tell why
            self.stop()
            if is_twice:
                assert not self.stop()
                assert not self.step.cancel("steer")


def call(tool: Any, resources: SessionResources | None = None, **arguments: Any) -> ToolOutcome:
    """Run one call to its end."""
    return asyncio.run(Trial(tool, resources=resources, **arguments).outcome())


def text_of(outcome: ToolOutcome) -> str:
    content = outcome.content
    return content if isinstance(content, str) else "\n".join(getattr(part, "text", "") for part in content)
