"""What people may say to a session, at any time and from anywhere: messages, stops and answers.

Any thread, any event loop and any signal handler may call any method here. What they do is: write to the inbox,
durably, and cancel tokens. Only the task that runs a turn takes messages out of the inbox. So an interrupt carries no
text: the text is in the inbox before the turn's token is cancelled, and if the turn ended by itself just then, nothing
is lost and nothing is left behind that could hurt the next one.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from typing import TYPE_CHECKING, Any, Final, Literal

from halter.cancel.token import NEVER, CancellationToken
from halter.errors import LeaseLost, SessionClosed, StoreError
from halter.events import (
    MessageAccepted,
    MessageEdited,
    MessageHeld,
    MessageReleased,
    MessageRemoved,
    TurnRolledBack,
)
from halter.inbox import Letter, Receipt, to_message
from halter.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from halter.events import Event, EventData, Mode
    from halter.inbox import Content, Inbox
    from halter.journal import Journal
    from halter.listener import Listener
    from halter.models.model import Message
    from halter.people import People

__all__ = ["Delivery"]

_MODES: Final = ("queue", "steer", "interrupt", "rollback")
_MOST_WAITING: Final = 10_000  # events that one listener may be behind


class Delivery:
    """The outside of a session: how it stands, and the ways to reach it. What runs its turns is `Session`."""

    def __init__(self, journal: Journal) -> None:
        self.id = journal.session
        self._journal = journal
        self._people: People
        self._turn: Turn | None = None
        self._wake: Callable[[], object] | None = None  # of serve()
        self._closed = False

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

    @property
    def keeps(self) -> bool:
        """Whether its tools keep something in it, such as a browser or a job, that ends when it is closed."""
        return bool(self._people.keeper)

    def events(self, after: int = 0) -> list[Event]:
        """The log, from the event behind number *after* on."""
        return self._journal.store.read(self.id, after)

    def listen(self, most_waiting: int = _MOST_WAITING, *, only: Collection[type[EventData]] = ()) -> Listener:
        """Hear of every event from now on: with `async for`, or with `get()` in a thread. Use it in a `with` block.

        *only* names kinds of events, by their classes; of others nothing is heard.

        Whoever is more than *most_waiting* events behind is told so by `listener.missed`, and `events()` has the rest.
        """
        return self._journal.listen(most_waiting, only)

    def _show_last(self) -> None:
        """Show the last turn that is part of the conversation."""
        last = self._journal.history.last
        self._turn = Turn.of_past(last) if last is not None else None

    def _running(self) -> Turn | None:
        turn = self._turn
        return turn if turn is not None and turn.status == "running" else None

    # -- messages ----------------------------------------------------------------------------------------------------

    def post(
        self,
        text: Content,
        mode: Mode = "queue",
        id: str | None = None,  # noqa: A002  (the contract's word)
        expect_turn: str | None = None,
        *,
        preparing: str = "",
    ) -> Receipt:
        """Leave a message, durably, and do what its mode says.

        "queue": for the next turn. "steer": into this turn, breaking its step. "interrupt": stop this turn, and start
        the next with it. "rollback": as that, and take this turn out of the history. When nothing runs, or not the turn
        that was expected, all mean: the next turn; the receipt says so. The same *id* again gives the same receipt.

        While a tool waits for the answer to a question, a message of mode "queue" or "steer" is that answer.

        One that is not whole yet, such as a recording that is being transcribed, says what is being done to it:
        *preparing*. It is safe from then on and keeps its place, and those behind it wait for it; it does what its mode
        says when `prepared()` has given it its content. Whoever posts such a message has to call that, in any case.
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
            letter.prepare(preparing)
            journal.inbox.expect(letter)
            try:
                journal.append("", MessageAccepted(letter.id, became, message, note, preparing))
            except BaseException:
                journal.inbox.withdraw(letter)
                raise
            step = turn.step if turn is not None else None
            if turn is not None and self._answers(letter, turn, expect_turn):
                return Receipt(letter)
        receipt = Receipt(letter)
        if turn is None and mode == "rollback" and expect_turn is None:
            self._roll_last_back()
        if turn is not None and step is not None:
            receipt = self._act(letter, turn, step)
        self._ring()
        return receipt

    def prepared(
        self,
        id: str,  # noqa: A002  (the contract's word)
        content: Content,
        note: str = "",
        *,
        is_done: bool = False,
    ) -> bool:
        """Give a message its content, for which it was posted as `preparing`, and do what its mode says.

        False if it does not wait for that any more: it was removed. What is held stays so. One that has turned out to
        be no message but an order, and *is_done*, leaves the inbox in the same moment.
        """
        message = to_message(content)
        with self._writing():
            letter = self.inbox.find(id)
            if letter is None or not letter.preparing:
                return False
            edited = MessageEdited(id, message, note, letter.preparing)
            if is_done:
                self._journal.append("", edited, MessageRemoved(id))
                self._ring()
                return True
            self._journal.append("", edited)
            turn = self._running()
            if turn is not None and (turn.is_over or letter.against not in ("", turn.id)):
                turn = None
            step = turn.step if turn is not None else None
            if turn is not None and self._answers(letter, turn, None):
                return True
        if letter.state == "accepted" and turn is not None and step is not None:
            self._act(letter, turn, step)
        self._ring()
        return True

    def _end_preparations(self, but: Collection[str]) -> None:
        """Let messages go on as they are whose preparation was cut off with the program that did it.

        *but* those stay in preparation that somebody here prepares.
        """
        for letter in self.inbox:
            if letter.preparing and letter.preparing not in but and letter.message is not None:
                note = f"the program ended while it was {letter.preparing}"
                self._journal.append("", MessageEdited(letter.id, letter.message, note))

    def _answers(self, letter: Letter, turn: Turn, expected: str | None) -> bool:
        """Make the message the answer to an open question, if there is one; the lock is held.

        One that is to stop something is never taken for an answer. Whether a stop or the answer came first is decided
        here: what comes to a turn that is being stopped goes its ordinary way.
        """
        if letter.preparing or letter.mode not in ("queue", "steer"):
            return False
        if turn.is_stopping or expected not in (None, turn.id):
            return False
        try:
            return letter.state == "accepted" and self._people.hear(letter, turn.id)
        except StoreError:
            return False  # it is accepted, and that it could not be applied yet is nothing new for a message

    def _act(self, letter: Letter, turn: Turn, step: CancellationToken) -> Receipt:
        """Do to the running turn what a message asks for, now that it is safe; and whole."""
        by = f"message {letter.id}"
        if letter.preparing:
            return Receipt(letter)
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
        said_in: str = "",
    ) -> Receipt:
        """Stop the running turn, and hold what waits in the inbox. `when="step"`: after its step; nothing is cut.

        What goes on in the background belongs to the session, and goes on; `scope="all"` stops it as well.

        If a message says that it is to stop, *said_in* is its id. The stop has its place then: it holds what came
        before it, and the message itself, and nothing that came later; and that message's receipt tells if it stopped.
        """
        if when not in ("now", "step"):
            msg = f'when is "now" or "step", not {when!r}'
            raise ValueError(msg)
        if scope not in ("turn", "all"):
            msg = f'scope is "turn" or "all", not {scope!r}'
            raise ValueError(msg)
        said = self.inbox.find(said_in) if said_in else None
        held = self.inbox.hold(said)  # before the turn ends: what waits must not start the next one

        def end(turn: Turn) -> bool:
            if when == "now":
                return turn.cancel(reason, detail=detail, by="stop()")
            turn.wants_pause = True
            return not turn.is_stopping

        receipt = self._stop_receipt("stop", end)
        if scope == "all":
            self._people.keeper.stop_all()
        if said is not None:
            said.stopped = said.stopped or receipt.stopped
        self._write_held(held)
        self._ring()  # what is newer than the stop need not wait for those that it holds
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
                if self._journal.history.ends_with(turn.id):
                    self._journal.append(turn.id, TurnRolledBack())
        return stopped

    def _roll_last_back(self) -> bool:
        with self._writing():
            last = self._journal.history.last
            if last is None or self.is_running:
                return False
            self._journal.append(last.id, TurnRolledBack())
            self._show_last()
            return True

    def _write_held(self, held: list[Letter]) -> None:
        """Write down what is held. A boundary: a store that fails must not make a failure of a stop that has worked."""
        if not held:
            return  # as a rule: who stops does not wait for the lock
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
