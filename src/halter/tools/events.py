"""What is told of calls while they run: one vocabulary for streams, logs and screens."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from halter.tools.approval import ApprovalRequest
from halter.tools.outcome import ToolOutcome


class ToolStarted(Struct, frozen=True, tag="tool.started"):
    """A call has been launched."""

    call_id: str
    name: str
    arguments: str  # the JSON text that the model wrote


class ToolProgress(Struct, frozen=True, tag="tool.progress"):
    """A call tells how far it is."""

    call_id: str
    name: str
    text: str


class ToolCancelling(Struct, frozen=True, tag="tool.cancelling"):
    """A running call has been told to stop, and has not ended yet."""

    call_id: str
    name: str
    reason: str
    detail: str


class ToolFinished(Struct, frozen=True, tag="tool.finished"):
    """A call has its outcome, started or not."""

    outcome: ToolOutcome
    after: float | None = None  # seconds since it was told to stop; None if nobody told it


class ToolFinishedLate(Struct, frozen=True, tag="tool.finished_late"):
    """An abandoned call has ended after all: see `outcome.late`."""

    outcome: ToolOutcome


class ApprovalAsked(Struct, frozen=True, tag="approval.asked"):
    """A call waits for a person to allow it."""

    request: ApprovalRequest


class ApprovalAnswered(Struct, frozen=True, tag="approval.answered"):
    """The question is settled: by an answer, by the policy, or withdrawn by a stop."""

    request_id: str
    call_id: str
    granted: bool
    note: str


ToolEvent: TypeAlias = (
    ToolStarted | ToolProgress | ToolCancelling | ToolFinished | ToolFinishedLate | ApprovalAsked | ApprovalAnswered
)
