"""A tool's function at work: on a thread, in a task or in a process of its own, and the ladder that stops it.

The ladder: cooperate (who listens gets its grace), cut what it waits for, kill (isolated ones), abandon (threads and
tasks that do not end). Each kind runs until it has ended or is left behind, and says which it was.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from typing import TYPE_CHECKING, Any, Final

from halter.cancel.blocking import BlockingCall, Late
from halter.cancel.isolate import Conversation
from halter.cancel.token import Cancelled, call_in_loop, wake_on_cancel
from halter.tools.content import Pieces, close_unused, pieces_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from halter.cancel.token import CancellationToken
    from halter.tools.content import Content, Piece
    from halter.tools.context import ToolContext
    from halter.tools.outcome import Rung
    from halter.tools.tool import Tool

# A thread whose children or sockets were cut comes back in a millisecond or two, or not at all.
_CUT_PATIENCE: Final = 0.012
# An isolated function is killed after its grace; how long we wait to see it dead.
_KILL_PATIENCE: Final = 0.1
# Tasks that were left behind. Asyncio refers to tasks weakly: one that nobody held could be collected in the middle.
_left: Final[set[asyncio.Task[None]]] = set()


class Run:
    """One launched function. After ``run()``: has it ended, what did it give or raise, what did it take to stop it."""

    def __init__(
        self,
        tool: Tool[..., Any],
        kwargs: dict[str, Any],
        token: CancellationToken,
        context: ToolContext,
        grace: float,
        on_late: Callable[[Content, BaseException | None], object],
    ) -> None:
        self.error: BaseException | None = None
        self.has_ended = False
        self.is_whole = False  # it had ended when the stop came: what it gave, or raised, is its result
        self.rungs: list[Rung] = []
        self._tool = tool
        self._kwargs = kwargs
        self._token = token
        self._context = context
        self._grace = grace
        self._on_late = on_late
        self._is_task_whole = False
        self._task_error: SystemExit | None = None
        self._is_left = False  # from then on, what comes is late
        # Pieces are added by the function's thread and read by the loop's.
        # Held only to put pieces together that are written out already: never while code of the tool's runs.
        self._lock = threading.Lock()
        self._pieces = Pieces()
        self._late_pieces = Pieces()

    @property
    def content(self) -> Content:
        """What it has given so far."""
        with self._lock:
            return self._pieces.content()

    async def run(self) -> None:
        """Run the function until it has ended, or the ladder has no more rungs.

        A boundary: one that cannot even be started, because the stop came first, no thread is to be had or its
        arguments cannot travel to a process, has ended with that error.
        """
        try:
            if self._tool.kind in ("coroutine", "async_generator"):
                await self._run_task(self._work_in_task)
            elif self._tool.isolate:
                await self._run_isolated()
            else:
                await self._run_on_thread()
        except (Exception, Cancelled) as exc:  # noqa: BLE001
            self._end((), exc, is_whole=not self._token.is_cancelled)

    def _add(self, value: object) -> None:
        pieces = pieces_of(value)
        with self._lock:
            (self._late_pieces if self._is_left else self._pieces).extend(pieces)

    def _end(self, pieces: Sequence[Piece], error: BaseException | None, *, is_whole: bool) -> None:
        """The function has ended: in time, or after it was left behind; the lock decides which, once."""
        with self._lock:
            if not self._is_left:
                self._pieces.extend(pieces)
                self.error = error
                self.is_whole = is_whole
                self.has_ended = True
                return
            self._late_pieces.extend(pieces)
            content = self._late_pieces.content()
        self._on_late(content, None if isinstance(error, (Cancelled, asyncio.CancelledError)) else error)

    def leave(self) -> None:
        """Wait no longer: what has not ended by now is abandoned."""
        with self._lock:
            if not self.has_ended and not self._is_left:
                self._is_left = True
                self.rungs.append("abandoned")

    # -- on a thread ----------------------------------------------------------------------------

    async def _run_on_thread(self) -> None:
        work = self._iterate if self._tool.kind == "generator" else self._call

        @functools.wraps(self._tool.fn)  # it is its name that is told of when its thread does not come back
        def body() -> object:
            return work()

        call = BlockingCall(body, (), {}, self._token, on_late=self._end_late)
        await call.run_and_wait(lambda: self._grace if self._listens(call) else 0.0, _CUT_PATIENCE)
        if call.was_cut:
            self.rungs.append("cut")
        value = self._settle(call)
        if value is not None:  # a plain function in front of a coroutine
            await self._run_task(lambda: self._await(value))
            close_unused(value)  # the stop came before its first step

    def _settle(self, call: BlockingCall) -> Awaitable[object] | None:
        """Take the outcome of a call that was not stopped; one that was has ended by itself, or is left now.

        A boundary: what the tool raised is data.
        """
        try:
            given: list[Piece] | Awaitable[object] = call.settle()
        except BaseException as exc:  # noqa: BLE001
            if call.is_delivered:
                self._end((), exc, is_whole=True)
            else:
                self.leave()
            return None
        if not isinstance(given, list):
            return given
        self._end(given, None, is_whole=True)
        return None

    def _end_late(self, late: Late) -> None:
        close_unused(late.value)
        self._end(late.value if isinstance(late.value, list) else (), late.error, is_whole=False)

    def _listens(self, call: BlockingCall) -> bool:
        return self._tool.kind == "generator" or call.token.has_listened or self._context.has_listened

    def _call(self) -> list[Piece] | Awaitable[object]:
        """Run a function, and write out what it gave here, in its own thread: that may take its time as well."""
        value = self._tool.fn(**self._kwargs)
        return value if inspect.isawaitable(value) else pieces_of(value)

    def _iterate(self) -> list[Piece]:
        """Run a generator; each of its yields is a partial result and a checkpoint."""
        generator = self._tool.fn(**self._kwargs)
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
        conversation = Conversation(self._tool, (), self._kwargs, self._grace)

        @functools.wraps(self._tool.fn)
        def body() -> list[Piece]:
            return pieces_of(conversation.run())

        call = BlockingCall(body, (), {}, self._token, abort=conversation.stop, on_late=self._end_late)
        await call.run_and_wait(lambda: conversation.listening + _KILL_PATIENCE)
        if conversation.was_killed:
            self.rungs.append("killed")
        self._settle(call)

    # -- in a task ------------------------------------------------------------------------------

    async def _work_in_task(self) -> None:
        if self._tool.kind == "coroutine":
            self._add(await self._tool.fn(**self._kwargs))
            return
        generator = self._tool.fn(**self._kwargs)
        try:
            async for item in generator:
                self._add(item)
                self._token.raise_if_cancelled()
        finally:
            await generator.aclose()

    async def _await(self, value: Awaitable[object]) -> None:
        self._add(await value)

    async def _run_task(self, work: Callable[[], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._in_scope(work))
        bell = asyncio.Event()
        task.add_done_callback(lambda _: bell.set())
        try:
            with wake_on_cancel(self._token, lambda: call_in_loop(loop, bell.set)):
                await bell.wait()
            if not task.done():
                await asyncio.wait([task], timeout=self._grace)
        finally:  # also if we are cancelled, as by a loop that is torn down
            if task.done():
                self._end_task(task)
            else:
                self.leave()
                _left.add(task)
                task.add_done_callback(self._end_task)

    def _end_task(self, task: asyncio.Task[None]) -> None:
        _left.discard(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self._end((), error or self._task_error, is_whole=self._is_task_whole)

    async def _in_scope(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            with self._token.bind():
                async with self._token.scope():
                    await work()
        except SystemExit as exc:  # out of a task it would end the event loop, and with it everybody
            self._task_error = exc
        finally:
            self._is_task_whole = not self._token.is_cancelled
