"""One execution of a tool's function: on a thread, in a task or in a process, and the steps that stop it.

The steps: let it cooperate (a function that checks its token gets a grace period), unblock it by ending what it waits
for, kill it (if isolated), abandon it (threads and tasks that do not end). Each kind runs until it has ended or is
abandoned, and records which.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from typing import TYPE_CHECKING, Any, Final

from halter.cancel.detach import run_detached
from halter.cancel.isolation.api import IsolatedCall
from halter.cancel.threads.blocking import BlockingCall, Late
from halter.cancel.token import Cancelled
from halter.tools.content import Pieces, close_unused, pieces_of
from halter.tools.run.loop_watchdog import WatchedCall
from halter.tools.run.tool_loop import run_on_tool_loop

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence

    from halter.cancel.token import CancellationToken
    from halter.tools.content import Content, Piece
    from halter.tools.context import ToolContext
    from halter.tools.outcome import StopStep
    from halter.tools.run.tool_loop import ToolLoop
    from halter.tools.tool import Tool

# Seconds. A function that was unblocked returns within a millisecond or two, or not at all.
_UNBLOCK_TIMEOUT: Final = 0.012
# An isolated function is killed after its grace. Seconds to wait for the end of its process.
_KILL_TIMEOUT: Final = 0.1


class ToolExecution:
    """One launched function. After ``run()``: whether it has ended, its result or error, what it took to stop it."""

    def __init__(  # noqa: PLR0917
        self,
        tool: Tool[..., Any],
        kwargs: dict[str, Any],
        token: CancellationToken,
        context: ToolContext,
        grace: float,
        on_late: Callable[[Content, BaseException | None], object],
        get_tool_loop: Callable[[], ToolLoop] | None = None,
    ) -> None:
        self.error: BaseException | None = None
        self.has_ended = False
        self.is_complete = False  # it had ended before the stop: what it returned or raised is its result
        self.stop_steps: list[StopStep] = []
        self._tool = tool
        self._kwargs = kwargs
        self._token = token
        self._context = context
        self._grace = grace
        self._on_late = on_late
        self._get_tool_loop = get_tool_loop
        self._is_generator = tool.kind == "generator"  # or has turned out to be one
        self._is_abandoned = False  # from then on, its results are late
        # Pieces are added by the function's thread and read by the loop's. The lock is held only to add up pieces that
        # are plain text and media already: never while code of the tool runs.
        self._lock = threading.Lock()
        self._pieces = Pieces()
        self._late_pieces = Pieces()

    @property
    def content(self) -> Content:
        """What it has returned or yielded so far."""
        with self._lock:
            return self._pieces.content()

    async def run(self) -> None:
        """Run the function until it has ended, or until the last step to stop it is taken.

        A boundary: a function that cannot be started, because the stop came first, there is no thread or its arguments
        cannot be sent to a process, has ended with that error.
        """
        try:
            if self._tool.kind in ("coroutine", "async_generator"):
                await self._run_task(self._work_in_task)
            elif self._tool.isolate:
                await self._run_isolated()
            else:
                await self._run_on_thread()
        except (Exception, Cancelled) as exc:  # noqa: BLE001
            self._end((), exc, is_complete=not self._token.is_cancelled)

    def _add(self, value: object) -> None:
        pieces = pieces_of(value)
        with self._lock:
            (self._late_pieces if self._is_abandoned else self._pieces).extend(pieces)

    def _end(self, pieces: Sequence[Piece], error: BaseException | None, *, is_complete: bool) -> None:
        """The function has ended: in time, or after it was abandoned; the lock decides which, once."""
        with self._lock:
            if not self._is_abandoned:
                self._pieces.extend(pieces)
                self.error = error
                self.is_complete = is_complete
                self.has_ended = True
                return
            self._late_pieces.extend(pieces)
            content = self._late_pieces.content()
        self._on_late(content, None if isinstance(error, (Cancelled, asyncio.CancelledError)) else error)

    def abandon(self) -> None:
        """Stop waiting: a function that has not ended by now is abandoned."""
        with self._lock:
            if not self.has_ended and not self._is_abandoned:
                self._is_abandoned = True
                self.stop_steps.append("abandoned")

    # -- on a thread ----------------------------------------------------------------------------

    async def _run_on_thread(self) -> None:
        @functools.wraps(self._tool.fn)  # its name is logged if its thread does not come back
        def body() -> object:
            return self._call()

        call = BlockingCall(body, (), {}, self._token, on_late=self._end_late)
        await call.run_and_wait(lambda: self._grace if self._uses_token(call) else 0.0, _UNBLOCK_TIMEOUT)
        if call.was_unblocked:
            self.stop_steps.append("cut")
        value = self._settle(call)
        if value is not None:  # a plain function in front of a coroutine or an async generator
            await self._run_task(lambda: self._finish(value))
            close_unused(value)  # the stop came before its first step

    def _settle(self, call: BlockingCall) -> object:
        """Take the outcome of a call that was not stopped; one that was has ended by itself, or is abandoned now.

        A boundary: what the tool raised is data.
        """
        try:
            given: object = call.settle()
        except BaseException as exc:  # noqa: BLE001
            if call.is_delivered:
                self._end((), exc, is_complete=True)
            else:
                self.abandon()
            return None
        if not isinstance(given, list):
            return given
        self._end(given, None, is_complete=True)
        return None

    def _end_late(self, late: Late) -> None:
        close_unused(late.value)
        self._end(late.value if isinstance(late.value, list) else (), late.error, is_complete=False)

    def _uses_token(self, call: BlockingCall) -> bool:
        return self._is_generator or call.token.was_checked or self._context.was_used

    def _call(self) -> list[Piece] | Awaitable[object] | AsyncGenerator[object, Any]:
        """Run a function, and turn its result into text here, in its own thread: that may take long as well.

        What it returns decides what it is: a decorator may hide a generator behind a plain function.
        """
        value = self._tool.fn(**self._kwargs)
        if inspect.isawaitable(value) or inspect.isasyncgen(value):
            return value
        return self._iterate(value) if inspect.isgenerator(value) else pieces_of(value)

    def _iterate(self, generator: Generator[object, Any, object]) -> list[Piece]:
        """Run a generator; each of its yields is a partial result and a checkpoint."""
        self._is_generator = True
        try:
            while True:
                try:
                    item = next(generator)
                except StopIteration as end:
                    return pieces_of(end.value)
                self._add(item)
                self._token.raise_if_cancelled()
        finally:
            generator.close()

    # -- in a process ---------------------------------------------------------------------------

    async def _run_isolated(self) -> None:
        isolated = IsolatedCall(self._tool, (), self._kwargs, self._grace)

        @functools.wraps(self._tool.fn)
        def body() -> list[Piece]:
            return pieces_of(isolated.run())

        call = BlockingCall(body, (), {}, self._token, abort=isolated.stop, on_late=self._end_late)
        await call.run_and_wait(lambda: isolated.grace + _KILL_TIMEOUT)
        if isolated.was_killed:
            self.stop_steps.append("killed")
        self._settle(call)

    # -- in a task ------------------------------------------------------------------------------

    async def _work_in_task(self) -> None:
        await self._finish(self._tool.fn(**self._kwargs))

    async def _finish(self, value: Any) -> None:
        """Run an async generator, or await a coroutine; one may return the other, behind a decorator."""
        if not inspect.isasyncgen(value):
            value = await value
        if not inspect.isasyncgen(value):
            self._add(value)
            return
        try:
            async for item in value:
                self._add(item)
                self._token.raise_if_cancelled()
        finally:
            await value.aclose()

    async def _run_task(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run *work* in a task, here or on the tool loop. The task records its own end, also if that is late."""
        try:
            if self._get_tool_loop is None:
                name = f"the tool {self._tool.name!r}"
                await run_detached(
                    lambda: self._record(work), self._token, grace=self._grace, name=name, on_left=self.abandon
                )
            else:
                await run_on_tool_loop(
                    lambda: self._record(work),
                    self._token,
                    grace=self._grace,
                    get_loop=self._get_tool_loop,
                    on_left=self.abandon,
                )
        except Cancelled:
            if not self._token.is_cancelled:
                raise
        if not self.has_ended and not self._is_abandoned:  # the stop came before the task's first step
            self._end((), None, is_complete=False)

    async def _record(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run *work* and record its end. A boundary: what the tool raised is data."""
        error: BaseException | None = None
        try:
            await WatchedCall(self._tool.name, self._tool.fn).watch(work())
        except BaseException as exc:  # noqa: BLE001  (SystemExit out of a task would end the loop of everybody)
            error = exc
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            self._token.cancel("external", detail="its task was cancelled")  # no effect if it was the stop
        self._end((), error, is_complete=not self._token.is_cancelled)
        if isinstance(error, KeyboardInterrupt):  # meant for the program
            raise error
