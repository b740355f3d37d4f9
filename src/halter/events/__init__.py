"""The events of a session: the same classes for `stream()`, the log, subscribers and the gateway.

An `Event` has a number, a time, a session and a turn; its `data` is one of the classes here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halter._lazy import lazy_exports

if TYPE_CHECKING:
    from halter.events.context import CompactionReason as CompactionReason
    from halter.events.context import ContextCompacted as ContextCompacted
    from halter.events.context import SummaryDiscarded as SummaryDiscarded
    from halter.events.event import Event as Event
    from halter.events.event import EventData as EventData
    from halter.events.event import Missed as Missed
    from halter.events.event import kind_of as kind_of
    from halter.events.messages import MessageAccepted as MessageAccepted
    from halter.events.messages import MessageApplied as MessageApplied
    from halter.events.messages import MessageEdited as MessageEdited
    from halter.events.messages import MessageHeld as MessageHeld
    from halter.events.messages import MessageReleased as MessageReleased
    from halter.events.messages import MessageRemoved as MessageRemoved
    from halter.events.messages import Mode as Mode
    from halter.events.requests import RequestCancelled as RequestCancelled
    from halter.events.requests import RequestEvent as RequestEvent
    from halter.events.requests import RequestFinished as RequestFinished
    from halter.events.requests import RequestRetry as RequestRetry
    from halter.events.requests import RequestStarted as RequestStarted
    from halter.events.tools import ApprovalAnswered as ApprovalAnswered
    from halter.events.tools import ApprovalAsked as ApprovalAsked
    from halter.events.tools import ToolCancelling as ToolCancelling
    from halter.events.tools import ToolEvent as ToolEvent
    from halter.events.tools import ToolFinished as ToolFinished
    from halter.events.tools import ToolFinishedLate as ToolFinishedLate
    from halter.events.tools import ToolProgress as ToolProgress
    from halter.events.tools import ToolStarted as ToolStarted
    from halter.events.turns import ChildFinished as ChildFinished
    from halter.events.turns import ChildProgress as ChildProgress
    from halter.events.turns import ChildStarted as ChildStarted
    from halter.events.turns import OutputRejected as OutputRejected
    from halter.events.turns import QuestionAnswered as QuestionAnswered
    from halter.events.turns import QuestionAsked as QuestionAsked
    from halter.events.turns import SessionChanged as SessionChanged
    from halter.events.turns import SessionCreated as SessionCreated
    from halter.events.turns import TurnFinished as TurnFinished
    from halter.events.turns import TurnRolledBack as TurnRolledBack
    from halter.events.turns import TurnStarted as TurnStarted
    from halter.events.turns import TurnStatus as TurnStatus
    from halter.events.turns import TurnStopping as TurnStopping

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "context": ["CompactionReason", "ContextCompacted", "SummaryDiscarded"],
        "event": ["Event", "EventData", "Missed", "kind_of"],
        "messages": [
            "MessageAccepted",
            "MessageApplied",
            "MessageEdited",
            "MessageHeld",
            "MessageReleased",
            "MessageRemoved",
            "Mode",
        ],
        "requests": ["RequestCancelled", "RequestEvent", "RequestFinished", "RequestRetry", "RequestStarted"],
        "tools": [
            "ApprovalAnswered",
            "ApprovalAsked",
            "ToolCancelling",
            "ToolEvent",
            "ToolFinished",
            "ToolFinishedLate",
            "ToolProgress",
            "ToolStarted",
        ],
        "turns": [
            "ChildFinished",
            "ChildProgress",
            "ChildStarted",
            "OutputRejected",
            "QuestionAnswered",
            "QuestionAsked",
            "SessionChanged",
            "SessionCreated",
            "TurnFinished",
            "TurnRolledBack",
            "TurnStarted",
            "TurnStatus",
            "TurnStopping",
        ],
    },
)
