"""What a running tool knows about its call, and what it can ask for: progress, a question, another agent or tool.

``ask``, ``delegate``, ``call`` and ``begin`` are coroutines of the session and run in its event loop. An async tool
awaits them, in whatever loop it runs. In a plain function, which runs on a worker thread, they block that thread until
the answer, or until the call is stopped, and then raise ``Cancelled``. A call that has
read the token, asked or delegated gets a grace period after a stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from halter.cancel.context import current_token
from halter.cancel.loop_bridge import LoopJob, running_loop
from halter.cancel.one_shot_event import OneShotEvent
from halter.cancel.token import CancellationToken, Cancelled
from halter.models.sanitize import clean_text
from halter.tools.resources import SessionResources

if TYPE_CHECKING:
    import asyncio  # imported where it is used: it would be half of the cost of `from halter import Agent`
    from collections.abc import Awaitable, Callable, Hashable, Sequence

    from halter.tools.outcome import ToolOutcome
    from halter.tools.tool import Tool

T = TypeVar("T")


class ToolContext:
    """One call, seen from inside its tool. A parameter with this type hint, of any name, receives it."""

    def __init__(  # noqa: PLR0913  (what a call may have around it)
        self,
        token: CancellationToken,
        *,
        call_id: str,
        session_id: str = "",
        deps: Any = None,
        is_async: bool,
        loop: asyncio.AbstractEventLoop | None = None,
        report: Callable[[str, bool], object] | None = None,
        ask: Callable[[str, list[str] | None], Awaitable[Any]] | None = None,
        delegate: Callable[[Any, str, CancellationToken], Awaitable[Any]] | None = None,
        call: Callable[[Any, str, CancellationToken], Awaitable[ToolOutcome]] | None = None,
        begin: Callable[[Any, str, CancellationToken | None, float | None], Awaitable[Any]] | None = None,
        resources: SessionResources | None = None,
    ) -> None:
        """For the code that runs the call. *report* is called in the tool's own thread, the others run in *loop*."""
        self.call_id = call_id
        self.session_id = session_id
        self.deps = deps  # what `agent.session(deps=…)` was given
        self._token = token
        self._is_async = is_async
        self._loop = loop
        self._report = report
        self._ask = ask
        self._delegate = delegate
        self._call = call
        self._begin = begin
        self._resources = SessionResources() if resources is None else resources
        self._was_used = False
        self._detached = OneShotEvent()

    @property
    def token(self) -> CancellationToken:
        """The call's token."""
        self._was_used = True
        return self._token

    @property
    def was_used(self) -> bool:
        """Whether the tool has ever read the token, asked or delegated through this context."""
        return self._was_used

    def report(self, text: str, *, is_diff: bool = False) -> None:
        """Report progress. Does nothing once the call is over.

        *is_diff*: the text is a unified diff, which tells people what the call has changed in files.
        """
        if self._report is not None and not self._detached.is_set:
            self._report(clean_text(str(text)), is_diff)

    def keep(self, make: Callable[[], T], key: Hashable = None) -> T:
        """An object that outlives this call: one for each session, made by *make* when it is first asked for.

        If it has a `close()`, it is closed with the session. *key* distinguishes several of one maker. May block.
        """
        return self._resources.keep(make, key)

    def ask(self, question: str, choices: Sequence[str] | None = None) -> Any:
        """Ask the user. Returns the answer, in an async tool an awaitable of it. A stop raises Cancelled."""
        ask = self._ask
        if ask is None:
            raise RuntimeError("nobody can be asked here; do without, or take what you need as a parameter")
        offered = None if choices is None else [clean_text(choice) for choice in choices]
        return self._do("ask", lambda: ask(clean_text(question), offered))

    def delegate(self, agent: Any, text: str) -> Any:
        """Have another agent work on *text*. Returns its turn, in an async tool an awaitable of it.

        A stop of this call stops the other agent too. Its turn is then returned as well, interrupted, with what it has.
        """
        delegate = self._delegate
        if delegate is None:
            raise RuntimeError("nothing can be delegated here: this call runs outside of a session")
        return self._do("delegate", lambda: delegate(agent, text, self._token), ends_itself=True)

    def call(self, tool: Tool[..., Any], arguments: str, token: CancellationToken | None = None) -> Any:
        """Run another tool as part of this call. Returns its outcome, in an async tool an awaitable of it.

        *arguments* is JSON text, as a model would write it. The other tool runs under *token* (default: the call's
        own), is stopped with it and then has an outcome too, and asks for approval as if the model had called it.
        """
        call = self._call
        if call is None:
            raise RuntimeError("no other tool can be called here: this call runs outside of a batch")
        own = self._token if token is None else token
        return self._do("call", lambda: call(tool, arguments, own), ends_itself=True)

    def begin(self, agent: Any, text: str, *, lasts: bool = False, timeout: float | None = None) -> Any:
        """Start another agent on *text* without waiting for it. Returns a `Child`, in an async tool an awaitable of it.

        A stop of this call stops the other agent. One that *lasts* belongs to the session instead: it goes on when this
        call and its turn are over or stopped, and ends with the session. Either is stopped after *timeout* seconds.
        """
        begin = self._begin
        if begin is None:
            raise RuntimeError("nothing can be delegated here: this call runs outside of a session")
        return self._do("begin", lambda: begin(agent, text, None if lasts else self._token, timeout), ends_itself=True)

    def detach(self) -> None:
        """Detach the call from its session: for the code that runs it, once its outcome is settled. Ends all its waits.

        An abandoned thread may go on for long; what it reports or asks then belongs to no turn.
        """
        self._detached.set()

    def _do(self, name: str, start: Callable[[], Awaitable[Any]], *, ends_itself: bool = False) -> Any:
        """Run a coroutine of the session, in its loop: awaited by an async tool, waited for by the thread of another.

        One that *ends_itself* ends soon after the call is stopped, and then still has a result: it is waited for.
        """
        self._was_used = True
        if self._is_async:
            return self._await_anywhere(start, ends_itself=ends_itself)
        loop = self._loop
        if loop is None or running_loop() is loop:
            raise RuntimeError(
                f"{name}() of a plain function's context waits, and would block the event loop that it waits for; "
                "call it in the tool's own thread, or make the tool an `async def` and await it"
            )
        return self._block(start, loop, ends_itself=ends_itself)

    def _check_live(self, token: CancellationToken) -> None:
        token.raise_if_cancelled()
        if self._detached.is_set:
            raise self._is_over()

    def _is_over(self) -> RuntimeError:
        return RuntimeError(f"call {self.call_id} is over: it cannot ask or delegate any more")

    async def _await_anywhere(self, start: Callable[[], Awaitable[Any]], *, ends_itself: bool) -> Any:
        import asyncio

        loop = self._loop
        if loop is not None and asyncio.get_running_loop() is not loop:
            return await self._await_in(loop, start, ends_itself=ends_itself)
        return await (self._await_end(start) if ends_itself else self._await(start, self._token))

    async def _await(self, start: Callable[[], Awaitable[Any]], token: CancellationToken) -> Any:
        self._check_live(token)
        async with token.scope():
            return await start()

    async def _await_end(self, start: Callable[[], Awaitable[Any]]) -> Any:
        """Wait for something that ends by itself when the call is stopped, and then still has a result."""
        import asyncio

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

    async def _await_in(
        self, loop: asyncio.AbstractEventLoop, start: Callable[[], Awaitable[Any]], *, ends_itself: bool
    ) -> Any:
        """Await a coroutine of the session's loop in a tool's own loop."""
        import asyncio

        self._check_live(self._token)
        job = LoopJob(loop, start)
        job.start()
        try:
            if ends_itself:
                await job.ended.wait_async()
            else:
                async with self._token.scope():
                    await job.ended.wait_async()
        except (asyncio.CancelledError, Cancelled):
            if not (ends_itself and self._token.is_cancelled):
                job.cancel()
                raise
            await job.ended.wait_async()
        return _result(job)

    def _block(self, start: Callable[[], Awaitable[Any]], loop: asyncio.AbstractEventLoop, *, ends_itself: bool) -> Any:
        """Block the tool's thread until the coroutine has ended, or there is nothing to wait for any more.

        What ends the wait: the coroutine, the stop (unless the coroutine *ends_itself*), the end of the call, and the
        end of the loop.
        """
        # The thread has a token of its own, below the call's, which is cancelled if its waiter goes away.
        own = current_token()
        token = CancellationToken.any_of(self._token, own)
        self._check_live(token)
        job: LoopJob[Any] = LoopJob(loop, start if ends_itself else lambda: self._await(start, token))
        stopped = OneShotEvent()
        # Not on *token*: it is also cancelled if the coroutine is cancelled, and then job.ended is about to be set.
        with self._token.on_cancel(stopped.set), own.on_cancel(stopped.set):
            job.start()
            job.wait(self._detached, *(() if ends_itself else (stopped,)))
        is_stopped = self._token.is_cancelled or own.is_cancelled
        if is_stopped and not (ends_itself and job.is_done):
            job.cancel()
            raise Cancelled(token)
        if not job.ended.is_set:
            job.cancel()
            raise self._is_over()
        return _result(job)


def _result(job: LoopJob[Any]) -> Any:
    """The result of a coroutine that has ended. One that was cancelled, or lost its loop, is an error instead."""
    import asyncio

    try:
        if job.is_done:
            return job.result()
    except asyncio.CancelledError:
        pass
    raise RuntimeError("there will be no answer: the session's event loop has ended this wait")
