"""The last stop of a session, told by its log: who asked, when, and when and how each thing that ran then ended.

    timeline = last_stop(session.events())      # None if nothing was ever stopped
    print(render(timeline))                     # as text, with one axis of time

A `Timeline` is plain data, which a page can draw as well (`msgspec.json.encode` writes it). Times are those of
`time.time()`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from halter.cli.output import plain
from halter.events import (
    ChildFinished,
    ChildStarted,
    Event,
    MessageAccepted,
    QuestionAnswered,
    QuestionAsked,
    TurnFinished,
    TurnStarted,
    TurnStopping,
)
from halter.models.progress import RequestCancelled, RequestFinished, RequestRetry, RequestStarted
from halter.tools.events import ApprovalAnswered, ApprovalAsked, ToolFinished, ToolFinishedLate, ToolStarted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from halter.tools.outcome import ToolOutcome

__all__ = ["Span", "Timeline", "last_stop", "render", "seconds", "timeline_of"]

_LABEL: Final = 22
_TAIL: Final = 26
_MANY: Final = 100  # of a unit: then the next one is used
_LEAST: Final = 1e-4  # seconds from one end of the axis to the other
_GOOD: Final = frozenset({"completed", "complete", "done", "granted", "answered"})
_BAD: Final = frozenset({"failed", "abandoned", "denied", "timed_out"})


class Span(Struct, frozen=True):
    """One thing of a turn, from its start to its end: None if it never started, or was never seen to end."""

    kind: Literal["request", "tool", "child", "question"]
    name: str
    start: float | None
    end: float | None = None
    how: str = "running"
    detail: str = ""
    late: float | None = None  # when a call that was left behind ended after all


class Timeline(Struct, frozen=True):
    """One turn and its stop. `asked_at` is None if nobody asked: then it crashed, failed or simply ended."""

    session: str
    turn: str
    model: str
    started: float
    ended: float | None = None
    status: str = "running"
    reason: str = ""
    detail: str = ""
    by: str = ""
    message: str = ""  # the words of the message that asked for it, if it was one
    asked_at: float | None = None
    after: float | None = None  # seconds from the question to control being back
    spans: list[Span] = []


def last_stop(events: Sequence[Event]) -> Timeline | None:
    """The last turn that was stopped, whoever or whatever did it; None if none was."""
    stopped = ""
    for event in events:
        data = event.data
        if isinstance(data, TurnStopping) or (isinstance(data, TurnFinished) and data.status == "interrupted"):
            stopped = event.turn
    return timeline_of(events, stopped) if stopped else None


def timeline_of(events: Iterable[Event], turn: str) -> Timeline:
    """Any turn of a session."""
    reader = _Reader(turn)
    for event in events:
        if event.turn == turn:
            reader.take(event)
        elif isinstance(event.data, MessageAccepted):
            reader.messages[event.data.id] = event.data.message.text
    return reader.timeline()


class _Reader:
    """Goes through the events of one turn."""

    def __init__(self, turn: str) -> None:
        self.messages: dict[str, str] = {}
        self._line = Timeline("", turn, "", 0.0)
        self._spans: dict[str, Span] = {}  # in order of their beginning, by a name of their own
        self._request = ""  # the open one
        self._times: list[float] = []

    def take(self, event: Event) -> None:
        data, at = event.data, event.time
        if isinstance(data, TurnStarted):
            self._line = replace(self._line, session=event.session, model=data.model, started=at)
        elif isinstance(data, TurnStopping):
            self._line = replace(self._line, reason=data.reason, detail=data.detail, by=data.by, asked_at=data.asked_at)
        elif isinstance(data, TurnFinished):
            self._finish(data, at)
        elif isinstance(data, (RequestStarted, RequestRetry, RequestCancelled, RequestFinished)):
            self._take_request(data, at)
        elif isinstance(data, (ToolStarted, ToolFinished, ToolFinishedLate)):
            self._take_tool(data, at)
        else:
            self._take_other(data, at)
        self._times.append(at)

    def timeline(self) -> Timeline:
        by = self._line.by
        message = self.messages.get(by.removeprefix("message "), "") if by.startswith("message ") else ""
        return replace(self._line, message=message, spans=list(self._spans.values()))

    def _finish(self, data: TurnFinished, at: float) -> None:
        line = replace(self._line, status=data.status, ended=at, after=data.after)
        if line.asked_at is None:
            line = replace(line, reason=data.reason, detail=data.detail or data.error)
        if data.reason == "crash":
            # That was written when the session was opened again, with the ends of all that had none: nobody saw them.
            seen = max((each for each in self._times if each < at), default=line.started)
            line = replace(line, reason=data.reason, detail=data.detail, ended=seen)
            unseen = {key: span for key, span in self._spans.items() if span.end is not None and span.end >= at}
            self._spans |= {key: replace(span, end=None) for key, span in unseen.items()}
        self._line = line

    def _take_request(
        self, data: RequestStarted | RequestRetry | RequestCancelled | RequestFinished, at: float
    ) -> None:
        if isinstance(data, RequestStarted):
            self._request = f"request {len(self._spans)}"
            self._spans[self._request] = Span("request", data.model, at)
        elif isinstance(data, RequestRetry):
            self._end(self._request, at, "failed", data.error)
        elif isinstance(data, RequestCancelled):
            self._end(self._request, at, "cancelled", data.reason)
        else:
            self._end(self._request, at, data.status, data.error)

    def _take_tool(self, data: ToolStarted | ToolFinished | ToolFinishedLate, at: float) -> None:
        if isinstance(data, ToolStarted):
            self._spans[f"call {data.call_id}"] = Span("tool", data.name, at)
            return
        outcome = data.outcome
        key = f"call {outcome.call_id}"
        if isinstance(data, ToolFinishedLate):
            self._late(key, outcome)
            return
        known = self._spans.get(key) or Span("tool", outcome.name, None)
        self._spans[key] = replace(
            known,
            start=outcome.started_at or known.start,
            end=None if outcome.status == "abandoned" else outcome.ended_at or at,
            how=outcome.status,
            detail=", ".join(rung for rung in outcome.rungs if rung != outcome.status),
        )

    def _late(self, key: str, outcome: ToolOutcome) -> None:
        known = self._spans.get(key)
        if known is not None and outcome.late is not None:
            self._spans[key] = replace(known, late=outcome.late.ended_at)

    def _take_other(self, data: object, at: float) -> None:
        if isinstance(data, ChildStarted):
            self._spans[f"child {data.session}"] = Span("child", data.agent, at, detail=data.session)
        elif isinstance(data, ChildFinished):
            self._end(f"child {data.session}", at, data.status, data.session)
        elif isinstance(data, ApprovalAsked):
            self._spans[f"asked {data.request.id}"] = Span("question", f"approve {data.request.tool}", at)
        elif isinstance(data, ApprovalAnswered):
            self._end(f"asked {data.request_id}", at, "granted" if data.granted else "denied", data.note)
        elif isinstance(data, QuestionAsked):
            self._spans[f"asked {data.id}"] = Span("question", data.question, at)
        elif isinstance(data, QuestionAnswered):
            self._end(f"asked {data.id}", at, "withdrawn" if data.withdrawn else "answered")

    def _end(self, key: str, at: float, how: str, detail: str = "") -> None:
        known = self._spans.get(key)
        if known is not None:
            self._spans[key] = replace(known, end=at, how=how, detail=detail)


# -- as text ---------------------------------------------------------------------------------------------------------


def render(timeline: Timeline, *, width: int = 80, color: bool = False, ascii_only: bool = False) -> str:
    """Draw it. The axis shows the stop and a while before it: as much as it took, and half of that again."""
    axis = _Axis(timeline, width - _LABEL - _TAIL - 2, ascii_only=ascii_only)
    shown = [span for span in timeline.spans if span.end is None or span.end >= axis.begin]
    whole = Span("request", "", timeline.started, timeline.ended, timeline.status)
    rows = [(f"{span.kind} {span.name}", span) for span in shown] + [("turn", whole)]
    lines = [line for text in _story(timeline) for line in _wrap(text, width)]
    hidden = len(timeline.spans) - len(shown)
    if hidden:
        lines.append(f"({hidden} that had ended before: not shown.)")
    lines += ["", f"{'':{_LABEL}} {axis.scale()}"]
    for name, span in rows:
        label = plain(name)[:_LABEL]
        lines.append(f"{label:{_LABEL}} {axis.bar(span)} {axis.tail(span, color=color)}".rstrip())
    return "\n".join(lines)


def _story(line: Timeline) -> list[str]:
    day = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.started))
    story = [f"Session {line.session}, turn {line.turn}, asking {line.model}; begun {day}."]
    why = f"{line.reason}: {line.detail}" if line.detail else line.reason
    if line.asked_at is None:
        story.append(f"Nobody asked for a stop; it ended as {line.status} ({why or 'no reason'}).")
        return story
    by = f"by {line.by} " if line.by else ""
    begun = seconds(line.asked_at - line.started)
    clock = time.strftime("%H:%M:%S", time.localtime(line.asked_at))
    back = f"control was back {seconds(line.after)} later" if line.after is not None else "it has not ended yet"
    if line.reason == "crash":
        back = "the program ended before that was done"
    story.append(f"Stopped {by}({why}), {begun} after its beginning, at {clock}; {back}.")
    if line.message:
        story.append(f'The message: "{line.message}"')
    return story


class _Axis:
    """Where a time is on the line."""

    def __init__(self, line: Timeline, width: int, *, ascii_only: bool) -> None:
        ends = [each for span in line.spans for each in (span.start, span.end) if each is not None]
        last = max([line.started, line.ended or line.started, *ends, line.asked_at or line.started])
        self.stop = line.asked_at
        self.begin = line.started
        if self.stop is not None:
            self.begin = max(line.started, self.stop - 1.5 * max(last - self.stop, _LEAST))
            self.begin = min(self.begin, self.stop)
        self.end = max(last, self.begin + _LEAST)
        self._width = width
        self._full, self._cross, self._line = ("=", "+", "|") if ascii_only else ("━", "┿", "│")

    def at(self, moment: float) -> int:
        place = (moment - self.begin) / (self.end - self.begin) * (self._width - 1)
        return round(min(max(place, 0), self._width - 1))

    def scale(self) -> str:
        """The beginning, the stop and the end, above the bars."""
        zero = self.stop if self.stop is not None else self.begin
        first, last = seconds(self.begin - zero), f"+{seconds(self.end - zero)}"
        text = list(f"{first:<{self._width - len(last)}}{last}")
        if self.stop is not None and len(first) + len(last) + len(" stop ") <= self._width:
            start = min(max(self.at(self.stop) - 1, len(first) + 1), self._width - len(last) - 5)
            text[start : start + 4] = "stop"
        return "".join(text)

    def bar(self, span: Span) -> str:
        cells = [" "] * self._width
        if span.start is not None:
            first = self.at(span.start)
            last = self.at(span.end) if span.end is not None else self._width - 1
            cells[first : last + 1] = self._full * (max(last, first) + 1 - first)
            if span.start < self.begin:
                cells[0] = "<"
            if span.end is None:
                cells[-1] = ">"
        if self.stop is not None:
            place = self.at(self.stop)
            cells[place] = {self._full: self._cross, " ": self._line}.get(cells[place], cells[place])
        return "".join(cells)

    def tail(self, span: Span, *, color: bool) -> str:
        """How it ended, and when, counted from the stop."""
        how = span.how.replace("_", " ")
        when = ""
        if span.start is not None and span.end is not None:
            zero = self.stop if self.stop is not None else self.begin
            when = f"{'+' if span.end >= zero else ''}{seconds(span.end - zero)}"
        elif span.late is not None:
            when = f"+{seconds(span.late - (self.stop or self.begin))} late"
        shade = "32" if span.how in _GOOD else "31" if span.how in _BAD else "33"
        text = f"{how:<11}"
        return f"\x1b[{shade}m{text}\x1b[0m {when}" if color else f"{text} {when}"


def seconds(value: float) -> str:
    """A duration in the unit that fits it."""
    if abs(value) < 1:
        return f"{value * 1000:.1f} ms"
    for unit, size in (("s", 1), ("min", 60), ("h", 3600)):
        if abs(value) < _MANY * size:
            return f"{value / size:.{2 if unit == 's' else 1}f} {unit}"
    return f"{value / 86400:.1f} days"


def _wrap(text: str, width: int) -> list[str]:
    import textwrap  # noqa: PLC0415  (only here)

    return textwrap.wrap(plain(text), width, max_lines=4, placeholder=" …")
