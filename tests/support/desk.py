"""A session's worth of calls, run as the product runs them; stopped at chosen points."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from halter import CancellationToken, ToolOutcome
from halter.cancel.processes import guardian, registry
from halter.events.tools import ToolEvent, ToolProgress, ToolStarted
from halter.models import ToolCall
from halter.tools import collect_tools
from halter.tools.resources import SessionResources
from halter.tools.run.batch import Batch, BatchEnvironment
from tests.support.processes import open_descriptors
from tests.support.waiting import wait_until


class Desk:
    """Calls of some tools, one after another. What they keep lasts from one to the next, and is closed at the end."""

    def __init__(self, *tools: Any, **options: Any) -> None:
        self.resources = SessionResources()
        self.events: list[ToolEvent] = []
        self._tools = collect_tools(tools)
        self._options = options

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.resources.close()

    def call(self, name: str, **arguments: Any) -> ToolOutcome:
        """Make one call and let it end."""
        return self.call_stopped(None, name, **arguments)

    def call_stopped(self, stop: Stop | None, name: str, **arguments: Any) -> ToolOutcome:
        """Make one call, and stop it as *stop* says."""
        return asyncio.run(asyncio.wait_for(self._call(stop, name, arguments), 60))

    async def _call(self, stop: Stop | None, name: str, arguments: dict[str, Any]) -> ToolOutcome:
        token = CancellationToken(name="turn")
        step = token.child("step")
        self.events = []
        loop = asyncio.get_running_loop()

        def listen(event: ToolEvent) -> None:
            self.events.append(event)
            if stop is not None and stop.is_heard(event):
                loop.call_soon_threadsafe(stop.pull, token, step)  # a call that starts is launched by then

        around = BatchEnvironment(self._tools, listener=listen, resources=self.resources, **self._options)
        batch = Batch([ToolCall("c1", name, json.dumps(arguments))], around, token=token, step=step)
        if stop is not None:
            stop.begin(token, step)
        [outcome] = await batch.run()
        await asyncio.sleep(0)  # what was told last is still on its way
        return outcome

    def kept(self) -> Any:
        """The one thing that the tools keep."""
        [thing] = self.resources._kept.values()
        return thing

    def progress(self) -> str:
        """What the last call reported."""
        return "".join(event.text for event in self.events if isinstance(event, ToolProgress))


class Stop:
    """A stop or a steer, at rest, at the start, when something is reported, or when something is so; once or twice."""

    def __init__(
        self,
        reason: str = "interrupt",
        *,
        at: str = "middle",
        word: str = "",
        when: Callable[[], object] | None = None,
        twice: bool = False,
    ) -> None:
        self._reason = reason
        self._at = at
        self._word = word
        self._when = when
        self._twice = twice

    def begin(self, token: CancellationToken, step: CancellationToken) -> None:
        if self._at == "rest":
            self.pull(token, step)
        elif self._when is not None:
            threading.Thread(target=self._pull_when, args=(self._when, token, step)).start()

    def is_heard(self, event: ToolEvent) -> bool:
        if self._at == "start":
            return isinstance(event, ToolStarted)
        return bool(self._word) and isinstance(event, ToolProgress) and self._word in event.text

    def _pull_when(self, when: Callable[[], object], token: CancellationToken, step: CancellationToken) -> None:
        try:
            wait_until(when)
        finally:  # should it never hold, the outcome will tell why
            self.pull(token, step)

    def pull(self, token: CancellationToken, step: CancellationToken) -> None:
        for _ in range(2 if self._twice else 1):
            (step if self._reason == "steer" else token).cancel(self._reason, detail="typed")


@contextmanager
def nothing_left() -> Iterator[None]:
    """Check that a block leaves no process, descriptor or unsettled family behind."""
    guardian.ensure()  # it starts with the first process, and stays
    roots, descriptors = registry.roots(), open_descriptors()
    yield
    wait_until(lambda: registry.roots() <= roots)
    wait_until(lambda: open_descriptors() <= descriptors)


# When it comes, and what the outcome may be then: (where, statuses).
MOMENTS = [
    ("rest", {"not_started"}),
    ("start", {"partial", "cancelled"}),
    ("middle", {"partial"}),
    ("twice", {"partial"}),
]
REASONS = ["interrupt", "stop", "steer"]
