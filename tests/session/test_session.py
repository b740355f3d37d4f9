"""Sessions: their turns, one after the other."""

from __future__ import annotations

import asyncio
import threading

import pytest

from halter import (
    NothingToDo,
    SessionBusy,
    tool,
)
from halter.models import Finished, Usage
from halter.models.errors import ProviderError
from halter.testing import Gate
from tests.support.background import RunningTurn
from tests.support.looped import looped
from tests.support.sessions import AT_MOST, agent_of, call, data_of, kinds, model_of, said, session_of
from tests.support.valid_history import judge_session


@tool
def look() -> str:
    """Look."""
    return "seen"


# -- run and arun ---------------------------------------------------------------------------------------------


def test_run_gives_the_finished_turn() -> None:
    """run() blocks until the answer is there, and the turn says so."""
    with session_of(["Hel", "lo."]) as session:
        turn = session.run("hi")
        assert (turn.status, turn.text, turn.reason, turn.error) == ("done", "Hello.", None, None)
        assert turn is session.turn
        assert not session.is_running
        assert said(session.history) == ["hi"]
        judge_session(session, model_of(session).requests)


def test_run_with_tools_goes_on_until_there_is_an_answer() -> None:
    """Calls are run, their results are sent back, and the turn tells of their outcomes."""
    with session_of(["I look.", call("look")], "It is there.", tools=[look]) as session:
        turn = session.run("look")
        assert [outcome.status for outcome in turn.outcomes] == ["completed"]
        assert turn.text == "It is there."
        assert len(model_of(session).requests) == 2
        judge_session(session, model_of(session).requests)


def test_usage_is_summed_over_the_steps() -> None:
    """A turn of two requests has used the tokens of both."""
    first = [call("look"), Usage(10, 2), Finished("tool_calls")]
    with session_of(first, ["done", Usage(20, 3), Finished("stop")], tools=[look]) as session:
        assert session.run("x").usage == Usage(30, 5)


def test_the_log_tells_a_turn_in_order() -> None:
    """The events of a plain turn come in the order in which things happened, numbered without gaps."""
    with session_of("hello") as session:
        session.run("hi")
        log = session.events()
        assert [event.seq for event in log] == list(range(1, len(log) + 1))
        assert kinds(log) == [
            "message.accepted",
            "turn.started",
            "message.applied",
            "request.started",
            "text.delta",
            "request.finished",
            "turn.finished",
        ]
        assert kinds(session.events(after=5)) == ["request.finished", "turn.finished"]


@looped
async def test_arun_is_one_turn_in_the_callers_loop() -> None:
    """Async tools of arun() run in the loop of whoever called it."""
    loops: list[asyncio.AbstractEventLoop] = []

    @tool
    async def where() -> str:
        loops.append(asyncio.get_running_loop())
        return "here"

    async with session_of(call("where"), "ok", tools=[where]) as session:
        turn = await session.arun("x")
    assert turn.status == "done"
    assert loops == [asyncio.get_running_loop()]


# -- what there is to do -------------------------------------------------------------------------------------------


def test_run_works_on_what_the_inbox_holds() -> None:
    """Messages that were queued while idle are all answered by the next turn, in order, each on its own."""
    with session_of("ok") as session:
        session.post("one")
        session.queue("two")
        turn = session.run("three")
        assert turn.status == "done"
        assert said(session.history) == ["one", "two", "three"]
        assert len(session.inbox) == 0


def test_nothing_to_do_is_an_error() -> None:
    """run() without a text, a message or a broken-off turn raises, and says what to do."""
    with session_of("ok") as session:
        with pytest.raises(NothingToDo, match="pass a text"):
            session.run()
        session.run("x")
        with pytest.raises(NothingToDo):
            session.run()


def test_held_messages_are_no_work_until_they_are_released() -> None:
    """run() does not start what a stop has held, and its error names release()."""
    with session_of("ok") as session:
        session.post("one")
        session.stop()
        with pytest.raises(NothingToDo, match="release"):
            session.run()
        assert session.release() == 1
        assert session.run().status == "done"


@pytest.mark.parametrize("how", ["interrupt", "stop"])
def test_run_goes_on_with_an_interrupted_turn(how: str) -> None:
    """run() with nothing in the inbox goes on with the turn that was broken off, from the history as it stands."""
    gate = Gate()
    with session_of(["Half an ", gate], "answer.") as session:
        running = RunningTurn(session)
        gate.wait_reached()
        assert getattr(session, how)().stopped
        first = running.end()
        assert (first.status, first.text) == ("interrupted", "Half an ")
        second = session.run()
        assert (second.status, second.text) == ("done", "answer.")
        assert data_of(session, "turn.started")[-1].continues == first.id
        judge_session(session, model_of(session).requests)


def test_a_pause_cuts_nothing_and_run_goes_on() -> None:
    """stop(when="step") lets the running calls end, ends the turn behind them, and run() goes on without a word."""
    started, go = threading.Event(), threading.Event()

    @tool
    def work() -> str:
        started.set()
        assert go.wait(AT_MOST)
        return "all of it"

    with session_of(call("work"), "answer", tools=[work]) as session:
        running = RunningTurn(session)
        assert started.wait(AT_MOST)
        receipt = session.stop(when="step")
        assert receipt.stopped
        go.set()
        turn = running.end()
        assert receipt.settled(AT_MOST)
        assert (turn.status, turn.reason) == ("interrupted", "pause")
        assert [(o.status, o.content) for o in turn.outcomes] == [("completed", "all of it")]
        assert session.run().text == "answer"
        assert said(session.history) == ["begin"]
        judge_session(session, model_of(session).requests)


def test_a_pause_asked_for_in_the_last_step_changes_nothing() -> None:
    """A turn whose last step is running when a pause is asked for ends as done."""
    gate = Gate()
    with session_of(["x", gate], "y") as session:
        running = RunningTurn(session)
        gate.wait_reached()
        session.stop(when="step")
        gate.open()
        assert running.end().status == "done"
        assert session.run("again").status == "done"  # and the wish for it does not outlive the turn


def test_a_limited_turn_fails_and_run_goes_on_with_it() -> None:
    """A turn that comes to the limit of steps has failed for that reason, and run() goes on from there."""
    script = [call("look", "c1"), call("look", "c2"), "done"]
    with session_of(*script, tools=[look], max_steps=2) as session:
        turn = session.run("x")
        assert (turn.status, turn.reason) == ("failed", "step_limit")
        assert "2 steps" in str(turn.error)
        assert session.run().text == "done"
        judge_session(session, model_of(session).requests)


def test_a_cut_off_answer_is_kept_and_run_goes_on_with_it() -> None:
    """An answer that comes to the limit of output is in the history, and the turn has failed for that reason."""
    with session_of(["Once upon", Finished("length")], " a time.") as session:
        turn = session.run("tell")
        assert (turn.status, turn.reason, turn.text) == ("failed", "output_limit", "Once upon")
        assert session.run().text == " a time."
        judge_session(session, model_of(session).requests)


def test_a_failed_turn_keeps_the_message_and_the_error() -> None:
    """A model that fails gives a failed turn with its error; the message stays in the history for the next try."""
    error = ProviderError("no", status=400)
    with session_of(["Some ", error], "better") as session:
        turn = session.run("x")
        assert turn.status == "failed"
        assert turn.error is error
        assert turn.text == "Some "
        assert session.run().text == "better"
        assert said(model_of(session).requests[-1].messages)[0] == "x"
        judge_session(session, model_of(session).requests)


def test_a_cancellation_inside_of_a_model_is_an_error_of_the_model() -> None:
    """A CancelledError that a model raises by itself fails the turn; it does not come out of run()."""
    agent = agent_of(asyncio.CancelledError(), asyncio.CancelledError(), asyncio.CancelledError())
    with agent.session() as session:
        turn = session.run("x")
        assert turn.status == "failed"
        assert "cancelled" in str(turn.error)


# -- at most one turn ----------------------------------------------------------------------------------------------


def test_a_second_run_is_refused_before_it_accepts_the_text() -> None:
    """A second run() raises SessionBusy, nothing of it is in the inbox or the log, and the first goes on."""
    gate = Gate()
    with session_of(["one", gate]) as session:
        running = RunningTurn(session)
        gate.wait_reached()
        with pytest.raises(SessionBusy, match="Nothing was accepted"):
            session.run("mine")
        with pytest.raises(SessionBusy):
            asyncio.run(session.arun("mine"))
        assert len(session.inbox) == 0
        assert len(data_of(session, "message.accepted")) == 1
        gate.open()
        assert running.end().status == "done"
