"""The history: at every instant it can be sent to every provider, and it tells the model the truth."""

from __future__ import annotations

import asyncio
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest

import halter.session.history
from halter import Session, ToolContext, tool
from halter.events import Event, TurnStarted
from halter.events.requests import RequestFinished, RequestStarted
from halter.events.tools import ToolFinished
from halter.models import (
    Answer,
    AssistantMessage,
    Finished,
    Message,
    Reasoning,
    ReasoningDelta,
    ReasoningDone,
    ToolMessage,
    UserMessage,
)
from halter.models.errors import ProviderError
from halter.session.history import History
from halter.session.log import EventLog
from halter.stores import MemoryStore, Store
from halter.testing import DeafTool, Gate
from halter.tools import ToolOutcome
from tests.support.background import RunningTurn
from tests.support.looped import looped
from tests.support.paused_writer import WriterPaused
from tests.support.sessions import AT_MOST, agent_of, call, data_of, kinds, model_of, said, session_of, wait_for
from tests.support.valid_history import judge, judge_messages, judge_session


@tool
def look() -> str:
    """Look."""
    return "seen"


@tool
def fail() -> str:
    """Fail."""
    raise ValueError("no luck")


@tool
def nothing() -> None:
    """Give nothing."""


def results(messages: list[Message]) -> list[str]:
    return [message.text for message in messages if isinstance(message, ToolMessage)]


# -- valid at every instant ----------------------------------------------------------------------------------------

SCRIPTS: dict[str, list[Any]] = {
    "plain": ["hello"],
    "nothing at all": [[Finished("stop")]],
    "white space": [["  \n"]],
    "one call": [call("look"), "ok"],
    "words and calls": [["I look. ", call("look", "a"), call("look", "b")], "ok"],
    "calls that fail": [[call("fail", "a"), call("nobody", "b"), call("look", "c", "{broken")], "ok"],
    "no output": [call("nothing"), "ok"],
    "one id again and again": [[call("look", "x"), call("look", "x")], call("look", "x"), "ok"],
    "no id": [[call("look", ""), call("look", "")], call("look", ""), "ok"],
    "ids that look like ours": [[call("look", "x"), call("look", "x-2"), call("look", "x")], "ok"],
    "cut off": [["Once", Finished("length")]],
    "cut off in a call": [["Once", call("look"), Finished("length")]],
    "refused": [["I will not.", Finished("refusal")]],
    "error": [ProviderError("no", status=400)],
    "error after words": [["Some ", ProviderError("no", status=400)]],
    "error after a call": [["Some ", call("look"), ProviderError("no", status=400)]],
    "retry after words": [["Some ", ProviderError("no", status=500)], "All."],
    "thoughts": [[ReasoningDelta("hm"), ReasoningDone(Reasoning("hm", "signed")), "Yes.", call("look")], "ok"],
    "only thoughts": [[ReasoningDelta("hm"), ReasoningDone(Reasoning("hm", "signed"))]],
    "pause and go on": [["Half, ", Finished("pause")], "whole."],
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_history_is_valid_after_every_event(name: str) -> None:
    """Whatever the model answers, the history is valid after each event, and so is that of the turns after it."""
    script = SCRIPTS[name]
    with session_of(*script, "next", "last", tools=[look, fail, nothing]) as session:
        session.run("begin")
        session.run("go on")
        session.run("and end")
        requests = model_of(session).requests
        judge_session(session, requests[:1] if "pause" in name else requests)


class Stopped:
    """A turn with words, two calls and more words, that can be held up in any of its stretches."""

    POINTS = ("before", "words", "calls", "more", "end")

    def __init__(self, point: str) -> None:
        self.point = point
        self.gates = {name: Gate() for name in self.POINTS}
        self.started = threading.Event()

        @tool
        def slow(ctx: ToolContext) -> Iterator[str]:
            yield "piece"
            self.started.set()
            if point == "calls":
                ctx.token.wait(AT_MOST)
                ctx.token.raise_if_cancelled()

        def held(name: str) -> list[Gate]:
            return [self.gates[name]] if name == point else []

        self.session = session_of(
            [*held("before"), "Some ", "words. ", *held("words"), call("slow", "a"), call("look", "b"), *held("more")],
            ["The ", *held("end"), "end."],
            *["next"] * 3,
            tools=[slow, look],
        )

    def run(self) -> RunningTurn:
        running = RunningTurn(self.session)
        if self.point == "calls":
            assert self.started.wait(AT_MOST)
        else:
            self.gates[self.point].wait_reached()
        return running


@pytest.mark.parametrize("point", Stopped.POINTS)
@pytest.mark.parametrize("how", ["interrupt", "stop", "steer", "rollback", "interrupt with a text"])
def test_the_history_is_valid_however_and_wherever_a_turn_is_broken(point: str, how: str) -> None:
    """A turn that is broken at any point, in any way, leaves a valid history with its words in it, and can go on."""
    stopped = Stopped(point)
    with stopped.session as session:
        running = stopped.run()
        if how == "steer":
            session.steer("other way")
        elif how == "interrupt with a text":
            session.interrupt("other way")
        else:
            getattr(session, how)()
        turn = running.end()
        assert turn.status == ("done" if how == "steer" else "interrupted")
        history = session.history
        if how == "rollback":
            assert history == []
        else:
            shown = "".join(each.text for each in data_of(session, "text.delta"))
            kept = "".join(message.text for message in history if isinstance(message, AssistantMessage))
            assert kept == shown
        session.run("and then?")
        session.run("and then?")
        judge_session(session, model_of(session).requests)


def test_every_word_that_was_shown_is_in_the_history() -> None:
    """The words that listeners heard before a stop are in the history, to the last one."""
    gate = Gate()
    with session_of(["a", "b", "c", gate, "d"]) as session, session.subscribe() as listener:
        running = RunningTurn(session)
        for _ in "abc":
            wait_for(listener, "text.delta")
        session.interrupt()
        assert running.end().text == "abc"
        assert session.history[-1] == AssistantMessage("abc")


def test_words_of_an_attempt_that_was_given_up_are_not_mixed_with_the_next() -> None:
    """After a retry the history has the new answer alone; if that says nothing before a stop, what was shown stays."""
    gate = Gate()
    first: list[Any] = ["Old words ", ProviderError("no", status=500)]
    with session_of(first, "New.", first, [gate]) as session:
        session.run("x")
        assert session.history[-1] == AssistantMessage("New.")
        running = RunningTurn(session)
        gate.wait_reached()
        session.interrupt()
        running.end()
        assert session.history[-1] == AssistantMessage("Old words ")


def test_half_a_thought_is_not_kept() -> None:
    """Thinking that was broken off has no signature and is not sent back; that of a whole answer is."""
    gate = Gate()
    whole = [ReasoningDone(Reasoning("hm", "signed")), "Yes."]
    with session_of(whole, [ReasoningDelta("half"), "No ", gate], "ok") as session:
        session.run("x")
        assert session.history[-1] == AssistantMessage("Yes.", reasoning=[Reasoning("hm", "signed")])
        running = RunningTurn(session)
        gate.wait_reached()
        session.interrupt()
        running.end()
        assert session.history[-1] == AssistantMessage("No ")
        session.run("y")
        judge_session(session, model_of(session).requests)


def test_while_calls_run_the_history_has_placeholders() -> None:
    """Whoever reads the history while tools run finds a result for every call, the real one as soon as it is there."""
    go = threading.Event()

    @tool
    def wait() -> str:
        assert go.wait(AT_MOST)
        return "waited"

    with session_of([call("wait", "a"), call("look", "b")], "ok", tools=[wait, look]) as session:
        listener = session.subscribe()
        running = RunningTurn(session)
        wait_for(listener, "tool.finished")
        assert results(session.history) == ["This call is still running.", "seen"]
        judge(session.history)
        go.set()
        running.end()
        assert results(session.history) == ["waited", "seen"]


def test_results_have_the_order_of_the_calls() -> None:
    """A call that ends first has its result where it was asked for."""
    go = threading.Event()

    @tool
    def late() -> str:
        assert go.wait(AT_MOST)
        return "late"

    @tool
    def early() -> str:
        go.set()
        return "early"

    with session_of([call("late", "a"), call("early", "b")], "ok", tools=[late, early]) as session:
        session.run("x")
        assert results(session.history) == ["late", "early"]
        judge_session(session, model_of(session).requests)


@pytest.mark.parametrize("name", ["words and calls", "one id again and again", "retry after words"])
def test_the_history_is_valid_between_any_two_lines_that_change_it(name: str) -> None:
    """A thread or a signal handler that reads the history in the middle of a change finds it as before or as after."""
    with session_of(*SCRIPTS[name], "next", tools=[look]) as session:
        session.run("begin")
        session.run("go on")
        session.rollback()
        events = session.events()
    store = MemoryStore()
    log = EventLog("s", store, store.acquire("s"))
    lines = 0

    def at_line(frame: types.FrameType, kind: str, _: object) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != halter.session.history.__file__:
            return None
        if kind == "line":
            lines += 1
            judge_messages(log.view.history.messages)
        return at_line

    usual = sys.gettrace()
    sys.settrace(at_line)
    try:
        for event in events:
            log.run(lambda tx: tx.write(event.turn, event.data))
    finally:
        sys.settrace(usual)
    assert lines > 50


# -- what may be written -------------------------------------------------------------------------------------------


def taken(*data: Any) -> History:
    history = History()
    for number, each in enumerate((TurnStarted("m"), RequestStarted("m", 1), *data), 1):
        history.apply(Event(number, 0.0, "s", "t", each))
    return history


def test_a_second_result_for_one_call_is_refused_before_it_is_written() -> None:
    """Exactly one result for each call is enforced where events are appended."""
    asked = RequestFinished("m", 1, "complete", answer=Answer(calls=[call("look", "a"), call("look", "b")]))
    done = ToolFinished(ToolOutcome(call_id="a", name="look", status="completed", content="x"))
    history = taken(asked)
    history.check([done])
    with pytest.raises(AssertionError, match="already has its result"):
        history.check([done, done])
    history.apply(Event(4, 0.0, "s", "t", done))
    with pytest.raises(AssertionError, match="already has its result"):
        history.check([done])
    with pytest.raises(AssertionError, match="never asked for"):
        history.check([ToolFinished(ToolOutcome(call_id="z", name="look", status="completed"))])


def test_nothing_comes_between_calls_and_their_results() -> None:
    """A request, or a word of the user, while calls have no results is refused before it is written."""
    history = taken(RequestFinished("m", 1, "complete", answer=Answer(calls=[call("look", "a")])))
    with pytest.raises(AssertionError, match="no results yet"):
        history.check([RequestStarted("m", 1)])
    done = ToolFinished(ToolOutcome(call_id="a", name="look", status="completed", content="x"))
    history.check([done, RequestStarted("m", 1)])


def test_call_ids_are_never_used_twice() -> None:
    """A model that calls all its calls the same gets results that can be told apart, over turns and restarts."""
    store = MemoryStore()
    agent = agent_of([call("look", "x"), call("look", "x")], "ok", call("look", "x"), "ok", tools=[look])
    with agent.session("s", store) as session:
        session.run("a")
    with agent.session("s", store) as session:
        turn = session.run("b")
        ids = [
            each.id for message in session.history if isinstance(message, AssistantMessage) for each in message.calls
        ]
        assert ids == ["x", "x-2", "x-3"]
        assert [outcome.call_id for outcome in turn.outcomes] == ["x-3"]
        assert [each.call_id for each in data_of(session, "tool.started")] == ids
        judge_session(session, model_of(session).requests)


# -- rollback ------------------------------------------------------------------------------------------------------


def test_a_rollback_takes_the_running_turn_out() -> None:
    """rollback() stops the turn and takes it out of the history; the log keeps it, and the next turn knows nothing."""
    gate = Gate()
    with session_of("one", ["two ", gate], "three") as session:
        session.run("a")
        before = session.history
        running = RunningTurn(session, "b")
        gate.wait_reached()
        receipt = session.rollback()
        turn = running.end()
        assert (receipt.stopped, receipt.mode, receipt.turn_id) == (True, "rollback", turn.id)
        assert (turn.status, turn.reason) == ("interrupted", "rollback")
        assert session.history == before
        assert kinds(session.events())[-2:] == ["turn.finished", "turn.rolled_back"]
        session.run("c")
        assert said(session.history) == ["a", "c"]
        judge_session(session, model_of(session).requests)


@pytest.mark.parametrize("is_named", [False, True])
def test_a_rollback_says_so_if_the_turn_has_ended_before_its_command(is_named: bool) -> None:
    """The turn may be sealed, and taken out by that, before the caller comes to submit anything: it was done."""
    gate = Gate()
    with session_of("one", ["two ", gate]) as session:
        session.run("a")
        running = RunningTurn(session, "b")
        gate.wait_reached()
        turn = session.turn
        assert turn is not None
        turn.token.on_cancel(lambda: turn.ended.wait(AT_MOST))  # in the thread that rolls back
        receipt = session.rollback(expect_turn=turn.id if is_named else None)
        assert (receipt.stopped, receipt.note, receipt.turn_id) == (True, "", turn.id)
        assert running.end().reason == "rollback"
        assert said(session.history) == ["a"]


def test_a_rollback_when_idle_takes_the_last_turn_out() -> None:
    """rollback() of an idle session takes back the last turn, and again the one before it, until none is left."""
    with session_of("one", "two", "three") as session:
        session.run("a")
        session.run("b")
        assert not session.rollback().stopped
        assert said(session.history) == ["a"]
        assert session.rollback().note == ""
        assert session.history == []
        assert "no turn" in session.rollback().note
        assert session.run("c").text == "three"
        assert said(session.history) == ["c"]
        judge_session(session, model_of(session).requests)


def test_a_rollback_after_a_stop_leaves_no_word_of_it() -> None:
    """A stopped turn that is taken back is not told of, and there is nothing to go on with."""
    gate = Gate()
    with session_of("one", ["two ", gate], "three") as session:
        session.run("a")
        running = RunningTurn(session, "b")
        gate.wait_reached()
        session.stop()
        running.end()
        session.rollback()
        assert session.run("c").text == "three"
        assert said(session.history) == ["a", "c"]


def test_a_rollback_with_a_text_starts_the_next_turn_with_it() -> None:
    """post(text, "rollback") takes the running turn back, or the last one when idle, and the text is the next."""
    gate = Gate()
    with session_of(["one ", gate], "two", "three") as session:
        running = RunningTurn(session, "a")
        gate.wait_reached()
        receipt = session.post("b", "rollback")
        assert (receipt.stopped, receipt.mode) == (True, "rollback")
        assert running.end().reason == "rollback"
        assert receipt.settled(0) is False
        session.run()
        assert said(session.history) == ["b"]
        receipt = session.post("c", "rollback")
        assert (receipt.stopped, receipt.mode) == (False, "queue")
        session.run()
        assert said(session.history) == ["c"]
        judge_session(session, model_of(session).requests)


def test_two_rollbacks_of_one_running_turn_take_one_turn_back() -> None:
    """The second of two rollbacks of the same running turn does not take the turn before it."""
    gate = Gate()
    with session_of("one", ["two ", gate], "three") as session:
        session.run("a")
        running = RunningTurn(session, "b")
        gate.wait_reached()
        with WriterPaused(session) as writer:  # so that the turn cannot end between the two
            first, second = writer.start(session.rollback), writer.start(session.rollback)
        running.end()
        assert (first.result().stopped, second.result().stopped) == (True, False)
        assert said(session.history) == ["a"]


def test_a_rollback_of_a_turn_that_is_being_stopped_takes_it_back() -> None:
    """rollback() after stop(), before the turn has ended, takes it back all the same."""
    gate = Gate()
    with session_of(["one ", gate], "two") as session:
        running = RunningTurn(session)
        gate.wait_reached()
        session.stop()
        session.rollback()
        assert running.end().reason == "stop"
        assert session.history == []


def test_what_a_turn_was_told_is_told_again_after_its_rollback() -> None:
    """The note about a stop that went into a turn which was taken back goes into the next one."""
    gate = Gate()
    with session_of(["one ", gate], "two", "three") as session:
        running = RunningTurn(session, "a")
        gate.wait_reached()
        session.interrupt()
        running.end()
        session.run("b")
        told = session.history[-2]
        assert isinstance(told, UserMessage)
        assert "stopped because the user interrupted" in told.text
        session.rollback()
        session.run("c")
        assert said(session.history)[-1] == told.text.replace("\nb", "\nc")


def test_a_rollback_holds_after_a_restart() -> None:
    """A turn that was taken back stays out when the session is loaded again."""
    store = MemoryStore()
    agent = agent_of("one", "two", "three")
    with agent.session("s", store) as session:
        session.run("a")
        session.run("b")
        session.rollback()
    with agent.session("s", store) as session:
        assert said(session.history) == ["a"]
        assert session.turn is not None
        assert session.turn.text == "one"


# -- what the model is told ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "words"), [("interrupt", "the user interrupted"), ("stop", "the user said stop")])
def test_the_model_is_told_of_a_stop_once(how: str, words: str) -> None:
    """The next message of the user begins with one line about the stop; the one after it does not."""
    gate = Gate()
    with session_of(["one ", gate], "two", "three") as session:
        running = RunningTurn(session)
        gate.wait_reached()
        getattr(session, how)()
        running.end()
        session.run("b")
        session.run("c")
        notes = [text for text in said(session.history) if "stopped because" in text]
        assert notes == [f"[The previous turn was stopped because {words} before it was done.]\nb"]


def test_the_model_is_told_of_a_failure() -> None:
    """After a turn that failed, the next message says that it ended early."""
    with session_of(ProviderError("no", status=400), "two") as session:
        session.run("a")
        session.run("b")
        assert "ended early" in said(session.history)[-1]


def test_a_pause_is_not_told_of() -> None:
    """A paused turn that is gone on with has nothing in its history but the work."""

    @tool
    def pause() -> str:
        session.stop(when="step")
        return "seen"

    with session_of(call("pause"), "ok", tools=[pause]) as session:
        assert session.run("a").reason == "pause"
        assert session.run().text == "ok"
        assert said(session.history) == ["a"]


def test_a_late_result_is_told_once_at_the_start_of_the_next_turn() -> None:
    """An abandoned call that ends after its turn is told of in the next one, as what it is, and never again."""
    with DeafTool("the file is written") as deaf:
        with session_of(call("deaf"), "two", "three", tools=[tool(name="deaf")(deaf)]) as session:
            listener = session.subscribe()
            running = RunningTurn(session)
            assert deaf.started.wait(AT_MOST)
            session.interrupt()
            turn = running.end()
            assert "may still have effects" in results(session.history)[0]
            deaf.release()
            late = wait_for(listener, "tool.finished_late")
            assert late.turn == turn.id
            assert turn.outcomes[0].late is not None
            assert turn.outcomes[0].late.content == "the file is written"
            assert len(results(session.history)) == 1  # one result, and it does not change
            session.run("b")
            session.run("c")
            told = [text for text in said(session.history) if "the file is written" in text]
            assert len(told) == 1
            assert told[0].endswith("\nb")
            assert "ended after all" in told[0]
            judge_session(session, model_of(session).requests)


def test_a_late_result_that_came_before_a_restart_is_told_after_it() -> None:
    """What an abandoned call did is not forgotten with the program."""
    store = MemoryStore()
    with DeafTool("done it") as deaf:
        agent = agent_of(call("deaf"), "two", tools=[tool(name="deaf")(deaf)])
        with agent.session("s", store) as session:
            listener = session.subscribe()
            running = RunningTurn(session)
            assert deaf.started.wait(AT_MOST)
            session.interrupt()
            running.end()
            deaf.release()
            wait_for(listener, "tool.finished_late")
        with agent.session("s", store) as session:
            session.run("b")
            assert "done it" in said(session.history)[-1]


def test_a_late_result_after_the_session_was_closed_goes_nowhere() -> None:
    """A deaf tool that ends when its session is open in another object does not write into it."""
    store = MemoryStore()
    with DeafTool("done it") as deaf:
        agent = agent_of(call("deaf"), "two", tools=[tool(name="deaf")(deaf)])
        with agent.session("s", store) as session:
            running = RunningTurn(session)
            assert deaf.started.wait(AT_MOST)
            session.interrupt()
            turn = running.end()
        with agent.session("s", store) as again:
            before = len(again.events())
            deaf.release()
            assert deaf.returned.wait(AT_MOST)
            again.run("b")
            assert "tool.finished_late" not in kinds(again.events()[before:])
            assert turn.outcomes[0].status == "abandoned"


@looped
async def test_the_users_message_is_kept_when_no_answer_ever_came() -> None:
    """A message whose turn was stopped before the first byte is in the history, and goes with the next request."""
    gate = Gate()
    async with session_of([gate], "ok") as session:
        task = asyncio.create_task(session.arun("remember this"))
        await gate.await_reached()
        session.interrupt()
        assert (await task).text == ""
        await session.arun("and?")
        assert said(model_of(session).requests[-1].messages)[0] == "remember this"
        judge_session(session, model_of(session).requests)


def test_a_session_can_be_read_by_its_type() -> None:
    """The history is a new list each time: whoever changes it changes nothing."""
    with session_of("ok") as session:
        session.run("x")
        session.history.clear()
        assert len(session.history) == 2
        assert isinstance(session, Session)


def test_the_late_end_of_a_turn_that_was_taken_back_is_not_told(store: Store) -> None:
    """A call of a rolled-back turn that ends late is in the log, and no model hears of a call that it never made."""
    deaf = DeafTool()

    @tool
    def work() -> str:
        return str(deaf())

    with agent_of(call("work"), "hello", "again", tools=[work]).session("s", store) as session:
        running = RunningTurn(session, "do it")
        assert deaf.started.wait(AT_MOST)
        session.rollback()
        running.end()
        with session.subscribe() as listener:
            deaf.release()
            wait_for(listener, "tool.finished_late")
        session.run("hi")
        assert said(session.history) == ["hi"]
        judge_session(session, model_of(session).requests)
    with agent_of("again").session("s", store) as session:
        session.run("and now?")
        assert said(session.history) == ["hi", "and now?"]


def test_a_late_end_that_came_before_its_turn_was_taken_back_is_not_told(store: Store) -> None:
    """If the late end is in the log already when its turn is taken back, it goes with it."""
    deaf = DeafTool()

    @tool
    def work() -> str:
        return str(deaf())

    with agent_of(call("work"), "hello", tools=[work]).session("s", store) as session:
        running = RunningTurn(session, "do it")
        assert deaf.started.wait(AT_MOST)
        session.interrupt()
        running.end()
        with session.subscribe() as listener:
            deaf.release()
            wait_for(listener, "tool.finished_late")
        session.rollback()
        session.run("hi")
        assert said(session.history) == ["hi"]
