"""A program that dies in the middle of a turn: what the log has is enough to go on, honestly and with nothing lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from halter import Agent, Session, ToolContext, tool
from halter.events import Event, TurnStopping
from halter.models import AssistantMessage, ToolMessage, UserMessage
from halter.models.errors import ProviderError
from halter.testing import Gate
from tests.support.background import RunningTurn
from tests.support.hooked_store import store_with
from tests.support.sessions import AT_MOST, agent_of, call, data_of, kinds, model_of, said, session_of, wait_for
from tests.support.valid_history import judge, judge_request


@tool
def look() -> str:
    """Look."""
    return "seen"


def rich_log() -> list[Event]:
    """Live through much: words, a retry, calls side by side, a steer, an interrupt, a hold and a rollback."""
    reached = threading.Event()

    @tool
    def pages(ctx: ToolContext) -> Iterator[str]:
        yield "page 1"
        ctx.report("one of two")
        reached.set()
        ctx.token.wait(AT_MOST)
        yield "page 2"

    gates = [Gate(), Gate(), Gate()]
    script: list[Any] = [
        ["Old ", "words ", ProviderError("no", status=500)],
        ["I ", "read. ", call("look", "a"), call("pages", "b"), call("look", "a")],
        ["Steered ", "well. ", gates[0]],
        ["It is ", gates[1], "done."],
        ["Taken ", "back ", gates[2]],
        "The end.",
    ]
    with session_of(*script, tools=[look, pages]) as session:
        with session.subscribe() as listener:
            running = RunningTurn(session, "one")
            assert reached.wait(AT_MOST)
            wait_for(listener, "tool.finished", 2)
            session.queue("two")
            session.steer("three")
            gates[0].wait_reached()
            session.post("four", "interrupt")
            running.end()
            running = RunningTurn(session, None)
            gates[1].wait_reached()
            session.queue("five")
            gates[1].open()
            running.end()
            running = RunningTurn(session, None)
            gates[2].wait_reached()
            session.queue("six")
            session.stop(reason="rollback")
            running.end()
            session.release()
            session.run("seven")
        assert model_of(session).streams[-1].state == "finished"
        return session.events()


LOG = rich_log()


def applied_texts(session: Session) -> list[str]:
    return [text.splitlines()[-1] for text in said(session.history)]


def open_turn(log: list[Event]) -> str:
    """The turn that the log leaves open."""
    turn = ""
    for event in log:
        if event.kind == "turn.started":
            turn = event.turn
        elif event.kind == "turn.finished":
            turn = ""
    return turn


def shown_words(log: list[Event]) -> str:
    """What was on the screen of the request that the log leaves open: of its newest attempt that has said anything."""
    words, is_superseded, is_open = "", False, False
    for event in log:
        data: Any = event.data
        match event.kind:
            case "request.started":
                is_open = True
                if data.attempt == 1:
                    words, is_superseded = "", False
            case "request.retry":
                is_superseded = True
            case "text.delta":
                words = data.text if is_superseded else words + data.text
                is_superseded = False
            case "request.finished" | "request.cancelled":
                is_open = False
            case _:
                pass
    return words if is_open else ""


def test_the_log_is_rich() -> None:
    """The log that the next tests cut has everything in it that they are about."""
    assert {
        "request.retry",
        "request.cancelled",
        "tool.started",
        "tool.progress",
        "tool.cancelling",
        "message.held",
        "message.released",
        "turn.stopping",
        "turn.rolled_back",
    } <= set(kinds(LOG))


@pytest.mark.parametrize("length", range(len(LOG) + 1))
def test_a_crash_after_any_event_loses_nothing(length: int) -> None:
    """For every beginning of the log: the open turn is sealed, calls are told of honestly, the next turn answers."""
    log = LOG[:length]
    name = LOG[0].session
    agent = agent_of("Back again.", tools=[look])
    store = store_with(log)
    with agent.session(name, store) as session:
        check_sealed(session, log)
        check_messages(session, log)
        before = session.history
        waiting = [(letter.id, letter.state) for letter in session.inbox]
    with agent.session(name, store) as session:  # sealed once, and the same from then on
        assert session.history == before
        assert [(letter.id, letter.state) for letter in session.inbox] == waiting
        assert kinds(session.events()).count("turn.finished") == kinds(session.events()).count("turn.started")
        session.release()
        turn = session.run("eight")
        assert (turn.status, turn.text) == ("done", "Back again.")
        assert len(session.inbox) == 0
        assert applied_texts(session)[-1] == "eight"
        judge(session.history)
        judge_request(model_of(session).requests[0])


def check_sealed(session: Session, log: list[Event]) -> None:
    """Judge how the open turn was sealed."""
    judge(session.history)
    turn = open_turn(log)
    if not turn:
        assert len(session.events()) == len(log)
        return
    new = session.events(len(log))
    assert {event.turn for event in new} == {turn}
    stops = [event.data for event in log if event.turn == turn and isinstance(event.data, TurnStopping)]
    if any(stop.reason == "rollback" for stop in stops):
        assert kinds(new)[-1] == "turn.rolled_back"
        return
    assert session.turn is not None
    assert (session.turn.id, session.turn.status, session.turn.reason) == (turn, "interrupted", "crash")
    assert session.turn.token.is_cancelled
    words = shown_words(log)
    if words:
        assert session.history[-1] == AssistantMessage(words)
        assert session.turn.text == words
    asked = {each.id for event in log if event.kind == "request.finished" for each in event.data.answer.calls}  # type: ignore[union-attr]
    started = {event.data.call_id for event in log if event.kind == "tool.started"}  # type: ignore[union-attr]
    ended = {event.data.outcome.call_id for event in log if event.kind == "tool.finished"}  # type: ignore[union-attr]
    for event in new:
        if event.kind == "tool.finished":
            outcome = event.data.outcome  # type: ignore[union-attr]
            assert outcome.status == ("abandoned" if outcome.call_id in started else "not_started")
            assert outcome.reason == "crash"
            ended.add(outcome.call_id)
    assert ended == asked


def check_messages(session: Session, log: list[Event]) -> None:
    """Every message that was accepted is in the conversation, or taken back with its turn, or waits: exactly once."""
    accepted: dict[str, str] = {}
    applied: dict[str, str] = {}
    gone = {event.turn for event in session.events() if event.kind == "turn.rolled_back"}
    for event in log:
        data: Any = event.data
        if event.kind == "message.accepted":
            accepted[data.id] = data.message.text
        elif event.kind == "message.applied":
            applied[data.id] = event.turn
    said_texts = [text for text in applied_texts(session) if text != "Continue from where you stopped."]
    assert said_texts == [accepted[message] for message, turn in applied.items() if turn not in gone]
    assert {letter.id for letter in session.inbox} == accepted.keys() - applied.keys()
    for message in accepted:
        state = session.post("again", id=message).state  # accepted once, and never again
        assert (state == "applied") == (message in applied)


def test_a_crashed_turn_can_be_gone_on_with() -> None:
    """run() with nothing in the inbox goes on with the turn in which the program died, and the model is told."""
    gate = Gate()
    with session_of(["I will read ", gate]) as session:
        running = RunningTurn(session)
        gate.wait_reached()
        store = store_with(session.events())
        session.interrupt()
        running.end()
    with agent_of("the file.").session(session.id, store) as again:
        turn = again.run()
        assert turn.text == "the file."
        assert data_of(again, "turn.started")[-1].continues == again.events()[1].turn
        assert "the program crashed" in said(again.history)[-1]


def test_every_open_call_of_a_batch_is_answered_and_none_is_run_again() -> None:
    """Recovery gives each open call its own outcome, keeps the results of those that had ended, and starts nothing."""
    started = threading.Semaphore(0)
    ran: list[str] = []

    @tool
    def wait(ctx: ToolContext) -> str:
        token = ctx.token
        ran.append(ctx.call_id)
        started.release()
        token.sleep(AT_MOST)
        return "x"

    calls = [call("look", "a"), call("wait", "b"), call("wait", "c")]
    tools = [look, wait]
    with session_of(calls, tools=tools) as session, session.subscribe() as listener:
        running = RunningTurn(session)
        assert started.acquire(timeout=AT_MOST)
        assert started.acquire(timeout=AT_MOST)
        wait_for(listener, "tool.finished")
        store = store_with(session.events())
        session.interrupt()
        running.end()
    ran.clear()
    with agent_of("ok", tools=tools).session(session.id, store) as again:
        found = [message for message in again.history if isinstance(message, ToolMessage)]
        assert [message.call_id for message in found] == ["a", "b", "c"]
        assert found[0].text == "seen"
        assert all("may still have effects" in message.text for message in found[1:])
        assert again.run("and?").status == "done"
        assert ran == []


@pytest.mark.parametrize("kind", ["thread", "task"])
def test_a_tool_has_not_begun_before_its_start_is_in_the_log(kind: str) -> None:
    """Who reads the log when a tool has begun finds its start: a crash never tells a call that ran as not started."""
    found: list[list[str]] = []

    @tool
    def plain(ctx: ToolContext) -> str:
        found.append([each.call_id for each in data_of(session, "tool.started")])
        return "x"

    @tool
    async def coroutine(ctx: ToolContext) -> str:
        found.append([each.call_id for each in data_of(session, "tool.started")])
        return "x"

    name = "plain" if kind == "thread" else "coroutine"
    script = [entry for n in range(50) for entry in ([call(name, f"c{n}")], "ok")]
    with session_of(*script, tools=[plain, coroutine]) as session:
        for _ in range(50):
            session.run("x")
    assert [each[-1:] for each in found] == [[f"c{n}"] for n in range(50)]


def test_a_stop_that_the_crash_overtook_is_on_record() -> None:
    """A turn that had been asked to stop when the program died says so in its end, and a rollback is carried out."""
    gate = Gate()
    with session_of(["one ", gate]) as session:
        running = RunningTurn(session)
        gate.wait_reached()
        session.interrupt()
        running.end()
        events = session.events()
    told = next(number for number, event in enumerate(events, 1) if event.kind == "turn.stopping")
    with Agent(model_of(session)).session(session.id, store_with(events[:told])) as again:
        finished = data_of(again, "turn.finished")[-1]
        assert finished.reason == "crash"
        assert "asked to stop (interrupt)" in finished.detail


def test_a_crash_does_not_change_what_was_done_before() -> None:
    """Turns that had ended are as they were, and their number of events is the same."""
    with session_of("one", "two") as session:
        session.run("a")
        session.run("b")
        store = store_with(session.events())
        before, history = session.events(), session.history
    with agent_of().session(session.id, store) as again:
        assert [event.data for event in again.events()] == [event.data for event in before]
        assert again.history == history
        assert isinstance(again.history[0], UserMessage)
