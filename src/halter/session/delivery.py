"""Decisions about messages, run by the store's writer.

Each function decides about one input, by the state at that moment; the writer runs them one at a time, so nothing
changes meanwhile. An interrupt carries no text: the text is durable in the inbox before the turn's token is cancelled.
So if the turn ends by itself at that moment, nothing is lost, and nothing is left that could affect the next turn.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final, NamedTuple

from halter.events import MessageAccepted, MessageEdited, MessageReleased, MessageRemoved
from halter.session.inbox import Receipt, to_message
from halter.session.stopping import roll_back_last, roll_back_running
from halter.session.turn_writer import seal_open_turn, withdrawal

if TYPE_CHECKING:
    from collections.abc import Collection

    from halter.events import Mode
    from halter.models.types import UserMessage
    from halter.session.inbox import Content
    from halter.session.log import EventLog, Transaction
    from halter.session.session import Session
    from halter.session.turn_control import TurnControl

__all__ = ["Post", "accept", "prepared", "release", "take_over"]

_MODES: Final = ("queue", "steer", "interrupt", "rollback")


class Post(NamedTuple):
    """A message as it was posted."""

    id: str
    message: UserMessage
    mode: Mode
    expect_turn: str | None
    preparing: str

    @classmethod
    def of(cls, content: Content, mode: Mode, message_id: str | None, expect_turn: str | None, preparing: str) -> Post:
        """Check what was posted, and give the message an id if it has none."""
        if mode not in _MODES:
            raise ValueError(f"mode must be one of {', '.join(_MODES)}, not {mode!r}")
        return cls(message_id or secrets.token_hex(8), to_message(content), mode, expect_turn, preparing)

    def receipt(self, log: EventLog, stops: TurnControl | None) -> Receipt:
        """Its receipt; *stops* is the turn that `accept()` has returned."""
        return Receipt(log, self.id, self.mode, turn=stops.turn if stops is not None else None)


def accept(session: Session, tx: Transaction, post: Post) -> TurnControl | None:
    """Accept a message and do what its mode says; returns the turn to stop. A known id changes nothing."""
    if tx.inbox.find(post.id) is not None:
        return None
    running = tx.running
    mode, note = _effective_mode(post, running)
    tx.write("", MessageAccepted(post.id, mode, post.message, note, post.preparing))
    if running is None and post.mode == "rollback" and post.expect_turn is None:
        roll_back_last(tx)
    return _act(session, tx, post.id)


def prepared(
    session: Session, tx: Transaction, message_id: str, content: UserMessage, note: str, *, is_done: bool
) -> bool:
    """Set the content of a message that was in preparation, and do now what its mode says."""
    message = tx.inbox.find(message_id)
    if message is None or not message.is_waiting or not message.preparing:
        return False
    tx.write("", MessageEdited(message_id, content, note, message.preparing))
    if is_done:
        tx.write("", MessageRemoved(message_id))
    else:
        _act(session, tx, message_id)
    return True


def _act(session: Session, tx: Transaction, message_id: str) -> TurnControl | None:
    """Apply a message's mode to the running turn, once the message is durable and complete."""
    message, running = tx.inbox.find(message_id), tx.running
    if message is None or running is None or message.state != "accepted" or message.preparing:
        return None
    by, log = f"message {message.id}", session._log
    if message.mode == "steer":
        if running.turn.is_stopping or not session._questions.answer_with(tx, message):
            step = running.step  # the current one: a step that begins later already includes the steer
            tx.after_commit(lambda: step.cancel("steer", detail=by))
        return None
    if message.mode == "interrupt":
        tx.after_commit(lambda: log.note_stopped_by(message_id, running.cancel("interrupt", by=by)))
        return running
    if message.mode == "rollback" and message.against == running.turn.id:
        tx.after_commit(lambda: log.note_stopped_by(message_id, roll_back_running(log, running, by)))
        return running
    return None


def release(tx: Transaction, message_id: str | None) -> int:
    """Release held messages: all, or one; returns how many."""
    held = [each.id for each in tx.inbox if each.state == "held" and message_id in (None, each.id)]
    if held:
        tx.write("", *(MessageReleased(each) for each in held))
    return len(held)


def take_over(tx: Transaction, prepares: Collection[str]) -> None:
    """Close everything that the last owner of the session left open."""
    seal_open_turn(tx, "crash", "the program ended in the middle of it")
    for turn, asked in list(tx.state.questions.values()):
        tx.write(turn, withdrawal(asked))
    _end_preparations(tx, prepares)


def _end_preparations(tx: Transaction, prepares: Collection[str]) -> None:
    """Use messages as they are whose preparation the last program did not finish, unless *prepares* names it."""
    for message in tx.inbox:
        if message.preparing and message.preparing not in prepares and message.message is not None:
            note = f"the program ended while it was {message.preparing}"
            tx.write("", MessageEdited(message.id, message.message, note))


def _effective_mode(post: Post, running: TurnControl | None) -> tuple[Mode, str]:
    """The mode that a message gets, and a note if it differs from what was asked for."""
    if post.mode == "queue":
        return "queue", ""
    if running is None:
        return "queue", "no turn was running: it starts the next one"
    if post.expect_turn is not None and running.turn.id != post.expect_turn:
        return "queue", f"turn {post.expect_turn} was over: it starts the next one"
    if post.mode == "steer" and running.turn.is_stopping:
        return "queue", "the running turn was being stopped: it starts the next one"
    return post.mode, ""
