"""The timeline of a stop: read from the log, and drawn."""

from __future__ import annotations

import asyncio
import threading

import msgspec
import pytest

from halter import Agent, ToolContext, tool
from halter.events import (
    Event,
    EventData,
    QuestionAnswered,
    QuestionAsked,
    RequestCancelled,
    RequestFinished,
    RequestRetry,
    RequestStarted,
    TurnFinished,
    TurnStarted,
    TurnStopping,
)
from halter.events.tools import ApprovalAnswered, ApprovalAsked
from halter.models import ToolCall
from halter.session.session import Session
from halter.testing import Gate, ScriptedModel
from halter.tools.approval import ApprovalRequest
from halter.views.text import seconds
from halter.views.timeline import Span, Timeline, last_stop, render
from tests.support.waiting import wait_until


def span(timeline: Timeline, kind: str, name: str = "") -> Span:
    (found,) = [each for each in timeline.spans if each.kind == kind and name in each.name]
    return found


def test_who_asked_and_when_the_request_ended() -> None:
    """A stop in the middle of a stream: the request ends after the question, and the turn after that."""
    gate = Gate()
    with Agent(ScriptedModel(["One, two, ", gate])).session() as session:
        threading.Thread(target=lambda: (gate.wait_reached(), session.interrupt("No, letters."))).start()
        session.run("Count.")
        timeline = last_stop(session.events())
    assert timeline is not None
    assert (timeline.status, timeline.reason, timeline.message) == ("interrupted", "interrupt", "No, letters.")
    assert timeline.by.startswith("message ")
    request = span(timeline, "request")
    assert timeline.asked_at is not None
    assert timeline.ended is not None
    assert request.end is not None
    assert timeline.started <= timeline.asked_at <= request.end <= timeline.ended
    assert request.how == "cancelled"
    assert timeline.after is not None
    assert 'Message: "No, letters."' in render(timeline)


def test_only_a_stop_is_a_stop() -> None:
    """A session whose turns were all done has no timeline; of several stops, the last is told."""
    gates = Gate(), Gate()
    model = ScriptedModel("Done.", ["first ", gates[0]], ["second ", gates[1]], "Done.")
    with Agent(model).session() as session:
        session.run("a")
        assert last_stop(session.events()) is None
        for number, gate in enumerate(gates):
            threading.Thread(
                target=lambda gate=gate, number=number: (gate.wait_reached(), session.stop(detail=f"stop {number}"))
            ).start()
            session.run("b")
        session.run("c")
        timeline = last_stop(session.events())
    assert timeline is not None
    assert timeline.detail == "stop 1"


def stopped_in_tools() -> list[Event]:
    """The log of a turn that is stopped while one call listens, one is deaf, one waits, and a child is at work."""
    deaf, may_end, at_work = threading.Event(), threading.Event(), Gate()

    @tool
    def deafened() -> str:
        """Hear nothing."""
        deaf.set()
        may_end.wait(30)
        return "too late"

    @tool(grace=30)
    async def listening() -> str:
        """Hear all."""
        await asyncio.sleep(100)
        return ""

    @tool(grace=30)
    async def handing_on(ctx: ToolContext) -> str:
        """Have a child do it."""
        turn = await ctx.delegate(Agent(ScriptedModel(["child says ", at_work]), name="helper"), "Help.")
        return str(turn.text)

    calls = [ToolCall(str(number), name, "{}") for number, name in enumerate(["deafened", "listening", "handing_on"])]
    with Agent(ScriptedModel(["Wait. ", *calls]), [deafened, listening, handing_on]).session() as session:

        def person() -> None:
            deaf.wait(30)
            at_work.wait_reached()
            session.stop(detail="enough")

        threading.Thread(target=person).start()
        session.run("Work.")
        may_end.set()
        wait_until(lambda: is_late(session))
        return session.events()


def is_late(session: Session) -> bool:
    return any(event.kind == "tool.finished_late" for event in session.events())


def test_tools_and_children() -> None:
    """Each call and each child has a bar of its own, and how it ended; what was left behind ended late."""
    timeline = last_stop(stopped_in_tools())
    assert timeline is not None
    assert span(timeline, "request").how == "complete"
    deaf, listening = span(timeline, "tool", "deafened"), span(timeline, "tool", "listening")
    assert (deaf.how, deaf.end) == ("abandoned", None)
    assert deaf.late is not None
    assert listening.how == "cancelled"
    assert listening.end is not None
    child = span(timeline, "child", "helper")
    assert child.how == "interrupted"
    text = render(timeline)
    assert max(map(len, text.splitlines())) <= 80
    assert "late" in text
    assert "Stop requested by stop() (stop: enough)" in text
    assert msgspec.json.decode(msgspec.json.encode(timeline), type=Timeline) == timeline


LINE = Timeline(
    session="s",
    turn="t",
    model="m",
    started=1000.0,
    ended=1012.1,
    status="interrupted",
    reason="stop",
    by="stop()",
    asked_at=1012.0,
    after=0.1,
    spans=[
        Span("request", "before", 1000.0, 1001.0, "complete"),
        Span("request", "m", 1001.0, 1012.01, "cancelled"),
        Span("tool", "never begun", None, 1012.1, "not_started"),
        Span("tool", "left\x1b[31m", 1002.0, None, "abandoned", late=1015.0),
        Span("tool", "with a name that does not fit", 1011.95, None, "not_started", late=1012.8888),
    ],
)


def test_the_drawing() -> None:
    """One axis around the stop; what had ended long before is only counted; nothing is told to the terminal."""
    text = render(LINE, ascii_only=True)
    *_, scale, request, never, left, _, turn = text.splitlines()
    assert "(1 earlier request or call not shown)" in text
    assert scale.split() == ["-150.0", "ms", "stop", "+100.0", "ms"]
    stop = turn.index("+")
    assert request[stop] == left[stop] == "+"
    assert never[stop] == "|"
    assert "<" in request
    assert request.endswith("cancelled   +10.0 ms")
    assert left.endswith("abandoned   +3.00 s late")
    assert ">" in left
    assert "\x1b" not in text
    assert text.isascii()
    assert "\x1b[31mabandoned" in render(LINE, color=True)


def test_every_kind_of_event_has_its_bar() -> None:
    """An attempt that failed, an approval, a question and its withdrawal are bars as well, each with how it ended."""
    asked = ApprovalRequest(call_id="1", tool="wipe", id="a")
    happened: list[EventData] = [
        TurnStarted("m"),
        RequestStarted("m", 1),
        RequestRetry("m", 2, 0.1, "overloaded"),
        RequestStarted("m", 2),
        RequestFinished("m", 2, "complete"),
        ApprovalAsked(asked),
        ApprovalAnswered("a", "1", granted=False, note="no"),
        QuestionAsked("q", "Which one?"),
        QuestionAsked("r", "And then?"),
        QuestionAnswered("q", "this"),
        TurnStopping("stop", "", "stop()", 1009.5),
        QuestionAnswered("r", withdrawn=True),
        TurnFinished("interrupted", "stop", after=1.0),
    ]
    timeline = last_stop([Event(n, 999.0 + n, "s", "t", data) for n, data in enumerate(happened, 1)])
    assert timeline is not None
    assert [(span.kind, span.name, span.how) for span in timeline.spans] == [
        ("request", "m", "failed"),
        ("request", "m", "complete"),
        ("question", "approve wipe", "denied"),
        ("question", "Which one?", "answered"),
        ("question", "And then?", "withdrawn"),
    ]
    assert timeline.spans[0].detail == "overloaded"


def test_a_turn_that_is_just_being_stopped() -> None:
    """While a turn has been asked to stop and is not over, that is what is told."""
    happened: list[EventData] = [TurnStarted("m"), RequestStarted("m", 1), TurnStopping("stop", "", "stop()", 1002.0)]
    timeline = last_stop([Event(n, 999.0 + n, "s", "t", data) for n, data in enumerate(happened, 1)])
    assert timeline is not None
    assert (timeline.status, timeline.ended) == ("running", None)
    assert "not ended yet" in " ".join(render(timeline).split())


def test_a_program_that_ended_while_it_was_stopping() -> None:
    """A stop that the program did not live to finish is a crash; who had asked is told all the same."""
    happened: list[EventData] = [TurnStarted("m"), RequestStarted("m", 1), TurnStopping("stop", "", "stop()", 1002.0)]
    events = [Event(n, 999.0 + n, "s", "t", data) for n, data in enumerate(happened, 1)]
    ends: list[EventData] = [RequestCancelled("m", 1, "crash"), TurnFinished("interrupted", "crash", "it ended")]
    events += [Event(n, 5000.0, "s", "t", data) for n, data in enumerate(ends, 9)]
    timeline = last_stop(events)
    assert timeline is not None
    assert (timeline.reason, timeline.by, timeline.ended) == ("crash", "stop()", 1002.0)
    assert timeline.spans[0].end is None
    assert "the program ended first" in " ".join(render(timeline).split())


@pytest.mark.parametrize("width", [60, 70, 80, 120])
def test_the_drawing_keeps_to_its_width(width: int) -> None:
    """No line is longer than it may be."""
    assert max(map(len, render(LINE, width=width).splitlines())) <= width


def test_a_stop_that_came_with_the_beginning() -> None:
    """A turn that was stopped before it had begun, and in no time at all, can be drawn, too."""
    line = Timeline("s", "t", "m", started=5.0, ended=5.0, status="interrupted", asked_at=4.9, after=0.0)
    assert "interrupted" in render(line)
    nobody = Timeline("s", "t", "m", started=5.0, ended=5.0, status="interrupted", reason="crash")
    assert "Nobody asked for a stop" in render(nobody)


def test_durations() -> None:
    """A duration is told in the unit that fits it."""
    assert [seconds(value) for value in (0.00004, -0.25, 3.0, 600.0)] == ["0.0 ms", "-250.0 ms", "3.00 s", "10.0 min"]
    assert [seconds(value) for value in (99.9, 36_000.0, 864_000.0)] == ["99.90 s", "10.0 h", "10.0 days"]


def test_a_turn_that_was_stopped_with_what_is_around_it() -> None:
    """A turn that had ended with its client's connection was told to be "not ended yet"."""
    happened: list[EventData] = [
        TurnStarted("m"),
        TurnStopping("disconnect", "the client has disconnected", "", 1001.0),
        TurnFinished("interrupted", "disconnect"),
    ]
    timeline = last_stop([Event(n, 999.0 + n, "s", "t", data) for n, data in enumerate(happened, 1)])
    assert timeline is not None
    assert "into the turn; stopped." in " ".join(render(timeline).split())
