"""Approvals, questions and delegation: answered from anywhere, and over at the stop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from halter import Agent, ToolContext, tool
from halter.events import ChildStarted, QuestionAsked
from halter.stores import MemoryStore
from halter.testing import Gate, ScriptedModel
from halter.tools.events import ApprovalAsked, ToolFinished
from tests.helpers import wait_until
from tests.historyjudge import judge_session
from tests.sessionkit import (
    AT_MOST,
    Background,
    HookedStore,
    RunningTurn,
    agent_of,
    call,
    data_of,
    kinds,
    model_of,
    said,
    session_of,
    wait_for,
)
from tests.tools.looped import looped


@tool(approval=True)
def delete(path: str) -> str:
    """Delete a file."""
    return f"{path} is gone"


DELETE = call("delete", "d", '{"path": "a.txt"}')


# -- approvals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "status"), [(True, "completed"), (False, "denied"), ("rather not", "denied")])
def test_an_approval_is_answered_from_another_thread(answer: Any, status: str) -> None:
    """approval.asked tells what is to be allowed; session.answer() from any thread settles it, once."""
    with session_of(DELETE, "ok", tools=[delete], approve="ask") as session, session.listen() as listener:
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

        store.once("approval.asked", answer)
        assert [outcome.status for outcome in session.run("x").outcomes] == ["completed"]


@pytest.mark.parametrize("how", ["interrupt", "stop", "steer"])
def test_an_approval_is_denied_at_the_stop(how: str) -> None:
    """A stop or a steer withdraws the question at once; the call is not started, and a late yes does nothing."""
    with session_of(DELETE, "ok", tools=[delete], approve="ask") as session, session.listen() as listener:
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

    with session_of(call(kind), "ok", tools=[plain, coroutine]) as session, session.listen() as listener:
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

    @tool
    def plain(ctx: ToolContext) -> str:
        return str(ctx.ask("which?"))

    @tool
    async def coroutine(ctx: ToolContext) -> str:
        return str(await ctx.ask("which?"))

    with session_of(call(kind), "ok", tools=[plain, coroutine]) as session, session.listen() as listener:
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


# -- delegation ----------------------------------------------------------------------------------------------------


def delegating(child: Agent, *, kind: str = "coroutine", **options: Any) -> Any:
    """Make a tool that has *child* do it all."""

    @tool(name="hand_over", **options)
    async def coroutine(ctx: ToolContext) -> str:
        turn = await ctx.delegate(child, "your part")
        return f"{turn.status}: {turn.text}"

    @tool(name="hand_over", **options)
    def plain(ctx: ToolContext) -> str:
        turn = ctx.delegate(child, "your part")
        return f"{turn.status}: {turn.text}"

    return coroutine if kind == "coroutine" else plain


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_another_agent_does_a_part(kind: str) -> None:
    """delegate() runs a turn of another agent in a session of its own, kept in the same store, and gives its turn."""
    store = MemoryStore()
    child = agent_of("child's answer")
    agent = agent_of(call("hand_over"), "ok", tools=[delegating(child, kind=kind)])
    with agent.session("s", store) as session:
        turn = session.run("x")
        assert turn.outcomes[0].content == "done: child's answer"
        started, finished = data_of(session, "child.started")[0], data_of(session, "child.finished")[0]
        assert started.session == finished.session
        assert started.session.startswith("s/")
        assert finished.status == "done"
    with child.session(started.session, store) as childs:  # it was closed, and can be opened
        assert said(childs.history) == ["your part"]


@pytest.mark.parametrize(("how", "status"), [("yes", "completed"), ("no", "denied"), ("stop", "interrupted")])
def test_a_childs_call_is_approved_where_somebody_listens(how: str, status: str) -> None:
    """Nobody listens to a child's session: what it has to ask is asked in its parent's, and withdrawn there."""
    child = agent_of(DELETE, "done", tools=[delete], approve="ask")
    with session_of(call("hand_over"), "ok", tools=[delegating(child)]) as session, session.listen() as listener:
        running = RunningTurn(session)
        asked = wait_for(listener, "approval.asked").data
        assert isinstance(asked, ApprovalAsked)
        assert (asked.request.tool, asked.request.arguments) == ("delete", {"path": "a.txt"})
        if how == "stop":
            session.stop()
        else:
            assert session.answer(asked.request.id, how == "yes")
        turn = running.end()
        assert data_of(session, "approval.answered")[0].granted is (how == "yes")
        if how == "stop":
            assert turn.status == status
            assert not session.answer(asked.request.id, value=True)
            return
        name = data_of(session, "child.started")[0].session
        outcomes = [
            event.data.outcome for event in session._journal.store.read(name) if isinstance(event.data, ToolFinished)
        ]
        assert [outcome.status for outcome in outcomes] == [status]


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
@pytest.mark.parametrize("how", ["interrupt", "steer", "cancel_call"])
def test_a_stopped_child_gives_back_what_it_has(kind: str, how: str) -> None:
    """A stop of the parent stops the child, whose turn comes back with its partial answer in time to be kept."""
    gate = Gate()
    child = agent_of(["half of ", gate])
    with session_of(call("hand_over"), "ok", tools=[delegating(child, kind=kind)]) as session:
        running = RunningTurn(session)
        gate.wait_reached()
        if how == "cancel_call":
            session.cancel_call("c1")
        elif how == "steer":
            session.steer("enough")
        else:
            session.interrupt()
        turn = running.end()
        assert turn.status == ("interrupted" if how == "interrupt" else "done")
        outcome = turn.outcomes[0]
        assert (outcome.status, outcome.content) == ("partial", "interrupted: half of ")
        assert data_of(session, "child.finished")[0].status == "interrupted"
        assert isinstance(child.model, ScriptedModel)
        assert child.model.streams[0].state in ("cancelled", "closed")
        judge_session(session, model_of(session).requests)


def test_a_stop_reaches_a_child_that_is_just_being_made() -> None:
    """A stop that comes between the making of a child and its first step stops it: it asks nobody."""
    store = HookedStore()
    child = agent_of("never")
    agent = agent_of(call("hand_over"), "ok", tools=[delegating(child)])
    with agent.session("s", store) as session:
        store.once("child.started", session.interrupt)
        turn = RunningTurn(session).end()
        assert turn.status == "interrupted"
        started = data_of(session, "child.started")
        assert len(started) == 1
        assert isinstance(started[0], ChildStarted)
        assert isinstance(child.model, ScriptedModel)
        assert child.model.requests == []
        assert store.read(started[0].session)[-1].kind == "turn.finished"


def test_a_stop_reaches_the_child_of_a_child() -> None:
    """A stop goes down to the last agent, and the partial answers come back up through all."""
    gate = Gate()
    grandchild = agent_of(["deep ", gate])
    child = agent_of(call("hand_over"), tools=[delegating(grandchild)])
    with session_of(call("hand_over"), tools=[delegating(child, grace=5)]) as session:
        running = RunningTurn(session)
        gate.wait_reached()
        session.interrupt()
        turn = running.end()
        assert turn.status == "interrupted"
        assert isinstance(grandchild.model, ScriptedModel)
        assert grandchild.model.streams[0].state in ("cancelled", "closed")
        assert turn.outcomes[0].status == "partial"
        assert str(turn.outcomes[0].content).startswith("interrupted")


def test_a_childs_end_does_not_end_its_parent() -> None:
    """A child that fails is a result like others: the parent reads it and goes on."""
    child = agent_of(RuntimeError("broken"))
    with session_of(call("hand_over"), "ok", tools=[delegating(child)]) as session:
        turn = session.run("x")
        assert (turn.status, turn.text) == ("done", "ok")
        assert turn.outcomes[0].content == "failed: "
        assert data_of(session, "child.finished")[0].status == "failed"


@looped
async def test_children_side_by_side_are_all_stopped() -> None:
    """Several children at once are all stopped with their parent, each with what it has."""
    gates = [Gate() for _ in range(4)]
    children = [agent_of([f"part {number} ", gate]) for number, gate in enumerate(gates)]

    @tool
    async def hand_over(which: int, ctx: ToolContext) -> str:
        turn = await ctx.delegate(children[which], "your part")
        return str(turn.text)

    calls = [call("hand_over", f"c{number}", f'{{"which": {number}}}') for number in range(4)]
    async with session_of(calls, tools=[hand_over]) as session:
        task = asyncio.create_task(session.arun("x"))
        for gate in gates:
            await gate.await_reached()
        session.interrupt()
        turn = await task
        assert [outcome.content for outcome in turn.outcomes] == [f"part {number} " for number in range(4)]
        assert kinds(session.events()).count("child.finished") == 4


@looped
async def test_a_foreign_cancellation_reaches_the_children() -> None:
    """wait_for() around the parent stops the child too, and both turns are sealed when it raises."""
    gate = Gate()
    store = MemoryStore()
    child = agent_of(["half ", gate])
    async with agent_of(call("hand_over"), tools=[delegating(child)]).session("s", store) as session:
        task = asyncio.create_task(session.arun("x"))
        await gate.await_reached()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        name = data_of(session, "child.started")[0].session
        await asyncio.to_thread(wait_until, lambda: store.read(name)[-1].kind == "turn.finished")
        assert isinstance(child.model, ScriptedModel)
        assert child.model.streams[0].state in ("cancelled", "closed")


def test_a_background_thread_of_a_tool_can_not_delegate_after_the_stop() -> None:
    """A tool that was left behind, and delegates only then, starts no agent."""
    child = agent_of("never")
    contexts: list[ToolContext] = []
    go = threading.Event()

    @tool
    def deaf(ctx: ToolContext) -> str:
        contexts.append(ctx)
        go.wait(AT_MOST)
        return "x"

    with session_of(call("deaf"), tools=[deaf]) as session:
        running = RunningTurn(session)
        wait_until(lambda: contexts)
        session.interrupt()
        assert running.end().outcomes[0].status == "abandoned"
        late = Background(lambda: contexts[0].delegate(child, "x"))
        with pytest.raises(BaseException, match="interrupt"):
            late.result()
        go.set()
        assert isinstance(child.model, ScriptedModel)
        assert child.model.requests == []
