"""Everything that happens in a session, in one vocabulary: for stream(), the log, and whoever listens.

An `Event` says when, in which session and in which turn; its `data` says what. The kinds that concern a request or a
tool are those of `halter.models.progress` and `halter.tools.events`; those of messages and turns are here.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

from halter.models.model import ReasoningDelta, TextDelta, Usage, UserMessage
from halter.models.progress import RequestCancelled, RequestFinished, RequestRetry, RequestStarted
from halter.tools.events import (
    ApprovalAnswered,
    ApprovalAsked,
    ToolCancelling,
    ToolFinished,
    ToolFinishedLate,
    ToolProgress,
    ToolStarted,
)

__all__ = [
    "ChildFinished",
    "ChildStarted",
    "Event",
    "EventData",
    "MessageAccepted",
    "MessageApplied",
    "MessageEdited",
    "MessageHeld",
    "MessageReleased",
    "MessageRemoved",
    "Missed",
    "Mode",
    "QuestionAnswered",
    "QuestionAsked",
    "SessionCreated",
    "TurnFinished",
    "TurnRolledBack",
    "TurnStarted",
    "TurnStatus",
    "TurnStopping",
]

Mode: TypeAlias = Literal["queue", "steer", "interrupt", "rollback"]
TurnStatus: TypeAlias = Literal["running", "done", "interrupted", "failed"]


class SessionCreated(Struct, frozen=True, tag="session.created"):
    """Somebody has made the session before there was anything to say. `agent` is the name of who is to answer."""

    agent: str = ""


class MessageAccepted(Struct, frozen=True, tag="message.accepted"):
    """A message is in the inbox, durably. `mode` is what it became, and `note` says why if that was not asked for.

    `preparing` says what is done to it before it can be applied, such as "transcribing"; `message.edited` ends that.
    """

    id: str
    mode: Mode
    message: UserMessage
    note: str = ""
    preparing: str = ""


class MessageEdited(Struct, frozen=True, tag="message.edited"):
    """A message that waits has been changed, or has its content now. `note` says what is to be said about that.

    `prepared` is what was done to it to have that, such as "transcribing": once for each message that was so accepted.
    """

    id: str
    message: UserMessage
    note: str = ""
    prepared: str = ""


class MessageApplied(Struct, frozen=True, tag="message.applied"):
    """A message has left the inbox for the conversation, in this turn.

    If it was the answer to a question, that is its `question`: the tool that asked has it, and it is no message of the
    user's beside that.
    """

    id: str
    mode: Mode
    note: str = ""
    question: str = ""


class MessageHeld(Struct, frozen=True, tag="message.held"):
    """A message waits until it is released, because a stop came after it."""

    id: str


class MessageReleased(Struct, frozen=True, tag="message.released"):
    """A held message may go on."""

    id: str


class MessageRemoved(Struct, frozen=True, tag="message.removed"):
    """A message was taken out of the inbox and will not be applied."""

    id: str


class TurnStarted(Struct, frozen=True, tag="turn.started"):
    """A turn begins. `continues` names the turn that was broken off, if this one goes on with it."""

    model: str
    continues: str = ""


class TurnStopping(Struct, frozen=True, tag="turn.stopping"):
    """Somebody has asked the turn to stop: who, why and when (`time.time()`)."""

    reason: str
    detail: str
    by: str
    asked_at: float


class TurnFinished(Struct, frozen=True, tag="turn.finished"):
    """The turn is over and sealed. `after` is how many seconds after it was asked to stop; None if nobody asked."""

    status: TurnStatus
    reason: str = ""
    detail: str = ""
    error: str = ""
    usage: Usage = Usage()
    after: float | None = None


class TurnRolledBack(Struct, frozen=True, tag="turn.rolled_back"):
    """The turn is not part of the conversation any more."""


class QuestionAsked(Struct, frozen=True, tag="question.asked"):
    """A tool asks the person; `session.answer(id, value)` answers, and so does the next message."""

    id: str
    question: str
    choices: list[str] | None = None


class QuestionAnswered(Struct, frozen=True, tag="question.answered"):
    """A question has its answer, or was withdrawn."""

    id: str
    value: Any = None
    withdrawn: bool = False


class ChildStarted(Struct, frozen=True, tag="child.started"):
    """Another agent was asked to do a part, in a session of its own."""

    session: str
    agent: str


class ChildFinished(Struct, frozen=True, tag="child.finished"):
    """Its turn is over."""

    session: str
    status: TurnStatus
    reason: str = ""


class Missed(Struct, frozen=True, tag="listener.missed"):
    """To one listener that was too slow: the events `first` to `last` were not told. `session.events()` has them."""

    first: int
    last: int


EventData: TypeAlias = (
    SessionCreated
    | MessageAccepted
    | MessageEdited
    | MessageApplied
    | MessageHeld
    | MessageReleased
    | MessageRemoved
    | TurnStarted
    | TurnStopping
    | TurnFinished
    | TurnRolledBack
    | RequestStarted
    | TextDelta
    | ReasoningDelta
    | RequestRetry
    | RequestCancelled
    | RequestFinished
    | ToolStarted
    | ToolProgress
    | ToolCancelling
    | ToolFinished
    | ToolFinishedLate
    | ApprovalAsked
    | ApprovalAnswered
    | QuestionAsked
    | QuestionAnswered
    | ChildStarted
    | ChildFinished
    | Missed
)


class Event(Struct):
    """One entry of the log. The store gives it its number, as it becomes durable."""

    seq: int
    time: float
    session: str
    turn: str
    data: EventData

    @property
    def kind(self) -> str:
        """What happened: "turn.started", "text.delta", ..."""
        return kind_of(self.data)


def kind_of(data: EventData) -> str:
    """The name of a kind of event, as it is written."""
    return str(type(data).__struct_config__.tag)
