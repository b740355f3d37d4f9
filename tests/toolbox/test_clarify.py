"""Questions to the user: answered by choice, text or voice, and withdrawn at a stop."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from halter import Session
from halter.errors import StoreFull
from halter.events import QuestionAsked
from halter.models import Audio, Image, Text
from halter.session.subscription import Subscription
from halter.stores import MemoryStore
from halter.testing import Gate
from halter.toolbox.clarify import Clarify
from tests.support.background import Background, RunningTurn
from tests.support.batches import Probe
from tests.support.hooked_store import HookedStore, store_with
from tests.support.sessions import agent_of, call, data_of, model_of, said, wait_for
from tests.support.stopped_calls import patient
from tests.support.valid_history import judge_session
from tests.support.waiting import wait_until

TOOLS = patient(Clarify().tools)
ASK = call("clarify", "q1", json.dumps({"question": "Which colour?", "choices": ["Red", "Blue"]}))


def session_with(*script: Any, store: MemoryStore | None = None) -> Session:
    return agent_of(*(script or (ASK, "ok")), tools=TOOLS).session("s", store)


def asked(listener: Subscription) -> QuestionAsked:
    data = wait_for(listener, "question.asked").data
    assert isinstance(data, QuestionAsked)
    return data


def judge_once(session: Session, text: str) -> None:
    """Judge that a message is in the log once as accepted and once as applied, and that the model reads it once."""
    accepted = [each.id for each in data_of(session, "message.accepted") if each.message.text == text]
    assert len(accepted) == 1
    assert [each.id for each in data_of(session, "message.applied")].count(accepted[0]) == 1
    told = [message for message in model_of(session).requests[-1].messages if text in _text(message)]
    assert len(told) == 1, told
    assert not list(session.inbox)
    judge_session(session, model_of(session).requests)


def _text(message: Any) -> str:
    parts = getattr(message, "parts", None)
    if parts is None:
        parts = getattr(message, "content", [])
    return str(getattr(message, "text", "")) or str(parts)


# -- answers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "result"),
    [
        ("Blue", "Blue"),
        (" blue ", "Blue"),
        ("2", "Blue"),
        ("2.", "Blue"),
        ("3", "3"),
        ("rather green", "rather green"),
        (True, "yes"),
        ("", "[the user did not answer]"),
        (None, "[the user did not answer]"),
    ],
)
def test_an_answer_by_its_id_is_the_result(value: Any, result: str) -> None:
    """session.answer() with a choice, its number or anything else is what the model reads."""
    with session_with() as session, session.subscribe() as listener:
        running = RunningTurn(session)
        question = asked(listener)
        assert (question.question, question.choices) == ("Which colour?", ["Red", "Blue"])
        assert session.answer(question.id, value)
        turn = running.end()
        assert [(outcome.status, outcome.content) for outcome in turn.outcomes] == [("completed", result)]


def test_a_steer_answers_the_question() -> None:
    """A steer while a question is open is its answer: applied once, as the tool's result and nothing else."""
    mode: Any = "steer"
    with session_with() as session, session.subscribe() as listener:
        running = RunningTurn(session)
        question = asked(listener)
        receipt = session.post("dark green", mode, id="m1")
        assert (receipt.state, receipt.mode, receipt.note) == ("applied", mode, f"it answered question {question.id}")
        assert session.post("dark green", mode, id="m1").message == receipt.message
        turn = running.end()
        assert receipt.turn_id == turn.id
        assert [(outcome.status, outcome.content) for outcome in turn.outcomes] == [("completed", "dark green")]
        assert said(session.history) == ["begin"]
        answered = data_of(session, "question.answered")
        assert [(each.id, each.value, each.withdrawn) for each in answered] == [(question.id, "dark green", False)]
        assert not session.answer(question.id, "late")
        judge_once(session, "dark green")


def test_a_voice_message_answers_the_question() -> None:
    """What is no text alone is given to the model as it is, sound or picture and the text with it."""
    voice = Audio(b"RIFF", "audio/wav")
    with session_with() as session, session.subscribe() as listener:
        running = RunningTurn(session)
        asked(listener)
        session.post([Text("the blue one"), voice], "steer")
        content = running.end().outcomes[0].content
        assert content == [Text("the blue one"), voice]
        assert data_of(session, "question.answered")[0].value == "the blue one"


def test_a_picture_answers_the_question() -> None:
    """A picture without a word is an answer, too."""
    picture = Image(b"\x89PNG", "image/png")
    with session_with() as session, session.subscribe() as listener:
        running = RunningTurn(session)
        asked(listener)
        session.steer(picture)
        assert running.end().outcomes[0].content == [picture]


def test_two_questions_are_answered_in_their_order() -> None:
    """With two questions open, the first message answers the older one and the next message the other."""
    second = call("clarify", "q2", json.dumps({"question": "Which size?"}))
    with session_with([ASK, second], "ok") as session, session.subscribe() as listener:
        running = RunningTurn(session)
        first = asked(listener)
        asked(listener)
        session.steer("one")
        session.steer("two")
        third = session.queue("three")
        outcomes = running.end().outcomes
        answers = {each.id: each.value for each in data_of(session, "question.answered")}
        assert answers[first.id] == "one"
        assert sorted(str(outcome.content) for outcome in outcomes) == ["one", "two"]
        assert third.state == "accepted"


def test_an_approval_is_not_answered_by_a_message() -> None:
    """Only questions are answered by messages: a text never allows anything."""
    from halter import tool

    @tool(approval=True)
    def delete() -> str:
        return "gone"

    with agent_of(call("delete"), "ok", tools=[delete], approve="ask").session() as session:
        with session.subscribe() as listener:
            running = RunningTurn(session)
            wait_for(listener, "approval.asked")
            receipt = session.queue("yes")
            assert receipt.state == "accepted"
            session.stop()
            assert running.end().outcomes[0].status == "denied"


def test_a_message_for_another_turn_is_no_answer() -> None:
    """A message that expects a turn which is over waits for the next one."""
    with session_with() as session, session.subscribe() as listener:
        running = RunningTurn(session)
        question = asked(listener)
        receipt = session.post("for then", "steer", expect_turn="another")
        assert (receipt.state, receipt.mode) == ("accepted", "queue")
        session.answer(question.id, "Red")
        assert running.end().outcomes[0].content == "Red"
        assert receipt.state == "accepted"


@pytest.mark.parametrize("arguments", [{"question": " "}, {"question": "x", "choices": [str(n) for n in range(21)]}])
def test_a_question_that_cannot_be_asked_is_said(arguments: Any) -> None:
    """An empty question and too many choices are errors, and nobody is asked."""
    with session_with(call("clarify", "q", json.dumps(arguments)), "ok") as session:
        assert session.run("x").outcomes[0].status == "failed"
        assert not data_of(session, "question.asked")


# -- stops ---------------------------------------------------------------------------------------------------------

STOPS: dict[str, Callable[[Session], object]] = {
    "stop": lambda session: session.stop(),
    "interrupt": lambda session: session.interrupt(),
    "interrupt with a text": lambda session: session.interrupt("never mind"),
    "rollback": lambda session: session.post("other", "rollback"),
    "twice": lambda session: (session.interrupt(), session.stop()),
    "call": lambda session: session.cancel_call("q1"),
}


@pytest.mark.parametrize("how", STOPS)
def test_a_stop_withdraws_the_question(how: str) -> None:
    """A stop is never taken for an answer: the question is withdrawn, on record, and a late answer does nothing."""
    with session_with() as session, session.subscribe() as listener:
        running = RunningTurn(session)
        question = asked(listener)
        STOPS[how](session)
        outcome = running.end().outcomes[0]
        assert outcome.status == "cancelled"
        assert [each.withdrawn for each in data_of(session, "question.answered")] == [True]
        assert not session.answer(question.id, "late")
        assert not session._questions._waiting
        assert not session.questions
        judge_session(session)


@pytest.mark.parametrize("reason", ["stop", "steer"])
def test_a_stop_at_rest_asks_nobody(reason: str) -> None:
    """A call that is stopped before it starts asks nobody; outside of a session nobody can be asked."""

    async def main() -> None:
        probe = Probe(*TOOLS, calls=[ASK])
        probe.token.cancel(reason)
        assert [outcome.status for outcome in await probe.run()] == ["not_started"]
        (outcome,) = await Probe(*TOOLS, calls=[ASK]).run()
        assert "nobody can be asked" in outcome.detail

    asyncio.run(main())


@pytest.mark.parametrize("how", ["stop", "interrupt"])
def test_a_stop_as_the_question_is_asked_is_not_lost(how: str) -> None:
    """A stop in the instant in which the question is written withdraws it."""
    store = HookedStore()
    with session_with(store=store) as session:
        store.once("question.asked", lambda: STOPS[how](session))
        outcome = RunningTurn(session).end().outcomes[0]
        assert outcome.status == "cancelled"
        assert [each.withdrawn for each in data_of(session, "question.answered")] == [True]


# -- races ---------------------------------------------------------------------------------------------------------


def test_a_message_as_the_question_is_asked_answers_it() -> None:
    """Whoever writes in the instant in which the question is in the log has answered it."""
    store = HookedStore()
    with session_with(store=store) as session:
        store.once("question.asked", lambda: Background(lambda: session.steer("at once")))
        assert RunningTurn(session).end().outcomes[0].content == "at once"
        judge_once(session, "at once")


def test_a_stop_behind_a_queued_message_leaves_it_in_the_inbox() -> None:
    """A queued message is no answer: a stop that comes behind it withdraws the question, and it waits."""
    store = HookedStore()
    with session_with(ASK, "ok", store=store) as session, session.subscribe() as listener:
        running = RunningTurn(session)
        asked(listener)
        store.once("message.accepted", session.interrupt)
        receipt = session.queue("too late")
        assert running.end().status == "interrupted"
        assert [each.withdrawn for each in data_of(session, "question.answered")] == [True]
        assert receipt.state == "accepted"
        session.run()
        judge_once(session, "too late")


def test_a_stop_behind_the_answer_loses_nothing() -> None:
    """A stop that comes when the answer is written and its tool has not passed it on: the model is told later."""
    store = HookedStore()
    with session_with(ASK, "ok", store=store) as session, session.subscribe() as listener:
        running = RunningTurn(session)
        asked(listener)
        store.once("message.applied", session.interrupt)
        receipt = session.steer("dark green")
        turn = running.end()
        assert receipt.state == "applied"
        assert [each.withdrawn for each in data_of(session, "question.answered")] == [False]
        if turn.outcomes[0].status != "completed":
            session.run("go on")
            judge_once(session, "dark green")


def test_a_crash_behind_the_answer_loses_nothing() -> None:
    """If the program dies when the answer is written and not passed on, the next turn tells the model what it was."""
    store = HookedStore()
    with session_with(store=store) as session, session.subscribe() as listener:
        running = RunningTurn(session)
        asked(listener)
        left: list[Any] = []
        store.once("message.applied", lambda: left.extend(session.events()))
        session.steer("dark green")
        running.end()
    with agent_of("ok", tools=TOOLS).session("s", store_with(left)) as session:
        assert not list(session.inbox)
        session.run("go on")
        judge_once(session, "dark green")


def test_an_answer_that_could_not_be_accepted_leaves_the_question_open() -> None:
    """If the message cannot be written at all whoever posted it is told, and the next try answers."""
    store = HookedStore()
    with session_with(store=store) as session, session.subscribe() as listener:
        running = RunningTurn(session)
        asked(listener)
        store.fill_up("message.accepted")
        with pytest.raises(StoreFull):
            session.post("dark green", "steer", id="m1")
        store.empty()
        session.post("dark green", "steer", id="m1")
        assert running.end().outcomes[0].content == "dark green"
        judge_once(session, "dark green")


def test_an_answer_that_cannot_be_written_is_not_accepted() -> None:
    """A steer that cannot be written as the answer is refused as a whole, and the question stays open."""
    store = HookedStore()
    with session_with(ASK, "ok", "then", store=store) as session, session.subscribe() as listener:
        running = RunningTurn(session)
        question = asked(listener)
        store.fill_up("message.applied")
        with pytest.raises(StoreFull):
            session.post("dark green", "steer", id="m1")
        store.empty()
        assert len(session.inbox) == 0
        assert session.answer(question.id, "Red")
        assert running.end().outcomes[0].content == "Red"
        assert "dark green" not in said(session.history)


@pytest.mark.parametrize("round_", range(30))
def test_an_answer_and_a_stop_at_the_same_time(round_: int) -> None:
    """However a message and a stop race, the message is applied once: as the answer, or in the next turn."""
    with session_with(ASK, "ok", "ok") as session, session.subscribe() as listener:
        running = RunningTurn(session)
        asked(listener)
        meet = threading.Barrier(2)

        def stop() -> None:
            meet.wait(10)
            session.interrupt()

        thread = threading.Thread(target=stop)
        thread.start()
        meet.wait(10)
        receipt = session.post("dark green", "steer", id="m")
        thread.join(10)
        running.end()
        session.run("go on")
        assert receipt.state == "applied"
        answered = data_of(session, "question.answered")
        assert len(answered) == 1
        assert answered[0].withdrawn == (not data_of(session, "message.applied")[1].question)
        judge_once(session, "dark green")


def test_a_question_that_is_over_takes_no_message() -> None:
    """A message that comes when the question was answered is an ordinary one again."""
    gate = Gate()
    with session_with(ASK, [gate, "ok"], "then") as session, session.subscribe() as listener:
        running = RunningTurn(session)
        session.answer(asked(listener).id, "Red")
        gate.wait_reached()
        receipt = session.queue("next")
        assert receipt.state == "accepted"
        gate.open()
        running.end()
        session.run()
        wait_until(lambda: receipt.state == "applied")
        assert said(session.history) == ["begin", "next"]
