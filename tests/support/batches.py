"""A batch of some tools, for the tests of batches."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from halter import CancellationToken, ToolOutcome, tool
from halter.events.tools import ToolEvent, ToolFinishedLate
from halter.models.types import ToolCall
from halter.tools import ApprovalRequest, collect_tools
from halter.tools.run.batch import Batch, BatchEnvironment
from tests.support.waiting import wait_until

STRANGER = CancellationToken(name="stranger")
STRANGER.cancel("theirs")


class Unspeakable(Exception):
    """An error that cannot even be told."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@tool
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@tool(isolate=True)
def spin() -> None:
    """Never end, and never listen."""
    while True:
        pass


@tool(isolate=True)
def isolated_add(a: int) -> int:
    """Add one, elsewhere."""
    return a + 1


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main, 60))


def calls_of(*names: str, arguments: str = "{}") -> list[ToolCall]:
    return [ToolCall(f"call_{number}", name, arguments) for number, name in enumerate(names)]


class Probe:
    """A batch of some tools, with one token, and every event of it; *answer* answers what is asked for approval."""

    def __init__(self, *tools: Any, calls: list[ToolCall] | None = None, **options: Any) -> None:
        self.token = CancellationToken(name="turn")
        self.step = self.token.child("step")
        self.events: list[ToolEvent] = []
        self.asked: list[ApprovalRequest] = []
        self.tools = collect_tools(tools)
        most = options.pop("max_parallel", 32)
        if answer := options.pop("answer", None):
            options |= {"approve": "ask", "ask_approval": self._ask_approval}
        self._answer = answer
        environment = BatchEnvironment(self.tools, listener=self.events.append, **options)
        calls = calls or calls_of(*self.tools)
        self.batch = Batch(calls, environment, token=self.token, step=self.step, max_parallel=most)

    async def _ask_approval(self, request: ApprovalRequest) -> Any:
        self.asked.append(request)
        return await self._answer(request)

    @property
    def late(self) -> list[ToolOutcome]:
        """The outcomes of the calls that have ended late."""
        return [event.outcome for event in self.told(ToolFinishedLate)]

    async def run(self) -> list[ToolOutcome]:
        return await self.batch.run()

    def told(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def stopped_when(self, condition: Callable[[], object], reason: str = "interrupt") -> list[ToolOutcome]:
        """Run it, and stop it from another thread as soon as *condition* holds."""

        def stop() -> None:
            try:
                wait_until(condition)
            finally:  # should it never hold, the outcomes will tell why
                self.token.cancel(reason, detail="typed")

        threading.Thread(target=stop).start()
        return await self.run()


def statuses(outcomes: list[ToolOutcome]) -> list[str]:
    return [outcome.status for outcome in outcomes]
