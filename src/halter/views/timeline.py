"""The timeline of a stop, from the log: who asked, when, and when and how each thing that ran then ended.

    timeline = last_stop(session.events())      # None if no turn was ever stopped
    print(render(timeline))                     # as text, on one axis of time

A `Timeline` is plain data (`msgspec.json.encode` writes it). Times are those of `time.time()`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from halter.events import MessageAccepted, TurnFinished, TurnStopping
from halter.views.items import TurnDisplay
from halter.views.session_view import SessionDisplay
from halter.views.spans import Span
from halter.views.text import seconds, single_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from halter.events import Event

__all__ = ["Span", "Timeline", "last_stop", "render", "seconds", "timeline_of"]

_LABEL_WIDTH: Final = 22  # columns
_TAIL_WIDTH: Final = 26  # columns
_MIN_AXIS: Final = 1e-4  # seconds from one end of the axis to the other
_GOOD: Final = frozenset({"completed", "complete", "done", "granted", "answered"})
_BAD: Final = frozenset({"failed", "abandoned", "denied", "timed_out"})


class Timeline(Struct, frozen=True):
    """One turn and its stop. `asked_at` is None if nobody asked for one: then it crashed, failed or just ended."""

    session: str
    turn: str
    model: str
    started: float
    ended: float | None = None
    status: str = "running"
    reason: str = ""
    detail: str = ""
    by: str = ""
    message: str = ""  # the text of the message that asked for it, if it was one
    asked_at: float | None = None
    after: float | None = None  # seconds from the stop to the end of the turn
    spans: list[Span] = []


def last_stop(events: Sequence[Event]) -> Timeline | None:
    """The last turn that was stopped, whoever asked for it; None if there is none."""
    stopped = ""
    for event in events:
        data = event.data
        if isinstance(data, TurnStopping) or (isinstance(data, TurnFinished) and data.status == "interrupted"):
            stopped = event.turn
    return timeline_of(events, stopped) if stopped else None


def timeline_of(events: Iterable[Event], turn_id: str) -> Timeline:
    """The timeline of any turn of a session."""
    display = SessionDisplay()
    messages: dict[str, str] = {}
    for event in events:
        display.apply(event)
        if isinstance(event.data, MessageAccepted):
            messages[event.data.id] = event.data.message.text
    turn = next((turn for turn in display.turns if turn.id == turn_id), TurnDisplay(turn_id, 0.0))
    by = turn.stop.by if turn.stop is not None else ""
    timeline = Timeline(
        session=turn.session,
        turn=turn.id,
        model=turn.model,
        started=turn.started,
        ended=turn.ended,
        status=turn.status,
        reason=turn.reason,
        detail=turn.detail or turn.error,
        by=by,
        message=messages.get(by.removeprefix("message "), "") if by.startswith("message ") else "",
        after=turn.after,
        spans=turn.spans.all,
    )
    if turn.stop is not None:
        timeline = replace(timeline, asked_at=turn.stop.asked_at)
        if turn.reason != "crash":
            timeline = replace(timeline, reason=turn.stop.reason, detail=turn.stop.detail)
    return timeline


# -- as text ---------------------------------------------------------------------------------------------------------


def render(timeline: Timeline, *, width: int = 80, color: bool = False, ascii_only: bool = False) -> str:
    """Draw it. The axis shows the stop, and before it one and a half times as long as the stop took."""
    axis = _Axis(timeline, width - _LABEL_WIDTH - _TAIL_WIDTH - 2, ascii_only=ascii_only)
    shown = [span for span in timeline.spans if span.end is None or span.end >= axis.begin]
    turn = Span("request", "", timeline.started, timeline.ended, timeline.status)
    rows = [(f"{span.kind} {span.name}", span) for span in shown] + [("turn", turn)]
    lines = [line for text in _summary(timeline) for line in _wrap(text, width)]
    hidden = len(timeline.spans) - len(shown)
    if hidden:
        lines.append(f"({hidden} earlier {'request or call' if hidden == 1 else 'requests and calls'} not shown)")
    lines += ["", f"{'':{_LABEL_WIDTH}} {axis.scale()}"]
    for name, span in rows:
        label = single_line(name)[:_LABEL_WIDTH]
        lines.append(f"{label:{_LABEL_WIDTH}} {axis.bar(span)} {axis.tail(span, color=color)}".rstrip())
    return "\n".join(lines)


def _summary(line: Timeline) -> list[str]:
    day = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.started))
    summary = [f"Session {line.session}, turn {line.turn}, model {line.model}, started {day}."]
    why = f"{line.reason}: {line.detail}" if line.detail else line.reason
    if line.asked_at is None:
        summary.append(f"Nobody asked for a stop; the turn ended as {line.status} ({why or 'no reason'}).")
        return summary
    by = f"by {line.by} " if line.by else ""
    into = seconds(line.asked_at - line.started)
    clock = time.strftime("%H:%M:%S", time.localtime(line.asked_at))
    if line.reason == "crash":
        result = "the program ended first"
    elif line.ended is None:
        result = "not ended yet"
    elif line.after is None:  # the stop of something around the turn, such as a request: its moment is not known
        result = "stopped"
    else:
        result = f"stopped in {seconds(line.after)}"
    summary.append(f"Stop requested {by}({why}) at {clock}, {into} into the turn; {result}.")
    if line.message:
        summary.append(f'Message: "{line.message}"')
    return summary


class _Axis:
    """Where a time is on the line."""

    def __init__(self, line: Timeline, width: int, *, ascii_only: bool) -> None:
        ends = [each for span in line.spans for each in (span.start, span.end) if each is not None]
        last = max([line.started, line.ended or line.started, *ends, line.asked_at or line.started])
        self.stop = line.asked_at
        self.begin = line.started
        if self.stop is not None:
            self.begin = max(line.started, self.stop - 1.5 * max(last - self.stop, _MIN_AXIS))
            self.begin = min(self.begin, self.stop)
        self.end = max(last, self.begin + _MIN_AXIS)
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


def _wrap(text: str, width: int) -> list[str]:
    import textwrap

    return textwrap.wrap(single_line(text), width, max_lines=4, placeholder=" …")
