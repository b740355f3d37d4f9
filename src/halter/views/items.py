"""What a session consists of, for display: turns with their items, queued messages and questions.

Plain data; `session_view` fills it in from events.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from halter.models.types import Usage
from halter.views.spans import Spans

if TYPE_CHECKING:
    from halter.events import TurnStopping
    from halter.tools.outcome import LateEnd, ToolOutcome

__all__ = [
    "CallItem",
    "ChildItem",
    "CompactionItem",
    "Item",
    "MessageItem",
    "Question",
    "QuestionState",
    "QueuedMessage",
    "ReasoningItem",
    "RetryItem",
    "TextItem",
    "TurnDisplay",
]

QuestionState: TypeAlias = Literal["open", "granted", "denied", "answered", "withdrawn"]
_FAILED: Final = frozenset({"failed", "timed_out", "denied", "abandoned"})
_UNFINISHED: Final = frozenset({"planned", "needs approval", "running", "stopping"})


@dataclass(slots=True)
class QueuedMessage:
    """A message in the inbox."""

    id: str
    text: str
    mode: str
    accepted_at: float
    state: Literal["accepted", "held"] = "accepted"
    note: str = ""
    preparing: str = ""  # "transcribing" until a recording has its text
    is_voice: bool = False
    prepared_seq: int = 0  # the event that ended the preparation


@dataclass(slots=True)
class MessageItem:
    """A message of the user, where it became part of a turn."""

    id: str
    text: str
    mode: str  # "stop" for a voice message that only said a stop phrase
    note: str = ""
    is_voice: bool = False
    waited: float | None = None  # seconds in the inbox
    interrupted: list[str] = field(default_factory=list)  # what a steer has interrupted: "the answer", names of tools
    question: str = ""  # the id of the question that it answered


@dataclass(slots=True)
class ReasoningItem:
    """Reasoning that the model has sent."""

    chunks: list[str] = field(default_factory=list)
    is_live: bool = True  # more may be added

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.chunks)


@dataclass(slots=True)
class TextItem:
    """A piece of the model's answer, between two other items."""

    chunks: list[str] = field(default_factory=list)
    is_live: bool = True  # more may be added
    is_superseded: bool = False  # the attempt failed, and a later one has sent something else

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.chunks)


@dataclass(slots=True)
class RetryItem:
    """A request failed and is made again."""

    error: str
    model: str
    attempt: int
    delay: float
    had_text: bool  # the answer starts again


@dataclass(slots=True)
class Question:
    """A question to the user: whether a call may run, or a question of a tool."""

    id: str
    kind: Literal["approval", "question"]
    text: str
    choices: list[str] | None = None
    state: QuestionState = "open"
    value: Any = None
    note: str = ""
    said: str = ""  # the message that answered it
    tool: str = ""  # of an approval, as the following ones
    arguments: dict[str, Any] = field(default_factory=dict)
    prefixes: tuple[tuple[str, ...], ...] = ()
    covers: Literal["tool", "call"] = "tool"


@dataclass(slots=True)
class CallItem:
    """A tool call."""

    id: str
    name: str
    arguments: str = ""
    state: str = "planned"  # then "needs approval", "running", "stopping", or the status of its outcome
    started: float | None = None
    ended: float | None = None
    progress: str = ""
    diff: str = ""  # what it has changed in files, as a unified diff
    exit_code: int | str | None = None  # of a command; the name of the signal if one has ended it
    reason: str = ""
    detail: str = ""
    after: float | None = None  # seconds from the stop to its end
    late: LateEnd | None = None
    approval: Question | None = None
    outcome: ToolOutcome | None = None

    @property
    def is_finished(self) -> bool:
        """Whether it has its outcome."""
        return self.state not in _UNFINISHED

    @property
    def has_failed(self) -> bool:
        """Whether it failed, or is a command that ended with an error."""
        return self.state in _FAILED or (self.state == "completed" and self.exit_code not in (None, 0))


@dataclass(slots=True)
class ChildItem:
    """Work that was delegated to another agent."""

    session: str
    agent: str
    task: str = ""
    state: str = "running"
    reason: str = ""
    calls: int = 0  # that it has started
    tool: str = ""  # of the last of them
    arguments: str = ""


@dataclass(slots=True)
class CompactionItem:
    """From here on the model gets less of the conversation."""

    how: str  # "shortened", "summarised" or "dropped"
    before: int  # tokens, about
    after: int


Item: TypeAlias = MessageItem | TextItem | ReasoningItem | RetryItem | Question | CallItem | ChildItem | CompactionItem


@dataclass(slots=True)
class TurnDisplay:
    """One turn and its items, in order."""

    id: str
    started: float
    session: str = ""
    model: str = ""
    status: str = "running"
    reason: str = ""
    detail: str = ""
    error: str = ""
    ended: float | None = None
    after: float | None = None  # seconds from the stop to the end
    usage: Usage = field(default_factory=Usage)
    stop: TurnStopping | None = None
    phase: Literal["", "waiting", "thinking"] = ""  # of the running request
    is_rolled_back: bool = False
    items: list[Item] = field(default_factory=list)
    calls: dict[str, CallItem] = field(default_factory=dict)
    children: dict[str, ChildItem] = field(default_factory=dict)
    spans: Spans = field(default_factory=Spans)
    interrupted: list[str] = field(default_factory=list)  # what a steer has interrupted, for the next message
    open_text: TextItem | None = None
    open_reasoning: ReasoningItem | None = None
    failed_text: TextItem | None = None  # superseded as soon as the next attempt sends something

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(item.text for item in self.items if isinstance(item, TextItem) and not item.is_superseded)

    @property
    def running_calls(self) -> list[CallItem]:
        """The calls that are running or stopping."""
        return [call for call in self.calls.values() if call.state in ("running", "stopping")]

    def end_text(self) -> None:
        """End the open pieces of text: what comes next is a new item."""
        for item in (self.open_text, self.open_reasoning):
            if item is not None:
                item.is_live = False
        self.open_text = self.open_reasoning = None
