"""What can be done to a session from outside: the same for HTTP and for a WebSocket.

Each command is done between two awaits, in the loop in which the turns run: nothing changes in between.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from halter.bundle import bundle_here
from halter.gateway.limits import Allowance, TooMany
from halter.gateway.messages import StoppedView, view_letter, view_receipt
from halter.gateway.problems import Problem
from halter.inbox import Letter, Receipt
from halter.listener import loop_bell
from halter.models.model import Text

if TYPE_CHECKING:
    from halter.bundle import Bundle
    from halter.cancel.token import CancellationToken
    from halter.gateway.hall import Hall
    from halter.gateway.keys import Key
    from halter.gateway.messages import (
        EditBody,
        LetterView,
        MessageBody,
        MessageForm,
        ReceiptView,
        SessionBody,
        StopAllBody,
        StopBody,
    )
    from halter.gateway.room import Room
    from halter.models.model import Part
    from halter.turn import Turn

__all__ = ["Commands"]

_MOMENT: Final = 0.03  # seconds
_LATER: Final = 0.25  # that an answer waits longer at most, because others are ending


class Commands:
    """Messages, stops and answers, on their way into a session."""

    def __init__(self, hall: Hall) -> None:
        self._hall = hall
        self._messages: dict[str, Allowance] = {}  # of keys
        self._sessions: dict[str, Allowance] = {}

    async def create(self, key: Key, body: SessionBody) -> tuple[Room, bool]:
        """Make a session, or find it; True if it is new."""
        allowance = self._sessions.get(key.id)
        if allowance is None:
            allowance = self._sessions[key.id] = Allowance(self._hall.limits.key_sessions)
        wait = allowance.wait()
        if wait:
            msg = "too many sessions of this key in a minute"
            raise TooMany(msg, "sessions", wait)
        allowance.take()
        return await self._hall.create(body.id, body.agent)

    def message(self, room: Room, key: Key, body: MessageBody) -> ReceiptView:
        """Accept a message, or say why not. When this returns, it is durable."""
        session = room.session
        self._check(room, key, body.id)
        try:
            receipt = session.post(body.text, body.mode, body.id, body.expect_turn)
        except ValueError as error:
            raise _empty() from error
        if room not in self._hall.busy and room.is_busy:
            room.key = key.id
            self._hall.busy.add(room)
        return view_receipt(session.id, receipt)

    async def hear(self, room: Room, key: Key, form: MessageForm, parts: list[Part]) -> ReceiptView:
        """Accept a message with pictures or recordings, which are transcribed, or say why not.

        Not between two awaits, as it is written in a thread: it may be large. So its turn is counted before.
        """
        session, busy = room.session, self._hall.busy
        self._check(room, key, form.id)
        if room not in busy:
            room.key = key.id
            busy.add(room)
        try:
            receipt = await self._hall.hearing.hear(session, [form.text, *parts], form.mode, form.id, form.expect_turn)
        except ValueError as error:
            raise _empty() from error
        finally:
            if not room.is_busy:
                busy.discard(room)
        return view_receipt(session.id, receipt)

    def _check(self, room: Room, key: Key, message: str | None) -> None:
        if message is not None and room.session.inbox.find(message) is not None:
            return  # what was accepted is not refused the second time
        hall, limits = self._hall, self._hall.limits
        if hall.is_draining:
            raise Problem(503, "the gateway is shutting down: nothing was accepted", kind="draining", retry_after=5.0)
        if len(room.session.inbox) >= limits.inbox:
            msg = f"{limits.inbox} messages wait in this session"
            raise TooMany(msg, "inbox")
        hall.check_turns(room, key.id)
        ours = self._messages.get(key.id)
        if ours is None:
            ours = self._messages[key.id] = Allowance(limits.key_messages)
        for who, allowance in (("this session", room.messages), ("this key", ours)):
            wait = allowance.wait()
            if wait:
                msg = f"too many messages of {who} in a minute"
                raise TooMany(msg, "messages", wait)
        room.messages.take()
        ours.take()

    async def stop(self, room: Room, key: Key, body: StopBody) -> ReceiptView:
        """Stop what is meant. Nothing is stopped, and nothing is wrong, if that has ended or does not run."""
        session = room.session
        if (body.scope == "call") != (body.call_id is not None):
            raise Problem(422, 'scope "call" and call_id belong together', field="call_id", kind="field")
        turn = session.turn if session.is_running else None
        if body.expect_turn is not None and (turn is None or turn.id != body.expect_turn):
            return _unstopped(session.id, f"turn {body.expect_turn} does not run")
        if body.call_id is not None:
            stopped = session.cancel_call(body.call_id, body.reason)
            note = "" if stopped else "there is no such call, or it had ended"
            return _stopped(session.id, turn, note, stopped=stopped)
        receipt = session.stop(scope="all" if body.scope == "all" else "turn", reason=body.reason, detail=_by(key))
        if turn is not None:
            await _ended([turn], body.patience)
        is_over = turn is not None and turn.ended.is_cancelled
        return view_receipt(session.id, receipt, finished=is_over)

    async def stop_all(self, key: Key, body: StopAllBody) -> StoppedView:
        """Stop every session. What waits in one that is asleep goes on waiting, until somebody asks for it."""
        self._hall.wake_no_more()
        turns = self._stop_awake(key, body)
        if await self._hall.loaded():
            turns += self._stop_awake(key, body)
        await _ended(turns, body.patience)
        return StoppedView(stopped=len(turns), finished=sum(turn.ended.is_cancelled for turn in turns))

    def _stop_awake(self, key: Key, body: StopAllBody) -> list[Turn]:
        """Stop those that are awake; gives the turns that this has stopped."""
        turns = []
        for room in list(self._hall.rooms.values()):
            session = room.session
            if room.is_busy or (body.scope == "all" and session.keeps):
                turn = session.turn
                receipt = session.stop(scope=body.scope, reason=body.reason, detail=_by(key))
                if receipt.stopped and turn is not None:
                    turns.append(turn)
        return turns

    def rollback(self, room: Room) -> ReceiptView:
        """Take the running or the last turn out of the history."""
        return view_receipt(room.session.id, room.session.rollback())

    def answer(self, room: Room, request: str, value: object) -> None:
        """Answer an approval or a question."""
        if not room.session.answer(request, value):
            msg = f"nothing of the name {request!r} is asked, or not any more"
            raise Problem(404, msg, field="request", kind="not-asked")

    def edit(self, room: Room, message: str, body: EditBody) -> LetterView:
        """Change the text of a message that waits, or let it go on if it is held; its other parts stay."""
        letter = self._waiting(room, message)
        inbox = room.session.inbox
        if body.text is not None and letter.message is not None:
            others = [part for part in letter.message.parts if not isinstance(part, Text)]
            try:
                done = inbox.edit(message, [body.text, *others])
            except ValueError as error:
                raise Problem(422, "a text has something in it", field="text", kind="field") from error
            if not done and letter.preparing:
                raise Problem(409, f"it can be changed when this is done: {letter.preparing}", kind="preparing")
            if not done:
                raise _too_late(letter)
        if body.state is not None:
            self._hall.check_turns(room, room.key)
            room.session.release(message)
        return view_letter(letter)

    def remove(self, room: Room, message: str) -> LetterView:
        """Take a message out, if it still waits."""
        letter = self._waiting(room, message)
        seen = view_letter(letter)
        if not room.session.inbox.remove(message):
            raise _too_late(letter)
        seen.state = letter.state
        return seen

    @staticmethod
    def _waiting(room: Room, message: str) -> Letter:
        letter = room.session.inbox.find(message)
        if letter is None:
            raise Problem(404, f"there is no message {message!r}", field="message", kind="no-message")
        if letter.state not in ("accepted", "held"):
            raise _too_late(letter)
        return letter


async def _ended(turns: list[Turn], patience: float) -> None:
    """Wait for their end so long; and a moment in any case, for as a rule that is all it takes.

    Then come those who listen to the sessions, and all that is ending just now: it is there that people see it stop.
    """
    bundle = bundle_here()
    until = asyncio.get_running_loop().time() + max(patience, _MOMENT)
    for turn in turns:
        if not turn.ended.is_cancelled:
            await _rings(turn.ended, until, bundle)
    await bundle.quiet()
    await asyncio.sleep(0)


async def _rings(bell: CancellationToken, until: float, bundle: Bundle) -> None:
    """Wait for a bell so long; or somewhat longer, while many are ending, which may be what it takes its time for."""
    loop = asyncio.get_running_loop()
    ring, rung = loop_bell()
    timer = loop.call_at(until, lambda: wait_or_ring())  # noqa: PLW0108  (it comes below, for it needs the timer)

    def wait_or_ring() -> None:
        nonlocal timer
        if bundle.is_ending:
            timer = loop.call_at(until + _LATER, ring)
        else:
            ring()

    try:
        with bell.on_cancel(ring):
            await rung
    finally:
        timer.cancel()


def _by(key: Key) -> str:
    return f"over the gateway, with the key {key.name!r}"


def _empty() -> Problem:
    return Problem(422, "a message has a text that is not empty", field="text", kind="field")


def _too_late(letter: Letter) -> Problem:
    return Problem(409, f"the message is {letter.state}, and waits no more", field="message", kind="too-late")


def _unstopped(session_id: str, note: str) -> ReceiptView:
    return _stopped(session_id, None, note, stopped=False)


def _stopped(session_id: str, turn: Turn | None, note: str, *, stopped: bool) -> ReceiptView:
    letter = Letter("", "stop", None, note)
    letter.settle("applied")
    letter.stopped = stopped
    letter.turn_id = turn.id if turn is not None else ""
    return view_receipt(session_id, Receipt(letter))
