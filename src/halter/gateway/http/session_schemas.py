"""The JSON bodies that are about whole sessions, and about the agents that they can be made with."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from halter.gateway.http.schemas import Body, Name, Word

__all__ = [
    "AgentList",
    "AgentView",
    "BranchBody",
    "CompactionView",
    "ContextView",
    "PdfText",
    "RetryBody",
    "SessionBody",
    "SessionEditBody",
    "SessionList",
    "SessionView",
    "TurnView",
    "UsageView",
]

_MAX_TITLE = 200


class SessionBody(Body):
    """A new session: with this id, or a generated one; with this agent, or the first."""

    id: Name | None = None
    agent: Word | None = None


class SessionEditBody(Body):
    """Another title for a session, or another model from its next turn on."""

    title: Annotated[str, Meta(min_length=1, max_length=_MAX_TITLE, pattern=r"\S")] | None = None
    model: Word | None = None


class PdfText(Struct):
    """The text of a PDF; `is_cut` if it was truncated."""

    text: str
    pages: int
    is_cut: bool


class RetryBody(Body):
    """The last turn once more: it is removed, and its message is sent again, with this text if there is one.

    `expect_turn` names the turn that is meant: if another one is the last, nothing is done.
    """

    text: Annotated[str, Meta(min_length=1)] | None = None
    files: bool = False  # restore the files that the turn has changed
    expect_turn: Word | None = None


class BranchBody(Body):
    """A new session with the conversation before a turn, and the message of that turn, with this text if there is one.

    Without `turn`, it has the whole conversation, and no message is sent.
    """

    turn: Word | None = None
    text: Annotated[str, Meta(min_length=1)] | None = None
    id: Name | None = None


class TurnView(Struct, kw_only=True):
    """A turn, the running one or the last."""

    id: str
    status: Literal["running", "done", "interrupted", "failed"]
    stopping: bool
    reason: str = ""
    detail: str = ""
    text: str = ""


class ContextView(Struct, kw_only=True):
    """The approximate number of tokens of the next request, and the model's context window, if it is known."""

    tokens: int
    window: int | None


class UsageView(Struct, kw_only=True):
    """The usage of all turns. `cost` is in USD, and null if it is unknown."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: float | None


class SessionView(Struct, kw_only=True):
    """A session. `events`, in lists, is the number of its last event; `questions` counts open questions and approvals.

    `model`, `context` and `usage` are those of a loaded session.
    """

    id: str
    agent: str
    state: Literal["running", "idle", "asleep"]
    title: str
    waiting: int
    created_at: float
    updated_at: float
    questions: int = 0
    events: int | None = None
    turn: TurnView | None = None
    model: str = ""
    context: ContextView | None = None
    usage: UsageView | None = None


class SessionList(Struct, kw_only=True):
    """Sessions, the latest used first; those of a search, the best match first. `found` has what was found in each."""

    sessions: list[SessionView]
    notices: list[str] = []  # to show to users at the start
    found: dict[str, str] = {}


class CompactionView(Struct, kw_only=True):
    """Whether the conversation will be compacted before the next request, and about how many tokens it has now."""

    scheduled: bool
    tokens: int


class AgentView(Struct, kw_only=True):
    """An agent. `sandbox` is empty if it has no tools that start processes; `approve` says who decides about calls.

    `workspace` is the folder of its file tools; empty if it has none.
    """

    name: str
    model: str
    fallbacks: list[str]
    tools: list[str]
    sandbox: str
    approve: Literal["auto", "ask", "deny", "unattended", "function"]
    workspace: str = ""


class AgentList(Struct, kw_only=True):
    """The agents of the gateway, the first is the default; and the models that a session can be changed to."""

    agents: list[AgentView]
    models: list[str]
