"""A model inside the process, for tests without HTTP: it follows a script and pauses where the test asks it to.

    gate = Gate()
    model = ScriptedModel(["Let me ", gate, "see."], ToolCall("c1", "search", "{}"), ProviderError("no", status=400))

Each entry answers one request: a text, a call, an event, an error, a gate, or a list of these in order. What the
provider's stream would add (the start and pieces of a call, `Finished`) is added. A gate holds the stream until it is
opened; both sides of it may be on any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from halter.cancel.loop_bridge import run_in_thread
from halter.models.types import (
    Finished,
    ModelEvent,
    ModelRequest,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStarted,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

__all__ = ["Gate", "ScriptedModel", "SeenStream"]

_TIMEOUT = 10.0  # seconds


class Gate:
    """A place where a scripted stream waits until it is opened."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._lock = threading.Lock()
        self._open = False
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def open(self) -> None:
        """Open it, for good."""
        with self._lock:
            self._open = True
            waiting, self._waiting = self._waiting, []
        for loop, event in waiting:
            with contextlib.suppress(RuntimeError):  # its loop is closed
                loop.call_soon_threadsafe(event.set)

    def wait_reached(self, timeout: float = _TIMEOUT) -> None:
        """Wait until a stream has reached it."""
        if not self._reached.wait(timeout):
            raise TimeoutError(f"no stream came to this gate within {timeout:g} s")

    async def await_reached(self, timeout: float = _TIMEOUT) -> None:  # noqa: ASYNC109 - like the blocking version
        """Wait as `wait_reached` does, without blocking the loop."""
        await run_in_thread(lambda: self.wait_reached(timeout))

    async def _pass(self) -> None:
        event = asyncio.Event()
        with self._lock:
            if not self._open:
                self._waiting.append((asyncio.get_running_loop(), event))
            else:
                event.set()
        self._reached.set()
        await event.wait()


Step: TypeAlias = "str | ToolCall | ModelEvent | BaseException | Gate"


@dataclass
class SeenStream:
    """How one stream ended: `closed` means that its reader left, `cancelled` that its task was cancelled."""

    request: ModelRequest
    state: Literal["running", "finished", "closed", "cancelled", "failed"] = "running"
    events: int = 0


class ScriptedModel:
    """A `Model` that follows a script, one entry for each request."""

    def __init__(self, *script: Step | Sequence[Step], name: str = "scripted") -> None:
        self.name = name
        self.streams: list[SeenStream] = []
        self._script: list[Step | Sequence[Step]] = list(script)

    @property
    def requests(self) -> list[ModelRequest]:
        """All requests, in order."""
        return [seen.request for seen in self.streams]

    def script(self, *entries: Step | Sequence[Step]) -> None:
        """Add entries to the script."""
        self._script.extend(entries)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer with the next entry of the script."""
        seen = SeenStream(request)
        self.streams.append(seen)
        if len(self.streams) > len(self._script):
            seen.state = "failed"
            raise AssertionError(
                f"the script of this ScriptedModel has {len(self._script)} entries, and this is request "
                f"{len(self.streams)}; give it one entry for each request"
            )
        entry = self._script[len(self.streams) - 1]
        try:
            calls = 0
            event: ModelEvent | None = None
            for step in entry if isinstance(entry, list | tuple) else (entry,):
                if isinstance(step, Gate):
                    await step._pass()  # noqa: SLF001 - same module
                    continue
                for event in _events(step, calls):
                    seen.events += 1
                    yield event
                calls += isinstance(step, ToolCall)
            if not isinstance(event, Finished):
                seen.events += 1
                yield Finished("tool_calls" if calls else "stop", model=self.name)
        except GeneratorExit:
            seen.state = "closed"
            raise
        except asyncio.CancelledError:
            seen.state = "cancelled"
            raise
        except BaseException:
            seen.state = "failed"
            raise
        seen.state = "finished"


def _events(step: str | ToolCall | ModelEvent | BaseException, index: int) -> list[ModelEvent]:
    if isinstance(step, BaseException):
        raise step
    if isinstance(step, str):
        return [TextDelta(step)]
    if isinstance(step, ToolCall):
        return [
            ToolCallStarted(index, step.id, step.name),
            ToolCallDelta(index, step.arguments),
            ToolCallDone(index, step),
        ]
    return [step]
