"""A batch of some tools, for the tests of batches."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from halter import CancellationToken, ToolOutcome, tool
from halter.models.model import ToolCall
from halter.tools import collect_tools
from halter.tools.batch import Batch, Surroundings
from halter.tools.events import ToolEvent
from tests.helpers import wait_until

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
    """A batch of some tools, with one token, and everything that it told."""

    def __init__(self, *tools: Any, calls: list[ToolCall] | None = None, **options: Any) -> None:
        self.token = CancellationToken(name="turn")
        self.step = self.token.child("step")
        self.events: list[ToolEvent] = []
        self.late: list[ToolOutcome] = []
        self.tools = collect_tools(tools)
        most = options.pop("most_at_once", 32)
        around = Surroundings(self.tools, listener=self.events.append, late_hook=self.late.append, **options)
        self.batch = Batch(calls or calls_of(*self.tools), around, token=self.token, step=self.step, most_at_once=most)

    async def run(self) -> list[ToolOutcome]:
        outcomes = await self.batch.run()
        await asyncio.sleep(0)  # what was told last is still on its way
        return outcomes

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
