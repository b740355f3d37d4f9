"""One call of a tool, run as the product runs it, and stopped or steered at a chosen moment."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from halter import CancellationToken, ToolOutcome
from halter.events.tools import ToolEvent, ToolProgress, ToolStarted
from halter.models import ToolCall
from halter.tools import collect_tools
from halter.tools.resources import SessionResources
from halter.tools.run.batch import Batch, BatchEnvironment
from tests.support.waiting import wait_until

REASONS = ["stop", "steer"]
MOMENTS = ["at rest", "at start", "in the middle", "at the end", "twice"]


class OneCall:
    """A call in a batch of its own; the resources may be shared with others, as in a session."""

    def __init__(
        self, tools: list[Any], name: str, arguments: str = "{}", resources: SessionResources | None = None
    ) -> None:
        self._tools = collect_tools(tools)
        self._request = ToolCall("call_0", name, arguments)
        self._keeper = SessionResources() if resources is None else resources
        self._token = CancellationToken(name="turn")
        self._step = self._token.child("step")
        self._moment = ""
        self._reason = "stop"
        self._condition: Callable[[], object] = lambda: True
        self.events: list[ToolEvent] = []

    def stop(self) -> None:
        """A stop cancels the turn, a steer only the step."""
        (self._step if self._reason == "steer" else self._token).cancel(self._reason, detail="typed")

    def _listen(self, event: ToolEvent) -> None:
        self.events.append(event)
        if isinstance(event, ToolStarted) and self._moment == "at start":
            asyncio.get_running_loop().call_soon(self.stop)  # it is launched by then

    def _stop_when(self) -> None:
        try:
            wait_until(self._condition, 30)
        finally:  # should it never hold, the outcome will tell why
            self.stop()
            if self._moment == "twice":
                self.stop()

    async def run(self) -> ToolOutcome:
        # A busy machine may take long to let it obey: how it is stopped is looked at, not how soon.
        around = BatchEnvironment(self._tools, listener=self._listen, resources=self._keeper, grace=30)
        batch = Batch([self._request], around, token=self._token, step=self._step)
        if self._moment == "at rest":
            self.stop()
        if self._moment in ("in the middle", "twice"):
            threading.Thread(target=self._stop_when).start()
        outcome = (await batch.run())[0]
        if self._moment == "at the end":
            self.stop()
        await asyncio.sleep(0)  # what was told last is still on its way
        return outcome

    def run_now(self) -> ToolOutcome:
        return asyncio.run(asyncio.wait_for(self.run(), 60))

    def stopped(self, moment: str, reason: str, when: Callable[[], object]) -> ToolOutcome:
        """Run it on a loop of its own, stopped at *moment*; *when* holds in the middle of its work."""
        self._moment, self._reason, self._condition = moment, reason, when
        return self.run_now()

    @property
    def reports(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, ToolProgress)]
