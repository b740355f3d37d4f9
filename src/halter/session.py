"""One conversation: an inbox, a log, and at most one running turn.

Whatever people say to it comes by way of `Delivery`, from anywhere. Here is what runs its turns: one task at a time,
which alone takes messages out of the inbox and writes what the model says; and how a session begins and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
import weakref
from typing import TYPE_CHECKING

from halter import engine
from halter.cancel.blocking import run_blocking_async
from halter.cancel.context import current_token
from halter.cancel.token import NEVER, CancellationToken
from halter.delivery import Delivery
from halter.errors import NothingToDo, SessionBusy, StoreError
from halter.events import MessageApplied, Missed, TurnFinished, TurnRolledBack, TurnStarted
from halter.journal import Journal
from halter.listener import loop_bell
from halter.people import People
from halter.steps import Steps
from halter.stores.memory import MemoryStore
from halter.tools.batch import GRACE
from halter.turn import Turn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection
    from types import TracebackType
    from typing import Self

    from halter.agent import Agent
    from halter.events import Event, EventData
    from halter.inbox import Content, Letter
    from halter.stores.store import Lease, Store

__all__ = ["Session"]


class Session(Delivery):
    """One conversation with an agent. Made by `agent.session()`; close it, or use it in a `with` block."""

    def __init__(
        self,
        agent: Agent,
        id: str | None = None,  # noqa: A002  (the contract's word)
        store: Store | None = None,
        *,
        parent: CancellationToken = engine.PROCESS,
        grace: float = GRACE,
        above: People | None = None,
        prepares: Collection[str] = (),
    ) -> None:
        session_id = id or secrets.token_hex(8)
        store = MemoryStore() if store is None else store
        lease = store.acquire(session_id)
        self._release_lease = weakref.finalize(self, _release, store, lease)
        super().__init__(Journal(session_id, store, lease))
        self.agent = agent
        self.token = parent.child("session")
        self._people = People(self._journal, self.token, grace, self._make_child, above)
        self._is_claimed = False  # by run(), arun(), stream() or serve()
        try:
            self._journal.load()
            self._seal_left()
            self._end_preparations(prepares)
        except BaseException:
            self._release_lease()
            raise
        self._journal.inbox.demote_steers("the turn that it was for is over")
        self._show_last()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "running" if self.is_running else "idle"
        return f"<Session {self.id} ({state}), {len(self.inbox)} waiting>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    # -- turns -------------------------------------------------------------------------------------------------------

    def run(self, text: Content | None = None) -> Turn:
        """One turn, on Halter's own event loop; blocks until it is over, and returns it also if it was interrupted."""
        caller = current_token().child("run")
        with caller.bind():
            return engine.run(
                lambda: self.arun(text), lambda exc: caller.cancel("interrupt", detail=type(exc).__name__)
            )

    async def arun(self, text: Content | None = None) -> Turn:
        """One turn, in this event loop: on all that the inbox holds, *text* the last of it.

        With nothing there, goes on with a turn that was broken off; if there is none, raises `NothingToDo`.
        """
        self._claim()
        try:
            return await self._run_turn(text)
        finally:
            self._is_claimed = False

    async def stream(self, text: Content | None = None) -> AsyncIterator[Event]:
        """The same turn as `arun()`, as events. Whoever leaves early stops the turn (reason "disconnect")."""
        self._claim()
        try:
            with self.listen() as listener:
                task = asyncio.ensure_future(self._run_turn(text))
                task.add_done_callback(lambda _: listener.end())
                try:
                    async for event in listener:
                        for each in self._whole(event):
                            yield each
                    await task
                finally:
                    await self._end_stream(task)
        finally:
            self._is_claimed = False

    def _whole(self, event: Event) -> list[Event]:
        """What one event of a listener stands for: itself, or those that it missed."""
        if isinstance(event.data, Missed):
            missed = event.data
            return [each for each in self.events(missed.first - 1) if each.seq <= missed.last]
        return [event]

    async def _end_stream(self, task: asyncio.Task[Turn]) -> None:
        if task.done():
            return
        turn = self._running()
        if turn is not None:
            turn.cancel("disconnect", detail="its events are not read any more", by="stream()")
        else:
            task.cancel()  # it has not begun
        cancellation: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError as exc:  # a turn that was told to stop ends soon: not to be left behind
                cancellation = exc
                task.cancel()
        if cancellation is not None:
            raise cancellation

    async def serve(self) -> None:
        """Turn after turn, as messages arrive, until `close()`."""
        self._claim()
        try:
            while await self._has_work():
                with contextlib.suppress(NothingToDo):  # it was held or removed in the last moment
                    await self._run_turn(may_go_on=False)
        finally:
            self._is_claimed = False

    async def _has_work(self) -> bool:
        """Wait for a message that may be applied; False when the session is closed."""
        while not self.token.is_cancelled:
            ring, bell = loop_bell()
            self._wake = ring
            try:
                # First what is waited for, then whether it is: one that is removed in between is seen by its bell.
                whole = self.inbox.blocked()
                if self.inbox.ready():
                    return True
                with self.token.on_cancel(ring), whole.on_cancel(ring):
                    await bell
            finally:
                self._wake = None
        return False

    async def _run_turn(self, text: Content | None = None, *, may_go_on: bool = True) -> Turn:
        outer = current_token()
        token = self.token.child("turn") if outer is NEVER else CancellationToken.any_of(self.token, outer)
        turn = Turn(secrets.token_hex(8), token)
        turn.loop = asyncio.get_running_loop()
        last, self._turn = self._turn, turn  # from here on a stop finds it, and is not lost
        try:
            self._begin(turn, self.post(text).letter if text is not None else None, may_go_on=may_go_on)
        except BaseException:
            self._turn = last
            turn.claim_end()
            turn.ended.cancel("never begun")
            raise
        await Steps(self.agent, self._journal, turn, self._people).run()
        return turn

    def _claim(self) -> None:
        with self._journal.lock:
            self._check_open()
            if self._is_claimed:
                msg = (
                    "a turn is running in this session, or it is being served. Nothing was accepted: post() the text "
                    "to have it queued, or steer() or interrupt() with it"
                )
                raise SessionBusy(msg)
            self._is_claimed = True

    def _begin(self, turn: Turn, own: Letter | None, *, may_go_on: bool) -> None:
        """Start a turn with all that the inbox has ready, in one transaction; but not with what was to stop this turn.

        *own* is the message that it was started with: it is in the turn also if a stop came since, and holds the rest.
        """
        journal = self._journal
        with self._writing():
            self._seal_left()
            may = {letter.id for letter in journal.inbox.ready() if letter.against != turn.id}
            ready = [letter for letter in journal.inbox if letter is own or letter.id in may]
            last = journal.history.last
            if not ready and not (may_go_on and journal.history.can_go_on):
                held = len(journal.inbox.held())
                msg = f"{held} messages are held: release() them" if held else "the inbox is empty: give a text"
                raise NothingToDo(msg)
            continues = last.id if not ready and last is not None else ""
            data: list[EventData] = [TurnStarted(self.agent.model.name, continues)]
            data += [MessageApplied(letter.id, letter.became, letter.note) for letter in ready]
            journal.append(turn.id, *data)

    def _seal_left(self, reason: str = "crash", detail: str = "the program ended in the middle of it") -> None:
        """Seal a turn that the log says is open and that nobody runs: its process died, or its store was full."""
        journal = self._journal
        left = journal.history.turn
        if left is None:
            return
        if left.stopping is not None:
            detail += f", when it had been asked to stop ({left.stopping.reason})"
        end = journal.history.closing(reason, detail, time.time())
        end.append(TurnFinished("interrupted", reason, detail))
        if left.stopping is not None and left.stopping.reason == "rollback":
            end.append(TurnRolledBack())
        journal.append(left.id, *end)

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self, timeout: float = 5.0) -> None:
        """Stop what runs, and let go of the session, within *timeout* seconds. Messages that wait stay in the store.

        In the event loop in which the turn runs, this can not wait for it: use `await session.aclose()` there.
        """
        end = time.monotonic() + timeout
        turn = self._close()
        can_wait = turn is not None and turn.loop is not _running_loop()
        if turn is not None and can_wait:
            turn.ended.wait(timeout)
        self._people.keeper.close(max(end - time.monotonic(), 0.0))
        self._let_go(turn, by_force=can_wait)

    async def aclose(self, timeout: float = 5.0) -> None:  # noqa: ASYNC109  (as its twin)
        """Close as `close` does, without blocking the loop."""
        end = time.monotonic() + timeout
        turn = self._close()
        if turn is not None:
            bell = CancellationToken.any_of(turn.ended, CancellationToken(timeout=timeout))
            await bell.wait_async()
        if self._people.keeper:
            rest = max(end - time.monotonic(), 0.0)
            await run_blocking_async(self._people.keeper.close, rest, token=NEVER)
        self._let_go(turn, by_force=True)

    def _close(self) -> Turn | None:
        self._closed = True
        turn = self._running()
        if turn is not None:
            turn.cancel("shutdown", detail="the session was closed", by="close()")
        self.token.cancel("shutdown", detail="the session was closed")
        return turn

    def _let_go(self, turn: Turn | None, *, by_force: bool = False) -> None:
        """Give the lease back, as soon as the last word is written.

        *by_force*, a turn that did not come to its end in time is sealed here, and whatever it still says goes nowhere.
        Else, or if that can not be done now, it is the turn's own end that lets go.
        """
        is_over = turn is None or turn.ended.is_cancelled
        if is_over or (by_force and turn is not None and self._journal.close_turn(turn.id, self._seal_unended)):
            self._journal.end_listeners()
            self._release_lease()
        elif turn is not None:
            turn.ended.on_cancel(lambda: self._let_go(turn))

    def _seal_unended(self) -> None:
        self._seal_left("shutdown", "the session was closed, and it did not end in time")

    def _make_child(self, agent: Agent, token: CancellationToken, grace: float) -> Session:
        name = f"{self.id}/{secrets.token_hex(4)}"
        return Session(agent, name, self._journal.store, parent=token, grace=grace, above=self._people)


def _release(store: Store, lease: Lease) -> None:
    """Give a lease back. A boundary: it may be the garbage collector that calls, or the end of the process."""
    with contextlib.suppress(StoreError):
        store.release(lease)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
