"""The parts of a turn as spans of time: requests, tool calls, children and questions, from start to end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from msgspec import Struct

from halter.events import ChildFinished, ChildStarted, QuestionAnswered, QuestionAsked, TurnFinished
from halter.events.requests import RequestCancelled, RequestFinished, RequestRetry, RequestStarted
from halter.events.tools import (
    ApprovalAnswered,
    ApprovalAsked,
    ToolFinished,
    ToolFinishedLate,
    ToolProgress,
    ToolStarted,
)
from halter.models.types import ReasoningDelta, TextDelta

if TYPE_CHECKING:
    from halter.events import Event
    from halter.tools.outcome import ToolOutcome

__all__ = ["Kind", "Span", "Spans"]

_FREQUENT: Final = frozenset({TextDelta, ReasoningDelta, ToolProgress})  # no spans begin or end with them
Kind: TypeAlias = Literal["request", "tool", "child", "question"]


class Span(Struct):
    """One part of a turn. `start` is None if it never started, `end` if it never ended or its end is unknown."""

    kind: Kind
    name: str
    start: float | None
    end: float | None = None
    how: str = "running"
    detail: str = ""
    late: float | None = None  # when an abandoned call ended after all


class Spans:
    """The spans of one turn, in order of their start."""

    __slots__ = ("_before", "_last", "_request", "_spans", "last_seen")

    def __init__(self) -> None:
        self.last_seen = 0.0  # after a crash: the time of the last event before it
        self._last = self._before = 0.0  # the times of the last event, and of the last one earlier than that
        self._spans: dict[str, Span] = {}
        self._request = ""  # the key of the open one

    @property
    def all(self) -> list[Span]:
        """All spans."""
        return list(self._spans.values())

    def apply(self, event: Event) -> None:  # noqa: C901, PLR0912  (one branch for each kind of event)
        """Apply an event of this turn."""
        data, at = event.data, event.time
        if at > self._last:
            self._before, self._last = self._last, at
        if type(data) in _FREQUENT:
            return
        if isinstance(data, TurnFinished) and data.reason == "crash":
            self._crash(at)
        elif isinstance(data, RequestStarted):
            self._request = f"request {len(self._spans)}"
            self._begin(self._request, "request", data.model, at)
        elif isinstance(data, RequestRetry):
            self._end(self._request, at, "failed", data.error)
        elif isinstance(data, RequestCancelled):
            self._end(self._request, at, "cancelled", data.reason)
        elif isinstance(data, RequestFinished):
            self._end(self._request, at, data.status, data.error)
        elif isinstance(data, ToolStarted):
            self._begin(f"call {data.call_id}", "tool", data.name, at)
        elif isinstance(data, ToolFinished):
            self._end_call(data.outcome, at)
        elif isinstance(data, ToolFinishedLate):
            self._end_late(data.outcome)
        elif isinstance(data, ChildStarted):
            self._begin(f"child {data.session}", "child", data.agent, at)
        elif isinstance(data, ChildFinished):
            self._end(f"child {data.session}", at, data.status, data.reason)
        elif isinstance(data, ApprovalAsked):
            self._begin(f"asked {data.request.id}", "question", f"approve {data.request.tool}", at)
        elif isinstance(data, ApprovalAnswered):
            self._end(f"asked {data.request_id}", at, "granted" if data.granted else "denied", data.note)
        elif isinstance(data, QuestionAsked):
            self._begin(f"asked {data.id}", "question", data.question, at)
        elif isinstance(data, QuestionAnswered):
            self._end(f"asked {data.id}", at, "withdrawn" if data.withdrawn else "answered")

    def _crash(self, at: float) -> None:
        """Drop the ends that were written when the session was opened again: the real ones are unknown."""
        self.last_seen = self._last if self._last < at else self._before
        for span in self._spans.values():
            if span.end is not None and span.end >= at:
                span.end = None

    def _begin(self, key: str, kind: Kind, name: str, start: float | None) -> Span:
        span = self._spans[key] = Span(kind, name, start)
        return span

    def _end(self, key: str, at: float, how: str, detail: str = "") -> None:
        span = self._spans.get(key)
        if span is not None:
            span.end, span.how, span.detail = at, how, detail

    def _end_call(self, outcome: ToolOutcome, at: float) -> None:
        key = f"call {outcome.call_id}"
        span = self._spans.get(key) or self._begin(key, "tool", outcome.name, None)
        span.start = outcome.started_at or span.start
        span.end = None if outcome.status == "abandoned" else outcome.ended_at or at
        span.how = outcome.status
        span.detail = ", ".join(step for step in outcome.stop_steps if step != outcome.status)

    def _end_late(self, outcome: ToolOutcome) -> None:
        span = self._spans.get(f"call {outcome.call_id}")
        if span is not None and outcome.late is not None:
            span.late = outcome.late.ended_at
