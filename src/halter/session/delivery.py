"""Decisions about messages and stops, run by the store's writer.

Each function decides about one input, by the state at that moment; the writer runs them one at a time, so nothing
changes meanwhile. An interrupt carries no text: the text is durable in the inbox before the turn's token is cancelled.
So if the turn ends by itself at that moment, nothing is lost, and nothing is left that could affect the next turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from halter.events import (
    MessageAccepted,
    MessageEdited,
    MessageHeld,
    MessageReleased,
    MessageRemoved,
    TurnRolledBack,
)
from halter.session.turn_writer import seal_open_turn, withdrawal

if TYPE_CHECKING:
    from collections.abc import Collection

    from halter.events import Mode
    from halter.models.types import UserMessage
    from halter.session.history import History
    from halter.session.history_view import HistoryView
    from halter.session.log import Transaction
    from halter.session.session import Session
    from halter.session.turn_control import TurnControl

__all__ = ["MODES", "Post", "accept", "hold", "is_last", "not_last", "prepared", "release", "roll_back", "take_over"]

MODES: Final = ("queue", "steer", "interrupt", "rollback")


class Post(NamedTuple):
    """A message as it was posted."""

    id: str
    message: UserMessage
    mode: Mode
    expect_turn: str | None
    preparing: str


def accept(session: Session, tx: Transaction, post: Post) -> TurnControl | None:
    """Accept a message and do what its mode says; returns the turn to stop. A known id changes nothing."""
    if tx.inbox.find(post.id) is not None:
        return None
    running = tx.running
    mode, note = _becomes(post, running)
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
    by = f"message {message.id}"
    if message.mode == "steer":
        if running.turn.is_stopping or not session._questions.answer_with(tx, message):
            step = running.step  # the current one: a step that begins later already includes the steer
            tx.after_commit(lambda: step.cancel("steer", detail=by))
        return None
    if message.mode == "interrupt":
        tx.after_commit(lambda: session._note_stopped_by(message_id, running.cancel("interrupt", by=by)))
        return running
    if message.mode == "rollback" and message.against == running.turn.id:
        tx.after_commit(lambda: session._note_stopped_by(message_id, session._roll_back(running, by)))
        return running
    return None


def hold(tx: Transaction, up_to: str = "") -> int:
    """Hold the waiting messages, or those up to message *up_to*; returns how many."""
    last = tx.inbox.find(up_to) if up_to else None
    held = [
        MessageHeld(each.id)
        for each in tx.inbox
        if each.state == "accepted" and (last is None or each.number <= last.number)
    ]
    if held:
        tx.write("", *held)
    return len(held)


def release(tx: Transaction, message_id: str | None) -> int:
    """Release held messages: all, or one; returns how many."""
    held = [each.id for each in tx.inbox if each.state == "held" and message_id in (None, each.id)]
    if held:
        tx.write("", *(MessageReleased(each) for each in held))
    return len(held)


def roll_back(tx: Transaction, control: TurnControl | None) -> bool:
    """Roll a turn back: a running one when it is sealed, another now; by default the last. False if there is none."""
    if control is not None and tx.history.is_open(control.turn.id):
        control.wants_rollback = True  # its seal is decided after this command
        return True
    return roll_back_last(tx, control.turn.id if control is not None else "")


def roll_back_last(tx: Transaction, turn: str = "") -> bool:
    """Take the last turn out of the history, with *turn* only if it is that one; False if it was not done."""
    last = tx.history.last
    if last is None or tx.history.turn is not None or (turn and last.id != turn):
        return False
    tx.write(last.id, TurnRolledBack())
    return True


def is_last(history: History | HistoryView, turn: str | None) -> bool:
    """Whether a turn runs, or is the last one if none does; any turn if it is not named."""
    last = history.turn or history.last
    return turn is None or (last is not None and last.id == turn)


def not_last(turn: str | None) -> str:
    """Why nothing was rolled back."""
    return "there is no turn to roll back" if turn is None else f"turn {turn} is not the last one any more"


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


def _becomes(post: Post, running: TurnControl | None) -> tuple[Mode, str]:
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
