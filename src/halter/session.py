"""One conversation: an inbox, a log, and at most one running turn.

Who may do what. Any thread, any event loop and any signal handler may call any method. What they do is: write to the
inbox, durably, and cancel tokens. Only the task that runs the turn takes messages out of the inbox and writes what the
model says. So an interrupt carries no text: the text is in the inbox before the turn's token is cancelled, and if the
turn ended by itself just then, nothing is lost and nothing is left behind that could hurt the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, Literal

from halter import engine
from halter.cancel.blocking import run_blocking_async
from halter.cancel.context import current_token
from halter.cancel.token import NEVER, CancellationToken
from halter.errors import LeaseLost, NothingToDo, SessionBusy, SessionClosed, StoreError
from halter.events import (
    MessageAccepted,
    MessageApplied,
    MessageHeld,
    MessageReleased,
    Missed,
    TurnFinished,
    TurnRolledBack,
    TurnStarted,
)
from halter.inbox import Letter, Receipt, to_message
from halter.journal import Journal
from halter.listener import loop_bell
from halter.people import People
from halter.steps import Steps
from halter.stores.memory import MemoryStore
from halter.tools.batch import GRACE
from halter.turn import Turn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from types import TracebackType
    from typing import Self

    from halter.agent import Agent
    from halter.events import Event, EventData, Mode
    from halter.inbox import Content, Inbox
    from halter.listener import Listener
    from halter.models.model import Message
    from halter.stores.store import Lease, Store

__all__ = ["Session"]

_MODES: Final = ("queue", "steer", "interrupt", "rollback")
_MOST_WAITING: Final = 10_000  # events that one listener may be behind


class Session:
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
    ) -> None:
        self.agent = agent
        self.id = id or secrets.token_hex(8)
        self.token = parent.child("session")
        store = MemoryStore() if store is None else store
        lease = store.acquire(self.id)
        self._release_lease = weakref.finalize(self, _release, store, lease)
        self._journal = Journal(self.id, store, lease)
        self._people = People(self._journal, self.token, grace, self._make_child, above)
        self._is_claimed = False  # by run(), arun(), stream() or serve()
        self._wake: Callable[[], object] | None = None  # of serve()
        self._closed = False
        try:
            self._journal.load()
            self._seal_left()
        except BaseException:
            self._release_lease()
            raise
        self._journal.inbox.demote_steers("the turn that it was for is over")
        last = self._journal.history.last
        self._turn: Turn | None = Turn.of_past(last) if last is not None else None

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

    # -- how it stands -----------------------------------------------------------------------------------------------

    @property
    def turn(self) -> Turn | None:
        """The running turn, or the last one."""
        return self._turn

    @property
    def is_running(self) -> bool:
        """Whether a turn runs."""
        return self._running() is not None

    @property
    def text(self) -> str:
        """What the model has said last, in the running or the last turn: also in the middle of its answer."""
        return self._journal.history.text

    @property
    def cancel_token(self) -> CancellationToken:
        """The token of the running or the last turn. Keep it: it stays that turn's, also when the next has begun."""
        return self._turn.token if self._turn is not None else NEVER

    @property
    def inbox(self) -> Inbox:
        """The messages that wait, in order; `remove(id)` and `edit(id, text)` change them."""
        return self._journal.inbox

    @property
    def history(self) -> list[Message]:
        """The conversation, as the next request would send it."""
        return self._journal.history.messages

    def events(self, after: int = 0) -> list[Event]:
        """The log, from the event behind number *after* on."""
        return self._journal.store.read(self.id, after)

    def listen(self, most_waiting: int = _MOST_WAITING) -> Listener:
        """Hear of every event from now on: with `async for`, or with `get()` in a thread. Use it in a `with` block.

        Whoever is more than *most_waiting* events behind is told so by `listener.missed`, and `events()` has the rest.
        """
        return self._journal.listen(most_waiting)

    def _running(self) -> Turn | None:
        turn = self._turn
        return turn if turn is not None and turn.status == "running" else None

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
                if self.inbox.ready():
                    return True
                with self.token.on_cancel(ring):
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
        """Start a turn with all that the inbox holds, in one transaction; but not with what was to stop this very turn.

        *own* is the message that it was started with: it is in the turn also if a stop came since, and holds the rest.
        """
        journal = self._journal
        with self._writing():
            self._seal_left()
            ready = [
                each for each in journal.inbox if each is own or (each.state == "accepted" and each.against != turn.id)
            ]
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

    # -- messages ----------------------------------------------------------------------------------------------------

    def post(
        self,
        text: Content,
        mode: Mode = "queue",
        id: str | None = None,  # noqa: A002  (the contract's word)
        expect_turn: str | None = None,
    ) -> Receipt:
        """Leave a message, durably, and do what its mode says.

        "queue": for the next turn. "steer": into this turn, breaking its step. "interrupt": stop this turn, and start
        the next with it. "rollback": as that, and take this turn out of the history. When nothing runs, or not the turn
        that was expected, all mean: the next turn; the receipt says so. The same *id* again gives the same receipt.

        While a tool waits for the answer to a question, a message of mode "queue" or "steer" is that answer.
        """
        if mode not in _MODES:
            msg = f"mode is one of {', '.join(_MODES)}; not {mode!r}"
            raise ValueError(msg)
        message = to_message(text)
        journal = self._journal
        with self._writing():
            known = journal.inbox.find(id) if id else None
            if known is not None:
                return Receipt(known)
            turn = self._running()
            if turn is not None and turn.is_over:
                turn = None
            became, note = _what_becomes(mode, turn, expect_turn)
            letter = Letter(id or secrets.token_hex(8), became, message, note, time.time())
            letter.against = turn.id if turn is not None and became in ("interrupt", "rollback") else ""
            journal.inbox.expect(letter)
            try:
                journal.append("", MessageAccepted(letter.id, became, message, note))
            except BaseException:
                journal.inbox.withdraw(letter)
                raise
            step = turn.step if turn is not None else None
            if turn is not None and self._answers(letter, turn, expect_turn):
                return Receipt(letter)
        receipt = Receipt(letter)
        if turn is not None and step is not None:
            receipt = self._act(letter, turn, step)
        elif mode == "rollback" and expect_turn is None:
            self._roll_last_back()
        self._ring()
        return receipt

    def _answers(self, letter: Letter, turn: Turn, expected: str | None) -> bool:
        """Make the message the answer to an open question, if there is one; the lock is held.

        One that is to stop something is never taken for an answer. Whether a stop or the answer came first is decided
        here: what comes to a turn that is being stopped goes its ordinary way.
        """
        if letter.mode not in ("queue", "steer") or turn.is_stopping or expected not in (None, turn.id):
            return False
        try:
            return letter.state == "accepted" and self._people.hear(letter, turn.id)
        except StoreError:
            return False  # it is accepted, and that it could not be applied yet is nothing new for a message

    def _act(self, letter: Letter, turn: Turn, step: CancellationToken) -> Receipt:
        """Do to the running turn what a message asks for, now that it is safe."""
        by = f"message {letter.id}"
        if letter.mode == "steer":
            step.cancel("steer", detail=by)
        elif letter.mode == "interrupt":
            letter.stopped = turn.cancel("interrupt", by=by)
            return Receipt(letter, turn)
        elif letter.mode == "rollback":
            letter.stopped = self._roll_back(turn, by)
            return Receipt(letter, turn)
        return Receipt(letter)

    def queue(self, text: Content) -> Receipt:
        """Leave a message for the next turn."""
        return self.post(text, "queue")

    def steer(self, text: Content) -> Receipt:
        """Put a message into the running turn, breaking its step."""
        return self.post(text, "steer")

    def interrupt(self, text: Content | None = None) -> Receipt:
        """Stop the running turn; *text* starts the next one."""
        if text is not None:
            return self.post(text, "interrupt")
        return self._stop_receipt("interrupt", lambda turn: turn.cancel("interrupt", by="interrupt()"))

    def stop(
        self,
        when: Literal["now", "step"] = "now",
        *,
        scope: Literal["turn", "all"] = "turn",
        reason: str = "stop",
        detail: str = "",
    ) -> Receipt:
        """Stop the running turn, and hold what waits in the inbox. `when="step"`: after its step; nothing is cut.

        What goes on in the background belongs to the session, and goes on; `scope="all"` stops it as well.
        """
        if when not in ("now", "step"):
            msg = f'when is "now" or "step", not {when!r}'
            raise ValueError(msg)
        if scope not in ("turn", "all"):
            msg = f'scope is "turn" or "all", not {scope!r}'
            raise ValueError(msg)
        held = self.inbox.hold()  # before the turn ends: what waits must not start the next one

        def end(turn: Turn) -> bool:
            if when == "now":
                return turn.cancel(reason, detail=detail, by="stop()")
            turn.wants_pause = True
            return not turn.is_stopping

        receipt = self._stop_receipt("stop", end)
        if scope == "all":
            self._people.keeper.stop_all()
        self._write_held(held)
        return receipt

    def rollback(self) -> Receipt:
        """Take the running turn, or when nothing runs the last one, out of the history; the log keeps it."""
        turn = self._running()
        if turn is None:
            done = self._roll_last_back()
            receipt = self._stop_receipt("rollback", lambda _: False)
            receipt.letter.note = "" if done else "there is no turn to take back"
            return receipt
        return self._stop_receipt("rollback", lambda turn: self._roll_back(turn, "rollback()"))

    def _stop_receipt(self, mode: Literal["stop", "interrupt", "rollback"], end: Callable[[Turn], bool]) -> Receipt:
        """Do something to the running turn, if there is one, and make a receipt of it."""
        turn = self._running()
        stopped = end(turn) if turn is not None else False  # before all else: the receipt can wait
        letter = Letter("", mode, None)
        letter.settle("applied")
        if turn is None:
            letter.note = "no turn was running"
            return Receipt(letter)
        letter.stopped = stopped
        letter.turn_id = turn.id
        if not letter.stopped:
            letter.note = "the turn had been stopped before, or was over"
        return Receipt(letter, turn)

    def _roll_back(self, turn: Turn, by: str) -> bool:
        turn.wants_rollback = True
        stopped = turn.cancel("rollback", by=by)
        if not stopped:
            # It was over, or being stopped for another reason. If its end is written already, it knew nothing of us.
            with self._journal.lock:
                last = self._journal.history.last
                if last is not None and last.id == turn.id:
                    self._journal.append(turn.id, TurnRolledBack())
        return stopped

    def _roll_last_back(self) -> bool:
        with self._writing():
            last = self._journal.history.last
            if last is None or self.is_running:
                return False
            self._journal.append(last.id, TurnRolledBack())
            return True

    def _write_held(self, held: list[Letter]) -> None:
        """Write down what is held. A boundary: a store that fails must not make a failure of a stop that has worked."""
        try:
            with self._journal.lock:
                still = [MessageHeld(letter.id) for letter in held if letter.state == "held"]
                if still and not self._closed:
                    self._journal.append("", *still)
        except StoreError as error:
            for letter in held:
                letter.note = f"held, and that could not be written down: {error}"

    def release(self, id: str | None = None) -> int:  # noqa: A002  (the contract's word)
        """Let held messages go on: all, or one. Gives how many."""
        with self._writing():
            held = [letter for letter in self.inbox.held() if id in (None, letter.id)]
            if held:
                self._journal.append("", *(MessageReleased(letter.id) for letter in held))
        self._ring()
        return len(held)

    def answer(self, request_id: str, value: Any) -> bool:  # noqa: ANN401  (a question may want anything)
        """Answer an approval or a question; False if it is not open, or not any more."""
        return self._people.answer(request_id, value)

    def cancel_call(self, call_id: str, reason: str = "stop") -> bool:
        """Stop one call of the running turn, which goes on; False if there is no such call, or it had ended."""
        turn = self._running()
        batch = turn.batch if turn is not None else None
        return batch is not None and batch.cancel_call(call_id, reason)

    def _ring(self) -> None:
        wake = self._wake
        if wake is not None:
            wake()

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

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the lock of an open session. One that is closed in the middle of it, by a signal handler, was closed."""
        try:
            with self._journal.lock:
                self._check_open()
                yield
        except LeaseLost:
            self._check_open()
            raise

    def _check_open(self) -> None:
        if self._closed:
            msg = f"session {self.id!r} is closed; open it again with agent.session({self.id!r}, store)"
            raise SessionClosed(msg)

    def _make_child(self, agent: Agent, token: CancellationToken, grace: float) -> Session:
        name = f"{self.id}/{secrets.token_hex(4)}"
        return Session(agent, name, self._journal.store, parent=token, grace=grace, above=self._people)


def _what_becomes(mode: Mode, turn: Turn | None, expected: str | None) -> tuple[Mode, str]:
    """What a message becomes, and why if that is not what was asked for."""
    if mode == "queue":
        return "queue", ""
    if turn is None:
        return "queue", "no turn was running: it starts the next one"
    if expected is not None and turn.id != expected:
        return "queue", f"turn {expected} was over: it starts the next one"
    if mode == "steer" and turn.is_stopping:
        return "queue", "the running turn was being stopped: it starts the next one"
    return mode, ""


def _release(store: Store, lease: Lease) -> None:
    """Give a lease back. A boundary: it may be the garbage collector that calls, or the end of the process."""
    with contextlib.suppress(StoreError):
        store.release(lease)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
