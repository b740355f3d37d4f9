"""Stopping a turn of a session, and what a stop leaves behind."""

from __future__ import annotations

import threading

import pytest

from halter import (
    Agent,
    Session,
    ToolContext,
    tool,
)
from halter.cancel import NEVER
from halter.models import OpenAIModel, TextDelta
from halter.testing import DeafTool, FakeProvider, Gate, ScriptedModel, hang_before_first_byte
from tests.support.background import RunningTurn
from tests.support.hooked_store import HookedStore
from tests.support.paused_writer import WriterPaused
from tests.support.sessions import AT_MOST, agent_of, call, data_of, model_of, said, session_of, wait_for
from tests.support.valid_history import judge_session

# -- the token of a turn -------------------------------------------------------------------------------------------


def test_the_cancel_token_is_that_turns_for_ever() -> None:
    """Whoever keeps a turn's token sees its stop also after the next turn has begun, whose token is another."""
    first_gate, second_gate = Gate(), Gate()
    with session_of(["one", first_gate], ["two", second_gate]) as session:
        assert session.cancel_token is NEVER
        running = RunningTurn(session)
        first_gate.wait_reached()
        token = session.cancel_token
        assert not token.is_cancelled
        session.interrupt()
        turn = running.end()
        assert session.cancel_token is token
        assert (token.is_cancelled, token.reason) == (True, "interrupt")
        assert turn.token is token
        running = RunningTurn(session, "again")
        second_gate.wait_reached()
        assert session.cancel_token is not token
        assert not session.cancel_token.is_cancelled
        assert token.is_cancelled
        second_gate.open()
        assert running.end().status == "done"
        assert not session.cancel_token.is_cancelled


def test_a_stop_of_an_idle_session_poisons_nothing() -> None:
    """stop() and interrupt() of an idle session say that nothing was stopped, and the next turn runs to its end."""
    with session_of("one", "two", "three") as session:
        for receipt in (session.stop(), session.interrupt(), session.stop(when="step")):
            assert not receipt.stopped
            assert receipt.note == "no turn was running"
            assert receipt.settled(0)
        assert session.run("x").status == "done"
        session.interrupt()
        assert session.run("y").status == "done"
        receipt = session.interrupt("z")
        assert (receipt.stopped, receipt.mode, receipt.state) == (False, "queue", "accepted")
        assert session.run().text == "three"


def test_only_the_first_stop_stops() -> None:
    """Of two stops one has done it, the first reason is on record, and the other says so."""
    gate = Gate()
    with session_of(["one", gate]) as session:
        running = RunningTurn(session)
        gate.wait_reached()
        with WriterPaused(session):  # so that the turn cannot end between the two
            first, second = session.interrupt(), session.stop()
        turn = running.end()
        assert (first.stopped, second.stopped) == (True, False)
        assert second.note  # it came before the turn was over, or after
        assert turn.reason == "interrupt"
        stopping = data_of(session, "turn.stopping")
        assert [(each.reason, each.by) for each in stopping] == [("interrupt", "interrupt()")]
        assert data_of(session, "turn.finished")[0].after is not None


def test_a_stop_has_the_reason_and_the_detail_that_it_was_given() -> None:
    """stop() with a reason of one's own has it in the turn, the token and the log."""
    gate = Gate()
    with session_of(["one", gate]) as session:
        running = RunningTurn(session)
        gate.wait_reached()
        session.stop(reason="bedtime", detail="it is late")
        turn = running.end()
        assert (turn.reason, turn.detail) == ("bedtime", "it is late")
        assert (turn.token.reason, turn.token.detail) == ("bedtime", "it is late")
        finished = data_of(session, "turn.finished")[0]
        assert (finished.status, finished.reason, finished.detail) == ("interrupted", "bedtime", "it is late")


def test_bad_words_are_refused_with_the_good_ones() -> None:
    """A mode or a time to stop that does not exist is refused, and the error lists those that do."""
    with session_of() as session:
        with pytest.raises(ValueError, match="queue, steer, interrupt, rollback"):
            session.post("x", mode="shout")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match='"now" or "step"'):
            session.stop(when="later")  # type: ignore[arg-type]
        assert session.events() == []


@pytest.mark.parametrize("kind", ["turn.started", "message.applied", "request.started", "text.delta"])
@pytest.mark.parametrize("how", ["stop", "interrupt"])
def test_a_stop_at_any_point_of_the_start_of_a_turn_stops_it(kind: str, how: str) -> None:
    """A stop that comes as the turn begins, even between its first write and its first await, is not lost."""
    store = HookedStore()
    receipts = []
    with agent_of(["one", Gate()]).session(store=store) as session:
        store.once(kind, lambda: receipts.append(getattr(session, how)()))
        turn = RunningTurn(session).end()
        assert receipts[0].stopped
        assert (turn.status, turn.reason) == ("interrupted", how)
        assert not session.is_running
        judge_session(session)


def test_a_message_that_starts_a_turn_is_not_told_of_as_held() -> None:
    """A stop that comes as a turn begins finds its message applied, here and when the session is loaded again."""
    store = HookedStore()
    agent = agent_of(["one", Gate()])
    with agent.session("s", store) as session:
        receipt = session.post("x")
        store.once("turn.started", session.stop)
        assert RunningTurn(session, None).end().status == "interrupted"
        assert receipt.state == "applied"
    with agent.session("s", store) as session:
        assert session.post("x", id=receipt.id).state == "applied"
        assert len(session.inbox) == 0
        assert said(session.history) == ["x"]


# -- what the provider sees ----------------------------------------------------------------------------------------


def test_a_stop_before_the_first_byte_closes_the_connection() -> None:
    """A stop while the provider has not answered yet closes the connection, and the message is in the history."""
    with FakeProvider(hang_before_first_byte()) as provider:
        model = OpenAIModel("m", base_url=provider.openai_url, api_key="k")
        with Agent(model).session() as session:
            running = RunningTurn(session)
            provider.wait_for_request()
            session.interrupt()
            turn = running.end()
            provider.wait_for_close()
            assert (turn.status, turn.text) == ("interrupted", "")
            assert said(session.history) == ["begin"]
            assert session.run("again").text == "ok"
            assert len(provider.requests) == 2


def test_a_session_says_how_it_stands() -> None:
    """The repr of a session, a turn and a receipt tell what one wants to know in a debugger."""
    gate = Gate()
    session = session_of(["one", gate])
    assert "idle" in repr(session)
    running = RunningTurn(session)
    gate.wait_reached()
    receipt = session.post("later")
    assert "running" in repr(session)
    assert "1 waiting" in repr(session)
    assert "accepted as queue" in repr(receipt)
    assert "later" in repr(session.inbox)
    session.close()
    assert "closed" in repr(session)
    assert "interrupted (shutdown)" in repr(running.end())


def test_one_call_can_be_stopped_and_the_turn_goes_on() -> None:
    """cancel_call() stops one tool; the others and the turn go on, and the model reads what happened."""
    started = threading.Semaphore(0)
    go = threading.Event()

    @tool(grace=AT_MOST)
    def slow(ctx: ToolContext) -> str:
        token = ctx.token
        started.release()
        if ctx.call_id == "a":
            token.sleep(AT_MOST)
        assert go.wait(AT_MOST)
        return "whole"

    with session_of([call("slow", "a"), call("slow", "b")], "ok", tools=[slow]) as session:
        assert not session.cancel_call("a")
        running = RunningTurn(session)
        assert started.acquire(timeout=AT_MOST)
        assert started.acquire(timeout=AT_MOST)
        assert not session.cancel_call("nobody")
        assert session.cancel_call("a")
        assert not session.cancel_call("a")
        go.set()
        turn = running.end()
        assert turn.status == "done"
        assert [o.status for o in turn.outcomes] == ["cancelled", "completed"]
        judge_session(session, model_of(session).requests)


def test_deaf_tools_do_not_keep_a_turn() -> None:
    """A stop returns at once with a tool that never listens; it is named as abandoned, and the next turn runs."""
    with DeafTool() as deaf:
        with session_of(call("deaf"), "ok", tools=[tool(name="deaf")(deaf)]) as session:
            running = RunningTurn(session)
            assert deaf.started.wait(AT_MOST)
            session.interrupt()
            turn = running.end()
            assert [o.status for o in turn.outcomes] == ["abandoned"]
            assert session.run("y").status == "done"


def test_text_deltas_are_one_event_each() -> None:
    """Every piece that the model gave is an event of its own, in order."""
    with session_of([TextDelta("a"), TextDelta("b")]) as session:
        session.run("x")
        assert [each.text for each in data_of(session, "text.delta")] == ["a", "b"]


def test_sessions_of_one_agent_do_not_know_of_each_other() -> None:
    """Two sessions of one agent run at the same time, and a stop of one does not touch the other."""
    gates = [Gate(), Gate()]
    agent = Agent(ScriptedModel(["x", gates[0]], ["x", gates[1]]))
    with agent.session() as one, agent.session() as other:
        first = RunningTurn(one)
        gates[0].wait_reached()
        second = RunningTurn(other)
        gates[1].wait_reached()
        one.stop()
        assert first.end().status == "interrupted"
        assert other.is_running
        gates[1].open()
        assert second.end().status == "done"


def test_waiting_in_a_thread_for_events() -> None:
    """A thread can wait for the end of a turn through a listener."""
    with session_of("one") as session, session.subscribe() as listener:
        running = RunningTurn(session)
        assert wait_for(listener, "turn.finished").turn == running.end().id
        assert isinstance(session, Session)


def test_after_a_rollback_the_turn_before_it_is_shown() -> None:
    """The turn that was taken back is not the last one any more; without another there is none."""
    with session_of("one", "two") as session:
        first = session.run("a")
        session.run("b")
        session.rollback()
        assert session.turn is not None
        assert (session.turn.id, session.turn.text) == (first.id, "one")
        session.rollback()
        assert session.turn is None
