"""Calls of tools as a session makes them, each of which can be stopped at a chosen moment.

    with ToolCalls(search) as calls:
        outcome = calls.call_stopped(Stop("steer", report="page 2"), "search", query="halter")
    assert outcome.status == "partial"

With `MOMENTS` one test covers all of them. To stop a call at every line of a tool, give `interrupt_everywhere` a
scenario that awaits `ToolCalls.run(call, Stop(reason, token))`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

from halter.cancel.token import CancellationToken
from halter.events.tools import ToolEvent, ToolFinished, ToolProgress, ToolStarted
from halter.models.types import ToolCall
from halter.tools.resources import SessionResources
from halter.tools.run.batch import GRACE, Batch, BatchEnvironment
from halter.tools.toolset import collect_tools

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halter.tools.approval import Ask, Policy
    from halter.tools.outcome import ToolOutcome

Moment: TypeAlias = Literal["before", "start", "middle", "twice", "end"]
MOMENTS: Final[tuple[Moment, ...]] = ("before", "start", "middle", "twice", "end")


@dataclass(frozen=True)
class Stop:
    """Why and when a call is stopped.

    The reason "steer" cancels the step, as `session.steer()` does, and every other one the turn, as `session.stop()`
    does. The moments, and what the outcome is:

    * "before": before the call begins. It is "not_started".
    * "start": as soon as the function was launched.
    * "middle": inside the `ctx.report()` of a text that contains *report*, so that the tool meets the stop at its next
      `yield` or wait; a call that never reports it raises AssertionError. Or when *wait* returns; it runs in a thread
      of its own, and what it raises is raised by the call. A tool that stops in time is "partial" or "cancelled".
    * "twice": as "middle", and then again, also for other reasons. The first one is the reason of the outcome.
    * "end": when the outcome is there. It stays "completed".
    * a token: when this token is cancelled.
    """

    reason: str = "interrupt"
    at: Moment | CancellationToken = "middle"
    report: str | None = None
    wait: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.at, CancellationToken) and self.at not in MOMENTS:
            raise ValueError(f"{self.at!r} is not a moment; use a token or one of {', '.join(MOMENTS)}")
        if self.at in ("middle", "twice") and self.report is None and self.wait is None:
            msg = f'a stop at "{self.at}" needs report= or wait=, which say when the call is in the middle of its work'
            raise ValueError(msg)


class ToolCalls:
    """Calls of some tools, one after another, as one session makes them.

    What the tools keep lasts from one call to the next. It is closed with this object, unless *resources* were given.
    A call that takes longer than *timeout* seconds raises TimeoutError.
    """

    def __init__(
        self,
        *tools: Any,
        resources: SessionResources | None = None,
        grace: float = GRACE,
        approve: Policy = None,
        ask_approval: Ask | None = None,
        timeout: float = 60.0,
    ) -> None:
        self.resources = SessionResources() if resources is None else resources
        self.events: list[ToolEvent] = []  # of the last call
        self._owns_resources = resources is None
        self._timeout = timeout
        self._environment = BatchEnvironment(
            collect_tools(tools), resources=self.resources, grace=grace, approve=approve, ask_approval=ask_approval
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._owns_resources:
            self.resources.close()

    @property
    def reports(self) -> list[str]:
        """What the last call has reported so far."""
        return [event.text for event in self.events if isinstance(event, ToolProgress)]

    def call(self, name: str, /, **arguments: Any) -> ToolOutcome:
        """Make one call and return its outcome. In async code, await `run()`."""
        return self.call_stopped(None, name, **arguments)

    def call_stopped(self, stop: Stop | None, name: str, /, **arguments: Any) -> ToolOutcome:
        """Make one call and stop it as *stop* says."""
        return asyncio.run(self.run(ToolCall("call_1", name, json.dumps(arguments)), stop))

    async def run(self, call: ToolCall, stop: Stop | None = None) -> ToolOutcome:
        """Make one call, as the model asked for it, and stop it as *stop* says."""
        self.events = events = []
        token = CancellationToken(name="turn")
        stopping = _Stopping(stop, token, asyncio.get_running_loop())

        def listen(event: ToolEvent) -> None:
            events.append(event)
            stopping.see(event)

        batch = Batch([call], replace(self._environment, listener=listen), token=token, step=stopping.step)
        async with asyncio.timeout(self._timeout):
            with stopping.begun():
                [outcome] = await batch.run()
            await asyncio.sleep(0)  # the last report may be on its way
            await stopping.ended(outcome, self.reports)
        return outcome


class _Stopping:
    """The stop of one call, if there is one."""

    def __init__(self, stop: Stop | None, token: CancellationToken, loop: asyncio.AbstractEventLoop) -> None:
        self.step = token.child("step")
        self._token = token
        self._stop = stop
        self._at = None if stop is None else stop.at
        self._loop = loop
        self._waited = asyncio.Event()
        self._waited.set()
        self._error: BaseException | None = None
        self._is_due = False  # the moment has come

    @contextlib.contextmanager
    def begun(self) -> Iterator[None]:
        """Stop now, or prepare for the moment to come."""
        stop = self._stop
        if isinstance(self._at, CancellationToken):
            with self._at.on_cancel(self._cancel):
                yield
            return
        if stop is not None and stop.wait is not None and self._at in ("middle", "twice"):
            self._waited.clear()
            threading.Thread(target=self._wait, args=(stop.wait,), name="stop of a test", daemon=True).start()
        if self._at == "before":
            self._cancel()
        yield

    def see(self, event: ToolEvent) -> None:
        """Stop if this event is the moment, in whatever thread it happens."""
        if self._at in ("middle", "twice") and not self._is_due and self._is_reported(event):
            self._is_due = True
            self._cancel()  # before report() returns: what the tool does next, it does after the stop
        elif (self._at == "start" and isinstance(event, ToolStarted)) or (
            self._at == "end" and isinstance(event, ToolFinished)
        ):
            self._call_soon(self._cancel)  # what has started is launched by then

    def _is_reported(self, event: ToolEvent) -> bool:
        report = None if self._stop is None else self._stop.report
        return report is not None and isinstance(event, ToolProgress) and report in event.text

    def _wait(self, wait: Callable[[], object]) -> None:
        """Wait for the moment, in a thread. A boundary: what the test's function raises is raised by the call."""
        try:
            wait()
        except BaseException as exc:  # noqa: BLE001  (a boundary)
            self._error = exc
        self._cancel()
        self._call_soon(self._waited.set)

    def _call_soon(self, function: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the call is over, and its loop is closed
            self._loop.call_soon_threadsafe(function)

    def _cancel(self) -> None:
        assert self._stop is not None
        node = self.step if self._stop.reason == "steer" else self._token
        node.cancel(self._stop.reason, detail="by a test")
        if self._at == "twice":
            if node.cancel(self._stop.reason, detail="again") or self.step.cancel("steer", detail="again"):
                self._error = AssertionError("a token was cancelled twice")
            self._token.cancel("interrupt", detail="again")

    async def ended(self, outcome: ToolOutcome, reports: list[str]) -> None:
        """Wait for the thread that waited, and raise what it has raised, or that the moment never came."""
        await self._waited.wait()
        stop = self._stop
        if stop is not None and stop.wait is None and self._at in ("middle", "twice") and not self._is_due:
            self._error = AssertionError(f"the call never reported {stop.report!r}, so it was not stopped: {reports}")
        if self._error is not None:
            self._error.add_note(f"the outcome of the call: {outcome}")
            raise self._error
