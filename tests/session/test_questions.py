"""Approvals and questions: answered from anywhere, and withdrawn at the stop."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from halter import Session, ToolContext, tool
from halter.events import QuestionAsked
from halter.events.tools import ApprovalAsked
from halter.stores import SQLiteStore, Store
from halter.testing import Gate
from halter.toolbox.sandbox.sandbox import Sandbox, why_unavailable
from halter.toolbox.terminal.terminal import Terminal
from tests.support.background import Background, RunningTurn
from tests.support.hooked_store import HookedStore
from tests.support.looped import looped
from tests.support.sessions import (
    AT_MOST,
    agent_of,
    call,
    data_of,
    model_of,
    next_event,
    said,
    session_of,
    wait_for,
)
from tests.support.valid_history import judge_session


@tool(approval=True)
def delete(path: str) -> str:
    """Delete a file."""
    return f"{path} is gone"


DELETE = call("delete", "d", '{"path": "a.txt"}')


# -- approvals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "status"), [(True, "completed"), (False, "denied"), ("rather not", "denied")])
def test_an_approval_is_answered_from_another_thread(answer: Any, status: str) -> None:
    """approval.asked tells what is to be allowed; session.answer() from any thread settles it, once."""
    with session_of(DELETE, "ok", tools=[delete], approve="ask") as session, session.subscribe() as listener:
        running = RunningTurn(session)
        asked = wait_for(listener, "approval.asked").data
        assert isinstance(asked, ApprovalAsked)
        assert (asked.request.tool, asked.request.arguments) == ("delete", {"path": "a.txt"})
        assert session.answer(asked.request.id, answer)
        assert not session.answer(asked.request.id, value=True)
        turn = running.end()
        assert [outcome.status for outcome in turn.outcomes] == [status]
        assert data_of(session, "approval.answered")[0].granted is (status == "completed")
        judge_session(session, model_of(session).requests)


def test_an_approval_that_is_answered_at_once_is_not_lost() -> None:
    """Whoever answers in the instant in which the question is in the log has answered it."""
    store = HookedStore()
    with agent_of(DELETE, "ok", tools=[delete], approve="ask").session(store=store) as session:

        def answer() -> None:
            assert session.answer(data_of(session, "approval.asked")[0].request.id, value=True)

        store.once("approval.asked", lambda: Background(answer))
        assert [outcome.status for outcome in session.run("x").outcomes] == ["completed"]


def approval_in(listener: Any) -> str:
    """The id of the next approval that is asked for."""
    asked = wait_for(listener, "approval.asked").data
    assert isinstance(asked, ApprovalAsked)
    return asked.request.id


def answered_with(*answers: Any, tools: Any = None, calls: Any = (DELETE, DELETE), **options: Any) -> list[str]:
    """Run a turn with these calls, answer what is asked in this order, and return the statuses of the calls."""
    agent = agent_of(*calls, "ok", tools=[delete] if tools is None else tools, **({"approve": "ask"} | options))
    with agent.session() as session, session.subscribe() as listener:
        running = RunningTurn(session)
        for answer in answers:
            assert session.answer(approval_in(listener), answer)
        return [outcome.status for outcome in running.end().outcomes]


@pytest.mark.parametrize("answer", ["session", "always"])
def test_an_answer_for_the_session_holds(answer: str) -> None:
    """The second call of the tool is not asked about; a plain yes holds for one call."""
    assert answered_with(answer) == ["completed", "completed"]
    assert answered_with("yes", {"deny": "once is enough"}) == ["completed", "denied"]


def test_a_denial_says_why() -> None:
    """The model reads the reason, whatever its words."""
    with session_of(DELETE, "ok", tools=[delete], approve="ask") as session, session.subscribe() as listener:
        running = RunningTurn(session)
        assert session.answer(approval_in(listener), {"deny": "yes, but not now"})
        running.end()
        assert "the answer was no: yes, but not now" in str(model_of(session).requests[-1].messages)


def test_what_was_allowed_for_the_session_survives_a_restart(tmp_path: Path) -> None:
    """It is in the log; another session knows nothing of it."""
    with SQLiteStore(tmp_path / "s.db") as store:
        first = agent_of(DELETE, "ok", tools=[delete], approve="ask")
        with first.session("one", store) as session, session.subscribe() as listener:
            running = RunningTurn(session)
            session.answer(approval_in(listener), "session", by="Ann")
            running.end()
            assert data_of(session, "approval.answered")[0].scope == "session"
        with agent_of(DELETE, "ok", tools=[delete], approve="deny").session("one", store) as session:
            assert [each.status for each in session.run("x").outcomes] == ["completed"]
            assert data_of(session, "approval.answered")[-1].note == "it was allowed for this session"
        with agent_of(DELETE, "ok", tools=[delete], approve="deny").session("two", store) as session:
            assert [each.status for each in session.run("x").outcomes] == ["denied"]


def _command(text: str) -> Any:
    return call("terminal", text, json.dumps({"command": text}))


def test_a_prefix_that_was_allowed_covers_what_begins_with_it(tmp_path: Path) -> None:
    """Also in another command; neither what begins otherwise nor what is destructive."""
    calls = [_command(each) for each in ("mkdir a", "mkdir b && ls", "mkdir c; touch d", "ls a")]
    statuses = answered_with("session", "no", tools=Terminal(tmp_path).tools, calls=calls)
    assert statuses == ["completed", "completed", "denied", "completed"]
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(("mode", "asked"), [("ask", ["no"]), ("auto", ["no"]), ("deny", []), (None, [])])
def test_without_a_sandbox_no_mode_runs_a_command_unasked(tmp_path: Path, mode: Any, asked: list[str]) -> None:
    """Not even "auto": nothing keeps the command from leaving the workspace. What only reads runs."""
    calls = [_command("touch a"), _command("ls")]
    statuses = answered_with(*asked, tools=Terminal(tmp_path).tools, calls=calls, approve=mode)
    assert statuses == ["denied", "completed"]
    assert not (tmp_path / "a").exists()


@pytest.mark.skipif(bool(why_unavailable()), reason="this system has no sandbox")
@pytest.mark.parametrize(
    ("mode", "asked", "statuses"),
    [
        ("ask", ["no", "no"], ["denied", "denied"]),
        ("auto", [], ["completed", "completed"]),
        ("deny", [], ["denied", "denied"]),
        (None, [], ["completed", "denied"]),
    ],
)
def test_modes_in_a_sandbox(tmp_path: Path, mode: Any, asked: list[str], statuses: list[str]) -> None:
    """The mode "auto" runs what stays in the sandbox. Without a policy the same runs, unless it is destructive."""
    tools = Terminal(tmp_path, sandbox=Sandbox(tmp_path)).tools
    calls = [_command("touch a"), _command("rm -rf a")]
    assert answered_with(*asked, tools=tools, calls=calls, approve=mode) == statuses


@pytest.mark.parametrize("how", ["interrupt", "stop", "steer"])
def test_an_approval_is_denied_at_the_stop(how: str) -> None:
    """A stop or a steer withdraws the question at once; the call is not started, and a late yes does nothing."""
    with session_of(DELETE, "ok", tools=[delete], approve="ask") as session, session.subscribe() as listener:
        running = RunningTurn(session)
        asked = wait_for(listener, "approval.asked").data
        assert isinstance(asked, ApprovalAsked)
        if how == "steer":
            session.steer("do not")
        else:
            getattr(session, how)()
        turn = running.end()
        assert [outcome.status for outcome in turn.outcomes] == ["denied"]
        assert turn.outcomes[0].reason == how
        assert not session.answer(asked.request.id, value=True)
        judge_session(session, model_of(session).requests)


def test_answers_to_nobody_say_so() -> None:
    """answer() with an id that nobody asked with gives False."""
    with session_of() as session:
        assert not session.answer("nobody", value=True)


# -- questions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_a_tool_asks_and_is_answered(kind: str) -> None:
    """ctx.ask() puts a question.asked on record with its choices, and gives the answer to plain and async tools."""

    @tool
    def plain(ctx: ToolContext) -> str:
        return f"chose {ctx.ask('which?', ['red', 'blue'])}"

    @tool
    async def coroutine(ctx: ToolContext) -> str:
        return f"chose {await ctx.ask('which?', ['red', 'blue'])}"

    with session_of(call(kind), "ok", tools=[plain, coroutine]) as session, session.subscribe() as listener:
        running = RunningTurn(session)
        asked = wait_for(listener, "question.asked")
        assert isinstance(asked.data, QuestionAsked)
        assert (asked.data.question, asked.data.choices) == ("which?", ["red", "blue"])
        assert session.answer(asked.data.id, "blue")
        turn = running.end()
        assert turn.outcomes[0].content == "chose blue"
        assert data_of(session, "question.answered")[0].value == "blue"
        assert asked.turn == turn.id


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_a_question_is_withdrawn_at_the_stop(kind: str) -> None:
    """A stop does not wait for the person: the question is withdrawn, and that is on record."""

    @tool(grace=AT_MOST)
    def plain(ctx: ToolContext) -> str:
        return str(ctx.ask("which?"))

    @tool(grace=AT_MOST)
    async def coroutine(ctx: ToolContext) -> str:
        return str(await ctx.ask("which?"))

    with session_of(call(kind), "ok", tools=[plain, coroutine]) as session, session.subscribe() as listener:
        running = RunningTurn(session)
        asked = wait_for(listener, "question.asked").data
        assert isinstance(asked, QuestionAsked)
        session.interrupt()
        turn = running.end()
        assert turn.outcomes[0].status == "cancelled"
        assert not session.answer(asked.id, "late")
        answered = data_of(session, "question.answered")
        assert [each.withdrawn for each in answered] == [True]
        judge_session(session)


@tool
async def asks(ctx: ToolContext) -> str:
    """Ask."""
    return f"the user wants {await ctx.ask('Which?')}"


def is_told(session: Session, answer: str) -> bool:
    """Whether the model is told of an answer: in the result of the call, or in the user's next message."""
    return any(answer in message.text for message in session.history)


def test_an_answer_that_an_interrupt_follows_at_once_is_not_lost(store: Store) -> None:
    """answer() said True, and an interrupt came in the same moment: the answer is in the log, and the model is told."""
    for number in range(15):
        agent = agent_of(call("asks"), "ok", "ok", tools=[asks])
        with agent.session(f"s{number}", store) as session, session.subscribe(only=[QuestionAsked]) as listener:
            running = RunningTurn(session)
            asked: Any = wait_for(listener, "question.asked").data
            assert session.answer(asked.id, "file-a")
            session.interrupt("and hurry")
            running.end()
            assert session.run().status == "done"
            assert [each.value for each in data_of(session, "question.answered")] == ["file-a"]
            assert is_told(session, "file-a")
            assert said(session.history)[-1].endswith("and hurry")
            judge_session(session, model_of(session).requests)


@pytest.mark.parametrize("how", ["interrupt", "stop", "steer"])
def test_an_answer_against_a_stop(store: Store, how: str) -> None:
    """Of an answer and a stop in two threads one comes first. If answer() said True it is in the log and told."""
    wins = 0
    for number in range(15):
        agent = agent_of(call("asks"), "ok", "ok", tools=[asks])
        with agent.session(f"s{number}", store) as session, session.subscribe(only=[QuestionAsked]) as listener:
            running = RunningTurn(session)
            asked: Any = wait_for(listener, "question.asked").data
            together = threading.Barrier(2 if number else 1)  # in the first round, the answer comes first

            def answer(together: threading.Barrier = together, session: Session = session, asked: Any = asked) -> bool:
                together.wait(AT_MOST)
                return session.answer(asked.id, "file-a")

            def stop(together: threading.Barrier = together, session: Session = session) -> None:
                if number:
                    together.wait(AT_MOST)
                if how == "stop":
                    session.stop()
                else:
                    session.post("otherwise", how)  # type: ignore[arg-type]

            answering = Background(answer)
            if not number:
                assert answering.result()
            stopping = Background(stop)
            accepted = answering.result()
            stopping.result()
            running.end()
            if how != "steer":
                session.run("and now?")
            (answered,) = data_of(session, "question.answered")
            assert accepted == (answered.value == "file-a")
            assert is_told(session, "file-a") == accepted
            wins += accepted
            judge_session(session, model_of(session).requests)
    assert wins


@looped
async def test_a_steer_does_not_answer_a_question_of_an_earlier_turn() -> None:
    """Was a defect: a correction of the running turn was taken as the answer to a child of an earlier turn."""
    gate = Gate()
    child = agent_of(call("asks"), "child done", tools=[asks])

    @tool
    async def start(ctx: ToolContext) -> str:
        await ctx.begin(child, "work", lasts=True)
        return "started"

    script = [call("start"), "ok", ["The capital is ", gate], "Lyon it is"]
    async with session_of(*script, tools=[start]) as session:
        listener = session.subscribe()
        await session.arun("one")
        await next_event(listener, "question.asked")
        running = asyncio.create_task(session.arun("two"))
        await gate.await_reached()
        receipt = await session.apost("No, about Lyon.", "steer")
        assert "answered" not in receipt.note
        assert (await running).text.endswith("Lyon it is")
        assert len(session.questions) == 1
