"""What is said to a session in the very moment in which it begins, ends or changes something."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from typing import Any

import pytest

from halter import Session, ToolContext, tool
from halter.models import UserMessage
from halter.stores import Store
from halter.testing import Gate
from tests.support.background import Background, RunningTurn
from tests.support.ctrl_c import CtrlC
from tests.support.hooked_store import HookedStore, waiting_in
from tests.support.looped import looped
from tests.support.paused_writer import WriterPaused
from tests.support.sessions import AT_MOST, agent_of, call, data_of, model_of, said, session_of, wait_for
from tests.support.valid_history import judge_session
from tests.support.waiting import wait_until

# -- rollback() of an idle session against the start of a turn -------------------------------------------------------


def serving(session: Session) -> Background:
    return Background(lambda: asyncio.run(session.serve()))


def two_turns(store: Store, gate: Gate) -> Session:
    """A session with two turns behind it; the third waits at the gate."""
    session = agent_of("first", "second", ["third ", gate, "end"], "fourth").session("s", store)
    session.run("one")
    session.run("two")
    return session


@pytest.mark.parametrize("how", ["run", "serve"])
def test_a_turn_that_begins_behind_a_rollback_can_be_stopped(
    store: Store, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A rollback that comes first takes the last turn back; the turn that begins behind it is seen, and stops."""
    gate = Gate()
    session = two_turns(store, gate)
    running: Background
    if how == "serve":
        running = serving(session)
        with WriterPaused(session) as paused:
            paused.start(lambda: session.post("three"))
            rolling = paused.start(session.rollback)
    else:
        with WriterPaused(session) as paused:
            rolling = paused.start(session.rollback)
            running = paused.start(lambda: session.run("three"))
    receipt = rolling.result()
    gate.wait_reached()
    assert session.is_running
    assert session.turn is not None
    assert not receipt.stopped
    assert [text[-5:] for text in said(session.history)] == ["one", "three"]
    stop = session.stop()
    assert stop.stopped
    assert stop.settled(10)
    assert (session.turn.status, session.turn.reason, session.turn.text) == ("interrupted", "stop", "third ")
    session.close()
    running.result()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("how", ["run", "serve"])
def test_a_rollback_behind_the_start_of_a_turn_takes_that_turn_back(
    store: Store, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A rollback that finds a turn just begun stops it and takes it back; the turns before it stay."""
    gate = Gate()
    session = two_turns(store, gate)
    running: Background
    if how == "serve":
        session.queue("three")
        with WriterPaused(session) as paused:
            running = paused.start(lambda: asyncio.run(session.serve()))
            rolling = paused.start(session.rollback)
    else:
        with WriterPaused(session) as paused:
            running = paused.start(lambda: session.run("three"))
            rolling = paused.start(session.rollback)
    receipt = rolling.result()
    assert receipt.stopped
    assert receipt.settled(10)
    assert said(session.history) == ["one", "two"]
    assert not session.is_running
    assert session.turn is not None
    assert session.turn.text == "second"
    if how == "serve":
        session.close()
        running.result()
    else:
        turn = running.result()
        assert (turn.status, turn.reason) == ("interrupted", "rollback")
        gate.open()  # that turn has made no request: this one gets its answer
        assert session.run("four").status == "done"
        assert said(session.history) == ["one", "two", "four"]
        session.close()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    with agent_of().session("s", store) as again:
        assert said(again.history)[:2] == ["one", "two"]


def test_rollbacks_that_race_with_turns_leave_nothing_running(store: Store) -> None:
    """Whatever the order: the turn is stopped and taken back, or runs on and is done; never out of reach."""
    session = agent_of(*["answer"] * 200).session("s", store)
    session.run("first")
    for number in range(30):
        running = RunningTurn(session, f"turn {number}")
        rolling = Background(session.rollback)
        receipt, turn = rolling.result(), running.end()
        assert receipt.settled(10)
        assert not session.is_running
        assert turn.status == "done" or (turn.status, turn.reason) == ("interrupted", "rollback")
        # A turn that was done before the rollback found it is taken back all the same.
        told = {event.turn for event in session.events() if event.kind == "turn.rolled_back"}
        assert (f"turn {number}" in "".join(said(session.history))) == (turn.id not in told)
    judge_session(session)
    session.close()


# -- steers that are taken away --------------------------------------------------------------------------------------


@looped
async def test_a_steer_that_is_removed_after_it_broke_the_request() -> None:
    """The model is asked to go on from its half sentence, once, and is told of the cut there and nowhere else."""
    gate = Gate()
    async with session_of(["half a sen", gate], "whole", "next answer") as session:
        task = asyncio.ensure_future(session.arun("go"))
        await gate.await_reached()
        receipt = session.steer("no, wait")
        assert session.inbox.remove(receipt.id)  # in the same step of the loop: the turn has not seen it yet
        turn = await task
        assert (turn.status, turn.text, receipt.state) == ("done", "whole", "removed")
        second = model_of(session).requests[1].messages
        assert isinstance(second[-1], UserMessage)
        assert "cut off" in second[-1].text
        assert "no, wait" not in str(second)
        await session.arun("next")
        assert said(session.history)[-1] == "next"
        judge_session(session, model_of(session).requests)


def test_a_steer_that_is_removed_after_it_has_kept_the_turn_from_its_end() -> None:
    """The turn ends with the answer that it has: no request is made that ends in the model's own words."""
    store = HookedStore()
    with agent_of("the answer", "never asked for").session(store=store) as session:

        def remove() -> None:
            with contextlib.suppress(RuntimeError):  # it cannot be waited for in the writer's thread
                session.inbox.remove("m")

        def steer() -> None:
            session.post("no, wait", "steer", id="m")
            store.once("request.finished", remove)

        store.once("text.delta", steer)
        turn = session.run("go")
        assert (turn.status, turn.text) == ("done", "the answer")
        assert session.receipt("m").state == "removed"
        assert len(model_of(session).requests) == 1
        judge_session(session, model_of(session).requests)


# -- only answer() or a steer answers a question ---------------------------------------------------------------------


@tool(grace=AT_MOST)
async def clean(ctx: ToolContext) -> str:
    """Clean up."""
    return f"answer was: {await ctx.ask('Really delete everything?', ['yes', 'no'])}"


def test_a_queued_message_never_answers_a_question(store: Store) -> None:
    """queue() while a tool asks is for the next turn: the question stays open until somebody answers it."""
    agent = agent_of(call("clean"), "done", "table booked", tools=[clean])
    with agent.session("s", store) as session, session.subscribe() as listener:
        running = RunningTurn(session)
        asked: Any = wait_for(listener, "question.asked").data
        receipt = session.queue("and afterwards book a table")
        assert receipt.state == "accepted"
        assert session.questions == (asked,)
        assert session.answer(asked.id, "no")
        assert running.end().outcomes[0].content == "answer was: no"
        assert receipt.state == "accepted"
        assert session.run().text == "table booked"
        assert said(session.history)[-1] == "and afterwards book a table"


def test_an_interrupt_never_answers_a_question(store: Store) -> None:
    """interrupt(text) while a tool asks stops the turn, and the question is withdrawn without an answer."""
    agent = agent_of(call("clean"), "something else", tools=[clean])
    with agent.session("s", store) as session, session.subscribe() as listener:
        running = RunningTurn(session)
        wait_for(listener, "question.asked")
        session.interrupt("yes")
        assert running.end().outcomes[0].status == "cancelled"
        assert [(each.withdrawn, each.value) for each in data_of(session, "question.answered")] == [(True, None)]
        assert session.run().status == "done"
        assert said(session.history)[-1].endswith("yes")


# -- Ctrl+C ----------------------------------------------------------------------------------------------------------

POSTING = (
    "session/session.py",
    "session/delivery.py",
    "session/log.py",
    "session/inbox.py",
    "stores/writer.py",
    "stores/batch.py",
    "stores/drain_claim.py",
    "stores/memory.py",
    "threads/pool.py",
)


def test_ctrl_c_in_post_leaves_log_and_inbox_alike(store: Store) -> None:
    """At whatever point: the message is in both or in none, and posted again with its id it is there once."""
    for nth in itertools.count(1):
        session = agent_of("answer").session(f"s{nth}", store)
        session.queue("before")
        interrupt = CtrlC(nth, *POSTING)
        was_hit = interrupt.run(lambda session=session: session.post("hello", id="k"))
        Background(lambda session=session: session.release()).result()  # behind what the interrupted thread began
        assert [each.id for each in session.inbox] == waiting_in(store, session.id), interrupt.where
        assert Background(lambda session=session: session.post("hello", id="k")).result().state == "accepted"
        assert [each.text for each in session.inbox] == ["before", "hello"], interrupt.where
        assert [each.id for each in session.inbox] == waiting_in(store, session.id), interrupt.where
        session.close()
        if not was_hit:
            break
    assert nth > 30


def test_ctrl_c_in_an_interrupt_stops_the_turn_or_says_nothing(store: Store) -> None:
    """interrupt(text) that is itself interrupted: if the text was accepted the turn ends, and the text is there."""
    for nth in itertools.count(1):
        gate = Gate()
        session = agent_of(["half ", gate, "whole"], "next").session(f"s{nth}", store)
        running = RunningTurn(session, "go")
        gate.wait_reached()
        interrupt = CtrlC(nth, *POSTING)
        was_hit = interrupt.run(lambda session=session: session.interrupt("something else"))
        Background(lambda session=session: session.release()).result()
        accepted = [each.text for each in session.inbox]
        assert accepted in (["something else"], []), interrupt.where
        if not accepted:
            gate.open()
        assert running.end().status == ("interrupted" if accepted else "done"), interrupt.where
        session.close()
        if not was_hit:
            break
    assert nth > 30
    wait_until(lambda: not session.is_running)
