"""The writer of a store: it alone changes the state of the sessions, and it alone writes to the store.

Everybody else submits commands. A command is a function of a transaction: it reads the session's state, decides, and
writes events; each is applied to the state at once. The writer takes all commands that are waiting, runs them in order,
commits their events together, and only then publishes: views for readers, events for subscribers, results for callers.
Group commit needs no protocol: while one commit is written, the next commands pile up and share the next one.

    submit ──► decide ──► apply ──► commit ──► publish ──► effects, results

If the commit fails, the sessions concerned are loaded again from the store and the callers get the error. So memory
never runs ahead of the store, and everything that is visible is durable.

Commands go into a deque, and the thread that has the claim (`halter.stores.drain_claim`) drains it. For a store whose
`commit()` may block, that is a worker thread; for one that cannot block, it is the thread that submits.

`submit()` may be called from a signal handler. If the handler has interrupted the very thread that drains, its command
runs when the handler has returned; it cannot be waited for there.

A signal handler may also raise in that thread, as Ctrl+C does, at any point. Then a worker thread, in which no handler
runs, goes on from there: nobody else's command fails by it. So whatever may be interrupted can be done again.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeVar

from halter.cancel.fork import after_fork
from halter.cancel.loop_bridge import running_loop
from halter.cancel.registration import wake_loops_once
from halter.cancel.threads import pool
from halter.stores.batch import CommandBatch
from halter.stores.command import Command, settle
from halter.stores.drain_claim import CurrentClaim, DrainClaim

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from halter.stores.base import Store

__all__ = ["MAX_BATCH", "Writer", "writer_of"]

MAX_BATCH: Final = 512
"""How many commands share one transaction at most."""
_MIN_TEXT_DELAY: Final = 0.01  # seconds that pieces of text wait for others
_MAX_TEXT_DELAY: Final = 0.1  # seconds
_TEXT_DELAY_FACTOR: Final = 10  # between these, they wait this many times as long as the last batches took
R = TypeVar("R")


class Writer:
    """Runs the commands of one store."""

    def __init__(self, *, on_thread: bool) -> None:
        self.on_thread = on_thread
        self.reset()

    def reset(self) -> None:
        """Begin with nothing to do: at first, and in a forked child, where the thread that drained does not exist."""
        self.claim = CurrentClaim()
        self._commands: deque[Command[Any]] = deque()
        # The batches that are being run: the second was begun by an effect of the first, and so on.
        self._unfinished: list[CommandBatch] = []
        self._may_nest = False  # effects are running: commands that those wait for may run in between
        self._batch_seconds = 0.0  # that the last batches took
        self._woken_next: asyncio.AbstractEventLoop | None = None  # the loop that calls wake() in its next iteration
        self._woken_soon: asyncio.AbstractEventLoop | None = None  # the loop in which wake_soon() has set a timer

    # -- for everybody -----------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many commands nobody has begun to run."""
        return len(self._commands)

    def add(self, command: Command[R]) -> Command[R]:
        """Put a command into the queue. It runs after the next `wake()`, unless another thread drains before that."""
        self._commands.append(command)
        return command

    def submit(self, command: Command[R]) -> Command[R]:
        """Have a command run, and do not wait for it. From any thread and any signal handler."""
        self._commands.append(command)
        self.wake()
        return command

    def run(self, command: Command[R]) -> R:
        """Have a command run, and block until it is durable."""
        self.submit(command)
        return self.wait(command)

    def wait(self, command: Command[R]) -> R:
        """Block until a command is durable.

        Raises `RuntimeError` in a signal handler that has interrupted the writer itself: there it cannot be waited for.
        """
        self.wake()
        while not command.is_done:
            if self.is_interrupted_here:
                raise RuntimeError(
                    "a signal handler interrupted the session's own work and cannot wait for it here; what it asked "
                    "for is done when it returns. In signal handlers, call stop() or interrupt()"
                )
            if self._is_claimed_here:
                self._run_nested()  # an effect of an earlier command waits for this one
                continue
            command.block()
        return command.outcome()

    async def run_async(self, command: Command[R]) -> R:
        """Have a command run, and await it. If this task is cancelled meanwhile, the command still runs."""
        self.add(command)
        self.wake_in_loop()
        await command.wait_async()
        return command.outcome()

    @property
    def is_interrupted_here(self) -> bool:
        """Whether this is a signal handler that has interrupted the writer itself, so that it cannot be waited for."""
        claim = self.claim.get()
        if claim is None:
            return False
        thread = threading.get_ident()
        return claim.submitter == thread or (claim.thread == thread and not self._may_nest)

    @property
    def _is_claimed_here(self) -> bool:
        claim = self.claim.get()
        return claim is not None and claim.thread == threading.get_ident()

    def job(self, work: Callable[[], R]) -> Command[R]:
        """Make a command that is for the store alone, such as acquiring a lease."""
        return Command(None, lambda _: work())

    # -- waking ------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Have the waiting commands run: here, on a worker thread, or by the thread that drains already."""
        if not self.on_thread:
            self._drain()
            return
        if not self._commands:
            return
        claim = DrainClaim(submitter=threading.get_ident())
        try:
            if self.claim.set(claim):
                pool.submit(lambda: self._drain(claim))
        except RuntimeError:  # no thread can be started: the interpreter is about to end
            claim.submitter = 0
            self._drain(claim)
        except BaseException:
            self._hand_over(claim)
            raise
        finally:
            claim.submitter = 0

    def wake_in_loop(self) -> None:
        """Have the waiting commands run, with those that others add in the same iteration of the running loop.

        For callers that go on in that loop when their command is done. Many tasks often write in one iteration, as when
        many turns are stopped: one wake-up of the worker thread, and one commit, serve all of them.
        """
        if not self.on_thread:
            self._drain()
            return
        loop = running_loop()
        if loop is None:  # the caller makes a coroutine for a loop of another thread, or for asyncio.run()
            self.wake()
        elif self._woken_next is not loop:
            loop.call_soon(self._wake_next)
            self._woken_next = loop  # last: if a signal handler raises before it, there is one more call, not none

    def _wake_next(self) -> None:
        self._woken_next = None
        self.wake()

    def wake_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have the waiting commands run, with those that arrive until then. Call it in *loop*.

        Pieces of text often come in bursts, and from many sessions. Without a worker thread they wait for the loop's
        next iteration; with one, a little longer, because waking it for each piece would cost more than the writing.
        The longer the last batch took, the longer they wait: many sessions make larger batches, not more of them.
        """
        if self._woken_soon is loop:
            return
        if self.on_thread:
            delay = min(max(_MIN_TEXT_DELAY, _TEXT_DELAY_FACTOR * self._batch_seconds), _MAX_TEXT_DELAY)
            loop.call_later(delay, self._wake_soon)
        else:
            loop.call_soon(self._wake_soon)
        self._woken_soon = loop  # last, as in wake_in_loop()

    def _wake_soon(self) -> None:
        self._woken_soon = None
        self.wake()

    # -- draining ----------------------------------------------------------------------------------------------------

    def _drain(self, claim: DrainClaim | None = None) -> None:
        """Run what is waiting, with the *claim* made for this thread, or with a new one if none is in force."""
        if claim is None:
            if not self._commands and not self._unfinished:
                return
            claim = DrainClaim(threading.get_ident())
        try:
            while claim.take() and self.claim.set(claim):
                self._may_nest = False
                began = time.perf_counter()
                self._resume()
                self._run_all()
                self._batch_seconds = time.perf_counter() - began
                self.claim.clear()
                # Checked after the claim has ended: a thread that found it in force has left its command to us.
                if not self._commands and not self._unfinished:
                    return
        except BaseException:
            self._hand_over(claim)
            raise

    def _hand_over(self, claim: DrainClaim) -> None:
        """Have a worker thread go on: a signal handler has raised in this one."""
        if self.claim.get() is claim and claim.take():
            self.claim.clear()
        pool.submit(self._drain)

    def _run_nested(self) -> None:
        """Run what is waiting, inside an effect."""
        could_nest, self._may_nest = self._may_nest, False
        try:
            self._run_all()
        finally:
            self._may_nest = could_nest

    def _run_all(self) -> None:
        while self._commands:
            batch = CommandBatch()
            self._unfinished.append(batch)
            while self._commands and len(batch.commands) < MAX_BATCH:
                command = self._commands[0]
                if command.log is None and batch.commands:
                    break
                batch.commands.append(command)  # and only then removed from the queue: it is never in neither
                self._commands.popleft()
                if command.log is None:
                    break
            self._run_batch(batch)
            self._unfinished.pop()

    def _resume(self) -> None:
        """Finish the batches in which the thread that drained before was interrupted, the innermost first."""
        while self._unfinished:
            batch = self._unfinished[-1]
            if batch.commands and self._commands and self._commands[0] is batch.commands[-1]:
                self._commands.popleft()
            batch.refuse_interrupted()
            self._finish(batch)
            self._unfinished.pop()

    def _run_batch(self, batch: CommandBatch) -> None:
        batch.write()
        self._finish(batch)

    def _finish(self, batch: CommandBatch) -> None:
        """Publish what was written, try again what was refused, run the effects, and wake the callers."""
        # Without a worker thread this may be interrupted, so there each loop is woken at once.
        with wake_loops_once() if self.on_thread else contextlib.nullcontext():
            batch.publish()
        done, again = batch.sort_refused()
        for command in again:
            if not command.is_done:
                alone = CommandBatch(command)
                self._unfinished.append(alone)
                self._run_batch(alone)
                self._unfinished.pop()
        self._may_nest = True
        batch.run_effects()
        settle(done)
        self._may_nest = False


_writers: weakref.WeakKeyDictionary[Any, Writer] = weakref.WeakKeyDictionary()


def writer_of(store: Store) -> Writer:
    """The one writer of a store."""
    writer = _writers.get(store)
    if writer is None:
        writer = _writers.setdefault(store, Writer(on_thread=store.blocks))
    return writer


def _after_fork() -> None:
    for writer in list(_writers.values()):
        writer.reset()


after_fork(_after_fork)
