"""Events of tool calls and of their approvals."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from halter.tools.approval import ApprovalRequest, Scope
from halter.tools.outcome import ToolOutcome


class ToolStarted(Struct, frozen=True, gc=False, tag="tool.started"):
    """A call is about to run. It is durable before the function is launched, so a crash never hides a call."""

    call_id: str
    name: str
    arguments: str  # JSON, fit for every provider; the answer's `ToolCall.sent` has what the model wrote


class ToolProgress(Struct, frozen=True, gc=False, tag="tool.progress"):
    """A running call has reported progress, by `ctx.report(text)`."""

    call_id: str
    name: str
    text: str
    is_diff: bool = False  # the text is a unified diff: what the call has changed in files


class ToolCancelling(Struct, frozen=True, gc=False, tag="tool.cancelling"):
    """The token of a running call was cancelled, and the call has not ended yet."""

    call_id: str
    name: str
    reason: str  # of the token: "interrupt", "stop", "steer", "timeout", ...
    detail: str


class ToolFinished(Struct, frozen=True, gc=False, tag="tool.finished"):
    """A call has its outcome, also if it was never started. Exactly one for each call."""

    outcome: ToolOutcome
    after: float | None = None  # seconds since the stop; None if it was not stopped


class ToolFinishedLate(Struct, frozen=True, gc=False, tag="tool.finished_late"):
    """An abandoned call has ended after all: `outcome.late` says how. Comes after its `tool.finished`, in any turn."""

    outcome: ToolOutcome


class ApprovalAsked(Struct, frozen=True, gc=False, tag="approval.asked"):
    """A call waits for approval: `session.answer(request.id, True)`, "session", "always", False or {"deny": "why"}."""

    request: ApprovalRequest


class ApprovalAnswered(Struct, frozen=True, gc=False, tag="approval.answered"):
    """It is decided whether a call may run: by an answer, by the agent's policy, or by a stop, which denies."""

    request_id: str
    call_id: str
    granted: bool
    note: str  # why; the model is told if it was denied
    by: str = ""  # who answered; empty if not known, or if the policy decided
    scope: Scope = "once"  # of a grant: what else it allows. A face keeps "always" in the settings


ToolEvent: TypeAlias = (
    ToolStarted | ToolProgress | ToolCancelling | ToolFinished | ToolFinishedLate | ApprovalAsked | ApprovalAnswered
)
