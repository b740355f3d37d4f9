"""One call of one tool, stopped or steered at a chosen moment, run as the product runs it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

from halter import CancellationToken, ToolOutcome
from halter.models.model import ToolCall
from halter.tools import collect_tools
from halter.tools.batch import Batch, Surroundings
from halter.tools.events import ToolEvent, ToolFinished, ToolProgress, ToolStarted
from halter.tools.keep import Keeper

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

    def __init__(self, tool: Any, reason: str = "stop", keeper: Keeper | None = None, **arguments: Any) -> None:
        self.reason = reason
        self.token = CancellationToken(name="turn")
        self.step = self.token.child("step")
        self.events: list[ToolEvent] = []
        self.progress: list[str] = []
        self.stop_at: type[ToolEvent] | None = None
        self.keeper = Keeper() if keeper is None else keeper
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
            self.stop()

    async def outcome(self) -> ToolOutcome:
        around = Surroundings(self.tools, listener=self._hear, keeper=self.keeper)
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


def call(tool: Any, keeper: Keeper | None = None, **arguments: Any) -> ToolOutcome:
    """Run one call to its end."""
    return asyncio.run(Trial(tool, keeper=keeper, **arguments).outcome())


def text_of(outcome: ToolOutcome) -> str:
    content = outcome.content
    return content if isinstance(content, str) else "\n".join(getattr(part, "text", "") for part in content)
