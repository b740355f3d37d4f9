"""Events of a session and its turns, of questions to the user and of child sessions."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

from halter.models.types import Usage

TurnStatus: TypeAlias = Literal["running", "done", "interrupted", "failed"]


class SessionCreated(Struct, frozen=True, gc=False, tag="session.created"):
    """A session was created before it had a message. A session that begins with one has no such event."""

    agent: str = ""  # the name of the agent that will answer
    owner: str = ""  # the id of the gateway key that created it, or the name of a chat platform; empty if not known
    workspace: str = ""  # the directory in which its tools work, if the client has chosen one


class SessionChanged(Struct, frozen=True, gc=False, tag="session.changed"):
    """Somebody has renamed the session, or chosen another model for its next turns. What is empty has not changed."""

    title: str = ""
    model: str = ""


class TurnStarted(Struct, frozen=True, gc=False, tag="turn.started"):
    """A turn begins."""

    model: str  # the model that is asked first
    continues: str = ""  # the id of the interrupted turn that this one continues, if any


class TurnStopping(Struct, frozen=True, gc=False, tag="turn.stopping"):
    """Somebody has asked the turn to stop."""

    reason: str  # "interrupt", "stop", "rollback", "disconnect", "shutdown", "external", ...
    detail: str
    by: str  # who asked; empty if not known
    asked_at: float  # time.time()


class TurnFinished(Struct, frozen=True, gc=False, tag="turn.finished"):
    """The turn is over: every call has its outcome, and nothing is added to it any more but a late end of a call."""

    status: TurnStatus
    reason: str = ""  # why it was stopped or failed, or ended early
    detail: str = ""
    error: str = ""  # the text of the error, if it failed
    usage: Usage = Usage()
    after: float | None = None  # seconds since it was asked to stop; None if it was not


class TurnRolledBack(Struct, frozen=True, gc=False, tag="turn.rolled_back"):
    """The turn was taken out of the conversation. It stays in the log."""

    restored: list[str] = []  # files that it had changed and that were restored
    kept: dict[str, str] = {}  # files that it had changed and that were left as they are, with the reason


class OutputRejected(Struct, frozen=True, gc=False, tag="output.rejected"):
    """An answer does not fit the agent's `output` type. The model is told why, and asked to answer again."""

    message: str  # what the model is told
    retries_left: int = 0  # after the one that follows


class QuestionAsked(Struct, frozen=True, gc=False, tag="question.asked"):
    """A tool asks the user. Only `session.answer(id, value)` or a steer answers it; a queued message waits its turn."""

    id: str
    question: str
    choices: list[str] | None = None  # the answers that are offered; others are possible


class QuestionAnswered(Struct, frozen=True, tag="question.answered"):
    """A question has its answer, or was withdrawn because the call that asked has ended."""

    id: str
    value: Any = None
    withdrawn: bool = False


class ChildStarted(Struct, frozen=True, gc=False, tag="child.started"):
    """A tool has delegated work to another agent, in a child session."""

    session: str  # the id of the child session
    agent: str  # the name of the other agent
    task: str = ""  # what it was asked to do


class ChildProgress(Struct, frozen=True, gc=False, tag="child.progress"):
    """A child session has started a call of a tool."""

    session: str
    tool: str
    arguments: str = ""  # JSON; only its beginning if it is long


class ChildFinished(Struct, frozen=True, gc=False, tag="child.finished"):
    """The turn of a child session is over."""

    session: str
    status: TurnStatus
    reason: str = ""
    usage: Usage = Usage()  # of the child, and of its own children
