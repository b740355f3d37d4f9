"""An event of a session: its place in the log, and its data."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from halter.events.context import ContextCompacted, SummaryDiscarded
from halter.events.messages import (
    MessageAccepted,
    MessageApplied,
    MessageEdited,
    MessageHeld,
    MessageReleased,
    MessageRemoved,
)
from halter.events.requests import RequestCancelled, RequestFinished, RequestRetry, RequestStarted
from halter.events.tools import (
    ApprovalAnswered,
    ApprovalAsked,
    ToolCancelling,
    ToolFinished,
    ToolFinishedLate,
    ToolProgress,
    ToolStarted,
)
from halter.events.turns import (
    ChildFinished,
    ChildProgress,
    ChildStarted,
    OutputRejected,
    QuestionAnswered,
    QuestionAsked,
    SessionChanged,
    SessionCreated,
    TurnFinished,
    TurnRolledBack,
    TurnStarted,
    TurnStopping,
)
from halter.models.types import ReasoningDelta, TextDelta


class Missed(Struct, frozen=True, tag="subscription.missed"):
    """For one subscriber that was too slow: it did not get the events `first` to `last`. `events()` has them."""

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
    | OutputRejected
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
    | ChildProgress
    | ChildFinished
    | SessionChanged
    | ContextCompacted
    | SummaryDiscarded
    | Missed
)


class Event(Struct, gc=False):
    """One entry of a session's log."""

    seq: int  # its number in the log, given when it becomes durable
    time: float  # time.time()
    session: str
    turn: str  # the id of the turn; empty outside of turns
    data: EventData

    @property
    def kind(self) -> str:
        """The kind of event, as it is stored: "turn.started", "text.delta", ..."""
        return kind_of(self.data)


def kind_of(data: EventData) -> str:
    """The kind of event that this data belongs to, as it is stored."""
    return str(type(data).__struct_config__.tag)


def kinds_except(*kept: type[EventData]) -> tuple[str, ...]:
    """All kinds but these: for the `without` of `Store.read()`, to read these only."""
    return tuple(str(each.__struct_config__.tag) for each in EventData.__args__ if each not in kept)
