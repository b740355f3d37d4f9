"""The writer of a store: the only one that changes the state of its sessions, and the only one that writes.

Everybody else submits commands. A command is a function of a transaction: it looks at the session's state, decides, and
writes events; each is applied to the state at once. The writer takes all commands that are waiting, runs them in order,
commits their events together, and only then publishes: views for readers, events for subscribers, results for those who
wait. Group commit needs no protocol: while one commit is written, the next commands pile up and share the next one.

    submit ──► decide ──► apply ──► commit ──► publish ──► effects, results

If the commit fails, the sessions concerned are loaded again from the store and the callers get the error. So memory
never runs ahead of the store, and whoever sees something knows that it is durable.

There is no lock. Commands go into a deque; whoever claims it drains it. For a store whose `commit()` may block, that is
a worker thread; for one that cannot block, it is the thread that submits. Giving the claim back and then looking at the
deque again closes the gap: a command that was added while it was claimed is seen by whoever had the claim. The claim is
made by `dict.setdefault`, which is atomic and names the thread in the same instant.

`submit()` may be called from a signal handler. If the handler has interrupted the very thread that drains, its command
runs when the handler has returned; it cannot be waited for there.

A signal handler may also raise in that thread, as Ctrl+C does, at any point. Then a worker thread, in which no handler
runs, goes on from there: nobody else's command fails by it. So whatever may be interrupted can be done again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec.structs import replace

from halter.cancel.fork import after_fork
from halter.cancel.registration import wake_loops_once
from halter.cancel.threads import pool
from halter.errors import StoreError, WriteRefused
from halter.stores.base import Write
from halter.stores.command import Command, run_effect, settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from halter.events import Event
    from halter.stores.base import Store
    from halter.stores.command import Log, Transaction

_log = logging.getLogger(__name__)
_MAX_BATCH: Final = 512
_MOMENT: Final = 0.01  # seconds that pieces of text wait for others
_LONGEST: Final = 0.1  # the same, when there is much to write
_REST: Final = 10  # times as long as the last batches took
R = TypeVar("R")


class _Claim:
    """The right to drain: one thread takes it, once and for all."""

    __slots__ = ("_taken", "giver")

    def __init__(self, thread: int = 0, giver: int = 0) -> None:
        self.giver = giver  # the thread that is about to have a worker thread take it
        self._taken = {"by": thread} if thread else {}

    @property
    def thread(self) -> int:
        """The thread that has taken it; 0 if none has."""
        return self._taken.get("by", 0)

    def take(self) -> bool:
        """Take it for this thread; False if another has it."""
        thread = threading.get_ident()
        return self._taken.setdefault("by", thread) == thread


class _Batch:
    """Commands whose events are written together, and how far they have come."""

    __slots__ = ("commands", "is_decided", "is_written", "refused", "transactions", "was_interrupted")

    def __init__(self, *commands: Command[Any]) -> None:
        self.commands = list(commands)
        self.transactions: dict[Log, Transaction] = {}
        self.refused: dict[Log, Exception] = {}
        self.is_decided = False
        self.is_written = False  # as far as it was not refused
        self.was_interrupted = False


class Writer:
    """Runs the commands of one store."""

    def __init__(self, *, on_thread: bool) -> None:
        self.on_thread = on_thread
        self.reset()

    def reset(self) -> None:
        """Begin with nothing to do: at first, and in a forked child, where the thread that drained does not exist."""
        self._commands: deque[Command[Any]] = deque()
        self._claim: dict[str, _Claim] = {}  # of whoever drains
        self._took = 0.0  # seconds that the last batches took
        self._waking: asyncio.AbstractEventLoop | None = None  # the loop that is about to call wake()
        self._next_iteration: asyncio.AbstractEventLoop | None = None  # the loop that calls wake() in its next one
        self._unfinished: list[_Batch] = []  # the batches that are being run, each within an effect of the one before
        self._may_nest = False  # it is running effects: commands that those wait for may run in between

    # -- for everybody -----------------------------------------------------------------------------------------------

    def submit(self, command: Command[R]) -> Command[R]:
        """Have a command run, and do not wait for it. From any thread and any signal handler."""
        self._commands.append(command)
        self.wake()
        return command

    def add(self, command: Command[R]) -> Command[R]:
        """Give a command its place in the order; `wake()` has it run, if nobody else has before."""
        self._commands.append(command)
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
                self._run_waiting()  # an effect of an earlier command waits for this one
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
        claim = self._claim.get("")
        if claim is None:
            return False
        thread = threading.get_ident()
        return claim.giver == thread or (claim.thread == thread and not self._may_nest)

    @property
    def _is_claimed_here(self) -> bool:
        claim = self._claim.get("")
        return claim is not None and claim.thread == threading.get_ident()

    def job(self, work: Callable[[], R]) -> Command[R]:
        """Make a command that is for the store alone, such as acquiring a lease."""
        return Command(None, lambda _: work())

    # -- draining ----------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Have the waiting commands run by somebody: here, on a worker thread, or by whoever drains already."""
        if not self.on_thread:
            self._drain()
            return
        if not self._commands:
            return
        claim = _Claim(giver=threading.get_ident())
        try:
            if self._claim.setdefault("", claim) is claim:
                pool.submit(lambda: self._drain(claim))
        except RuntimeError:  # no thread is to be had: the interpreter is about to end
            claim.giver = 0
            self._drain(claim)
        except BaseException:
            self._hand_over(claim)
            raise
        finally:
            claim.giver = 0

    def wake_in_loop(self) -> None:
        """Have the waiting commands run, with those that others add in the same iteration of the running loop.

        For callers that go on in that loop when their command is done. Many tasks often write in one iteration, as when
        many turns are stopped: one wake-up of the worker thread, and one commit, serve all of them.
        """
        if not self.on_thread:
            self._drain()
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # the caller makes a coroutine for a loop of another thread, or for asyncio.run()
            self.wake()
            return
        if self._next_iteration is not loop:
            loop.call_soon(self._wake_after_iteration)
            self._next_iteration = loop  # last: if a signal handler raises before it, there is one more call, not none

    def _wake_after_iteration(self) -> None:
        self._next_iteration = None
        self.wake()

    def wake_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have the waiting commands run, with those that arrive until then. Call it in *loop*.

        Pieces of text often come in bursts, and from many sessions. Without a worker thread they wait for the loop's
        next iteration; with one, a little longer, because waking it for each piece would cost more than the writing.
        The longer the last batch took, the longer they wait: many sessions make larger batches, not more of them.
        """
        if self._waking is loop:
            return
        if self.on_thread:
            loop.call_later(min(max(_MOMENT, _REST * self._took), _LONGEST), self._wake_now)
        else:
            loop.call_soon(self._wake_now)
        self._waking = loop  # last, as in wake_in_loop()

    def _wake_now(self) -> None:
        self._waking = None
        self.wake()

    def _drain(self, claim: _Claim | None = None) -> None:
        """Run what waits, with the *claim* that was made for this thread, or if one is to be had."""
        if claim is None:
            if not self._commands and not self._unfinished:
                return
            claim = _Claim(threading.get_ident())
        try:
            while claim.take() and self._claim.setdefault("", claim) is claim:
                self._may_nest = False
                began = time.perf_counter()
                self._resume()
                self._run_all()
                self._took = time.perf_counter() - began
                self._claim.clear()
                if not self._commands and not self._unfinished:  # looked at last: others leave theirs to the claim
                    return
        except BaseException:
            self._hand_over(claim)
            raise

    def _hand_over(self, claim: _Claim) -> None:
        """Have a worker thread go on: a signal handler has raised in this one."""
        if self._claim.get("") is claim and claim.take():
            self._claim.clear()
        pool.submit(self._drain)

    def _run_waiting(self) -> None:
        """Run what waits, inside an effect."""
        could_nest, self._may_nest = self._may_nest, False
        try:
            self._run_all()
        finally:
            self._may_nest = could_nest

    def _run_all(self) -> None:
        while self._commands:
            batch = _Batch()
            self._unfinished.append(batch)
            while self._commands and len(batch.commands) < _MAX_BATCH:
                command = self._commands[0]
                if command.log is None and batch.commands:
                    break
                batch.commands.append(command)  # and only then taken out: it is in one place at least
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
            if not batch.is_written:
                batch.was_interrupted = True
                for command in batch.commands:
                    if command.log is None:
                        command.error = StoreError("it was interrupted by a signal; check whether it was done")
                    elif not _is_written(batch, command.log):
                        batch.refused[command.log] = WriteRefused("it was interrupted", command.log.lease.session)
                batch.is_written = True
            self._finish(batch)
            self._unfinished.pop()

    def _run_batch(self, batch: _Batch) -> None:
        """Run commands and commit their events together."""
        for command in batch.commands:
            if command.log is None:
                _run_job(command)
            else:
                self._decide(command, batch.transactions, batch.refused)
        batch.is_decided = True
        self._commit(batch.transactions, batch.refused)
        batch.is_written = True
        self._finish(batch)

    def _finish(self, batch: _Batch) -> None:
        """Publish what was written, and let everybody know."""
        # Without a worker thread this may be interrupted, so there each loop is woken at once.
        with wake_loops_once() if self.on_thread else contextlib.nullcontext():
            self._publish(batch)
        done = self._give_up(batch) if batch.refused else batch.commands
        self._may_nest = True
        for log, transaction in batch.transactions.items():
            while transaction.effects and log not in batch.refused:
                run_effect(transaction.effects[0])
                del transaction.effects[0]
        settle(done)
        self._may_nest = False

    def _publish(self, batch: _Batch) -> None:
        for log, transaction in batch.transactions.items():
            if log in batch.refused:
                log.discard()
                continue
            if transaction.events:
                transaction.is_durable = True
                log.publish(transaction.events)
            for show in transaction.shows:
                run_effect(show)

    def _decide(
        self, command: Command[Any], transactions: dict[Log, Transaction], refused: dict[Log, Exception]
    ) -> None:
        """Let one command decide. A boundary: what it raises is its caller's."""
        log = command.log
        assert log is not None
        transaction = transactions.get(log)
        written = 0
        try:
            if transaction is None:
                transaction = transactions[log] = log.begin()
            written = len(transaction.events)
            command.result = command.decide(transaction)
        except Exception as error:  # noqa: BLE001
            command.error = error
            if transaction is not None and len(transaction.events) != written:
                # Half of what it wanted to write is in the state: the session is loaded again.
                refused[log] = WriteRefused(f"another command failed: {error}", log.lease.session)

    def _commit(self, transactions: dict[Log, Transaction], refused: dict[Log, Exception]) -> None:
        """Write it all, but for the sessions whose events are refused; those are added to *refused*.

        A boundary: the store may be a user's own, and whatever it raises is what the callers are told.
        """
        writes = {
            log: Write(log.lease, transaction.events, transaction.waiting)
            for log, transaction in transactions.items()
            if transaction.events and log not in refused
        }
        while writes:
            try:
                next(iter(writes)).store.commit(list(writes.values()))
            except WriteRefused as error:
                guilty = [log for log in writes if log.lease.session == error.session] or list(writes)
                refused.update(dict.fromkeys(guilty, error))
                for log in guilty:
                    del writes[log]
            except StoreError as error:
                refused.update(dict.fromkeys(writes, error))
                return
            except Exception as error:  # noqa: BLE001
                _log.exception("a store raised an error that is not a StoreError")
                refused.update(dict.fromkeys(writes, StoreError(f"the store failed: {type(error).__name__}: {error}")))
                return
            else:
                return

    def _give_up(self, batch: _Batch) -> list[Command[Any]]:
        """Say of the refused commands why; gives those that are done with.

        Where several commands of one session were refused together, each is tried again, alone. So are those of which
        we do not know why they were not written, because they were interrupted.
        """
        done: list[Command[Any]] = []
        again: list[Command[Any]] = []
        for command in batch.commands:
            error = batch.refused.get(command.log) if command.log is not None else None
            if error is None or command.error is not None:
                done.append(command)
            elif isinstance(error, WriteRefused) and (
                batch.was_interrupted or sum(each.log is command.log for each in batch.commands) > 1
            ):
                again.append(command)
            else:
                command.error = error
                done.append(command)
        for command in again:
            if not command.is_done:
                alone = _Batch(command)
                self._unfinished.append(alone)
                self._run_batch(alone)
                self._unfinished.pop()
        return done


def _run_job(command: Command[Any]) -> None:
    """Do something with the store. A boundary: its error is the caller's."""
    try:
        command.result = command.decide(None)
    except Exception as error:  # noqa: BLE001
        command.error = error


def _is_written(batch: _Batch, log: Log) -> bool:
    """Whether the events of a session are in the store, though the writing was interrupted.

    A boundary: False if the store cannot be read. Then the commands are tried again, and their callers are told why.
    """
    transaction = batch.transactions.get(log)
    if transaction is None or not batch.is_decided or log in batch.refused:
        return False
    last = transaction.events[-1].seq if transaction.events else 0
    try:
        return not last or bool(log.store.read(log.lease.session, last - 1, limit=1))
    except Exception:  # noqa: BLE001
        return False


_writers: weakref.WeakKeyDictionary[Any, Writer] = weakref.WeakKeyDictionary()


def writer_of(store: Store) -> Writer:
    """The one writer of a store."""
    writer = _writers.get(store)
    if writer is None:
        writer = _writers.setdefault(store, Writer(on_thread=store.blocks))
    return writer


def erase_session(store: Store, session: str) -> None:
    """Forget a session that nobody has open, and block until that is durable."""

    def erase() -> None:
        lease = store.acquire(session)
        try:
            store.erase(lease)
        finally:
            store.release(lease)

    writer = writer_of(store)
    writer.run(writer.job(erase))


def copy_events(store: Store, session: str, events: Iterable[Event]) -> None:
    """Add events of another session to one that nobody has open, with their times, and block until that is durable."""

    def copy() -> None:
        lease = store.acquire(session)
        try:
            last = store.read(session)[-1:]
            start = last[0].seq if last else 0
            renamed = [replace(each, seq=start + at, session=session) for at, each in enumerate(events, 1)]
            if renamed:
                store.commit([Write(lease, renamed, 0)])
        finally:
            store.release(lease)

    writer = writer_of(store)
    writer.run(writer.job(copy))


def _after_fork() -> None:
    for writer in list(_writers.values()):
        writer.reset()


after_fork(_after_fork)
