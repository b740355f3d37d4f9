"""What a running tool knows of its call, and what it may ask of the outside: progress, a question, another agent.

``ask`` and ``delegate`` are coroutines of the engine. An async tool awaits them; in a plain function, which runs on a
worker thread, they block that thread, until the answer or until the call is stopped, and then raise ``Cancelled``
at once. Looking at the token, asking and delegating show that the call listens: such a call gets its grace.
"""

from __future__ import annotations

import asyncio
import queue
from typing import TYPE_CHECKING, Any, TypeVar

from halter.cancel.context import current_token
from halter.cancel.token import CancellationToken, Cancelled
from halter.tools.keep import Keeper

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Sequence

    from halter.tools.outcome import ToolOutcome
    from halter.tools.tool import Tool

T = TypeVar("T")


class ToolContext:
    """One call, seen from inside its tool. A parameter with this hint, of any name, is given it."""

    def __init__(  # noqa: PLR0913  (what a call may have around it)
        self,
        token: CancellationToken,
        *,
        call_id: str,
        session_id: str = "",
        is_async: bool,
        loop: asyncio.AbstractEventLoop | None = None,
        report: Callable[[str], object] | None = None,
        ask: Callable[[str, list[str] | None], Awaitable[Any]] | None = None,
        delegate: Callable[[Any, str, CancellationToken], Awaitable[Any]] | None = None,
        call: Callable[[Any, str, CancellationToken], Awaitable[ToolOutcome]] | None = None,
        begin: Callable[[Any, str, CancellationToken | None], Awaitable[Any]] | None = None,
        keeper: Keeper | None = None,
    ) -> None:
        """Made by whoever runs the call; all but *report*, in the tool's own thread, run on *loop*."""
        self.call_id = call_id
        self.session_id = session_id
        self._token = token
        self._is_async = is_async
        self._loop = loop
        self._report = report
        self._ask = ask
        self._delegate = delegate
        self._call = call
        self._begin = begin
        self._keeper = Keeper() if keeper is None else keeper
        self._has_listened = False
        self._is_detached = False

    @property
    def token(self) -> CancellationToken:
        """The call's token."""
        self._has_listened = True
        return self._token

    @property
    def has_listened(self) -> bool:
        """Whether the tool has ever looked at the token, asked or delegated through this context."""
        return self._has_listened

    def report(self, text: str) -> None:
        """Tell of progress. Nothing happens once the call is over."""
        if self._report is not None and not self._is_detached:
            self._report(str(text))

    def keep(self, make: Callable[[], T], key: Hashable = None) -> T:
        """Something that lasts longer than this call: the session's own, made by *make* when it is first asked for.

        If it has a `close()`, it is closed with the session. *key* tells apart several of one maker. May block.
        """
        return self._keeper.keep(make, key)

    def ask(self, question: str, choices: Sequence[str] | None = None) -> Any:
        """Ask the person. The answer, or in an async tool something to await for it; a stop raises Cancelled."""
        ask = self._ask
        if ask is None:
            msg = "nobody can be asked here; do without, or take what you need as a parameter"
            raise RuntimeError(msg)
        offered = None if choices is None else list(choices)
        return self._do("ask", lambda: ask(question, offered))

    def delegate(self, agent: Any, text: str) -> Any:
        """Have another agent work on *text*. Its turn, or in an async tool something to await for it.

        A stop of this call stops the other agent. Then its turn comes back too, interrupted, with what it has.
        """
        delegate = self._delegate
        if delegate is None:
            msg = "nothing can be delegated here: this call runs outside of a session"
            raise RuntimeError(msg)
        return self._do("delegate", lambda: delegate(agent, text, self._token), ends_itself=True)

    def call(self, tool: Tool[..., Any], arguments: str, token: CancellationToken | None = None) -> Any:
        """Run another tool as part of this call. Its outcome, or in an async tool something to await for it.

        *arguments* are the JSON text that a model would have written. The other tool runs under *token* (default: the
        call's own), is stopped with it and then has its outcome too, and asks for approval as if called by the model.
        """
        call = self._call
        if call is None:
            msg = "no other tool can be called here: this call runs outside of a batch"
            raise RuntimeError(msg)
        own = self._token if token is None else token
        return self._do("call", lambda: call(tool, arguments, own), ends_itself=True)

    def begin(self, agent: Any, text: str, *, lasts: bool = False) -> Any:
        """Have another agent begin to work on *text*: a `Child`, or in an async tool something to await for it.

        Does not wait for its end. A stop of this call stops it; one that *lasts* belongs to the session instead, goes
        on when this call and its turn are over or stopped, and ends with the session.
        """
        begin = self._begin
        if begin is None:
            msg = "nothing can be delegated here: this call runs outside of a session"
            raise RuntimeError(msg)
        return self._do("begin", lambda: begin(agent, text, None if lasts else self._token))

    def detach(self) -> None:
        """End the call's ties to the outside: for whoever runs it, once its outcome is settled.

        An abandoned thread may go on for long; what it reports or asks then belongs to no turn.
        """
        self._is_detached = True

    def _do(self, name: str, start: Callable[[], Awaitable[Any]], *, ends_itself: bool = False) -> Any:
        self._has_listened = True
        if self._is_async:
            return self._await_end(start) if ends_itself else self._await(start, self._token)
        loop = self._loop
        if loop is None or _running_loop() is loop:
            msg = (
                f"{name}() of a plain function's context waits, and would block the event loop that it waits for; "
                "call it in the tool's own thread, or make the tool an `async def` and await it"
            )
            raise RuntimeError(msg)
        return self._block_until_end(start, loop) if ends_itself else self._block(start, loop)

    def _check_live(self, token: CancellationToken) -> None:
        token.raise_if_cancelled()
        if self._is_detached:
            msg = f"call {self.call_id} is over: it cannot ask or delegate any more"
            raise RuntimeError(msg)

    async def _await(self, start: Callable[[], Awaitable[Any]], token: CancellationToken) -> Any:
        self._check_live(token)
        async with token.scope():
            return await start()

    async def _await_end(self, start: Callable[[], Awaitable[Any]]) -> Any:
        """Wait for something that ends by itself when the call is stopped, and then still has something to give."""
        self._check_live(self._token)
        task = asyncio.ensure_future(start())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            is_foreign = not self._token.is_cancelled
            if is_foreign:
                task.cancel()
            await asyncio.wait({task})
            if is_foreign:
                raise
            return task.result()

    def _block_until_end(self, start: Callable[[], Awaitable[Any]], loop: asyncio.AbstractEventLoop) -> Any:
        wait = _Wait()
        self._check_live(self._token)
        loop.call_soon_threadsafe(lambda: wait.start(loop, start()))
        return wait.end_result()

    def _block(self, start: Callable[[], Awaitable[Any]], loop: asyncio.AbstractEventLoop) -> Any:
        # The thread has a token of its own, below the call's; whichever is cancelled ends the wait.
        token = CancellationToken.any_of(self._token, current_token())
        wait = _Wait()
        self._check_live(token)
        with token.on_cancel(wait.end):
            loop.call_soon_threadsafe(lambda: wait.start(loop, self._await(start, token)))
            return wait.result(token)


class _Wait:
    """A thread that waits for a coroutine in a loop."""

    def __init__(self) -> None:
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._task: asyncio.Task[Any] | None = None

    def start(self, loop: asyncio.AbstractEventLoop, work: Any) -> None:
        """Start the work; runs in the loop."""
        self._task = loop.create_task(work)
        self._task.add_done_callback(self._has_ended)

    def _has_ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            task.exception()  # now it has been looked at, even if nobody waits for it any more
        self.end()

    def end(self) -> None:
        self._bell.put(None)

    def end_result(self) -> Any:
        """Wait for the end, stopped or not."""
        self._bell.get()
        assert self._task is not None
        return self._task.result()

    def result(self, token: CancellationToken) -> Any:
        """Wait; a stop comes before an answer."""
        self._bell.get()
        task = self._task
        if token.is_cancelled and not _is_foreign(task, token):
            raise Cancelled(token)
        if task is None or task.cancelled():
            msg = "nobody is left to answer: the engine has ended this wait"
            raise RuntimeError(msg)
        return task.result()


def _is_foreign(task: asyncio.Task[Any] | None, token: CancellationToken) -> bool:
    """Whether the wait was ended by somebody who cancelled its task, and no token of the call's."""
    above = token._parents()  # noqa: SLF001  (those that any_of() was made of)
    return task is not None and task.done() and task.cancelled() and not any(up.is_cancelled for up in above)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
