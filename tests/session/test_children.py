"""Delegation: another agent at work on a part, and stopped with its parent."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, ClassVar

import pytest

from halter import Agent, Session, ToolContext, tool
from halter.cancel import abandoned
from halter.events import ChildStarted
from halter.events.tools import ApprovalAsked, ToolFinished
from halter.models import Finished, Usage
from halter.stores import MemoryStore
from halter.testing import Gate, ScriptedModel
from tests.support.background import Background, RunningTurn
from tests.support.hooked_store import HookedStore
from tests.support.looped import looped
from tests.support.sessions import AT_MOST, agent_of, call, data_of, kinds, model_of, said, session_of, wait_for
from tests.support.valid_history import judge_session
from tests.support.waiting import wait_until


@tool(approval=True)
def delete(path: str) -> str:
    """Delete a file."""
    return f"{path} is gone"


DELETE = call("delete", "d", '{"path": "a.txt"}')


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


def test_the_parents_log_has_the_calls_of_a_child() -> None:
    """Whoever watches the parent sees what its child works on, call by call."""
    child = agent_of(DELETE, "done", tools=[delete], approve="auto")
    agent = agent_of(call("hand_over"), "ok", tools=[delegating(child)])
    with agent.session(None, MemoryStore()) as session:
        session.run("x")
        started = data_of(session, "child.started")[0]
        kinds_of_children = [kind for kind in kinds(session.events()) if kind.startswith("child.")]
        [progress] = data_of(session, "child.progress")
    assert kinds_of_children == ["child.started", "child.progress", "child.finished"]
    assert (progress.session, progress.tool) == (started.session, "delete")


@pytest.mark.parametrize(("how", "status"), [("yes", "completed"), ("no", "denied"), ("stop", "interrupted")])
def test_a_childs_call_is_approved_where_somebody_listens(how: str, status: str) -> None:
    """Nobody listens to a child's session: what it has to ask is asked in its parent's, and withdrawn there."""
    child = agent_of(DELETE, "done", tools=[delete], approve="ask")
    store = MemoryStore()
    agent = agent_of(call("hand_over"), "ok", tools=[delegating(child, grace=AT_MOST)])
    with agent.session(None, store) as session, session.subscribe() as listener:
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
        outcomes = [event.data.outcome for event in store.read(name) if isinstance(event.data, ToolFinished)]
        assert [outcome.status for outcome in outcomes] == [status]


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
@pytest.mark.parametrize("how", ["interrupt", "steer", "cancel_call"])
def test_a_stopped_child_gives_back_what_it_has(kind: str, how: str) -> None:
    """A stop of the parent stops the child, whose turn comes back with its partial answer in time to be kept."""
    gate = Gate()
    child = agent_of(["half of ", gate])
    with session_of(call("hand_over"), "ok", tools=[delegating(child, kind=kind, grace=AT_MOST)]) as session:
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
    agent = agent_of(call("hand_over"), "ok", tools=[delegating(child, grace=AT_MOST)])
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
    child = agent_of(call("hand_over"), tools=[delegating(grandchild, grace=10)])
    with session_of(call("hand_over"), tools=[delegating(child, grace=AT_MOST)]) as session:
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

    @tool(grace=AT_MOST)
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


def test_a_background_thread_of_a_tool_cannot_delegate_after_the_stop() -> None:
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


class Kept:
    """What a child's tool keeps. Its close() needs the parent's loop, so a loop that waits for it would hang."""

    closed: ClassVar[list[int]] = []
    loop: asyncio.AbstractEventLoop

    def close(self) -> None:
        answered = threading.Event()
        self.loop.call_soon_threadsafe(answered.set)
        assert answered.wait(AT_MOST), "the loop is stalled"
        self.closed.append(id(self))


@looped
async def test_a_delegated_child_is_closed_with_time() -> None:
    """What a child's tools kept is closed before its parent goes on; no thread is left, and the loop runs meanwhile."""
    wait_until(lambda: len(abandoned) == 0)  # nothing of earlier tests
    Kept.loop = asyncio.get_running_loop()
    Kept.closed.clear()

    @tool
    async def keep_five(ctx: ToolContext) -> str:
        for number in range(5):
            ctx.keep(Kept, number)
        return "kept"

    child = agent_of(call("keep_five"), "child's answer", tools=[keep_five])
    async with session_of(call("hand_over"), "ok", tools=[delegating(child)]) as session:
        turn = await session.arun("x")
        assert turn.outcomes[0].content == "done: child's answer"
        assert len(Kept.closed) == 5
        assert len(abandoned) == 0


@looped
async def test_a_stopped_child_whose_tools_close_slowly_gives_back_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Was a defect: a stop lost the answer of a child whose browser closed slowly, and called the work abandoned."""
    monkeypatch.setattr(Session.aclose, "__defaults__", (10 * AT_MOST,))  # longer than the grace of the call
    gate, may_close = Gate(), threading.Event()

    class Slow:
        def close(self) -> None:
            may_close.wait(AT_MOST)

    @tool
    async def keep_it(ctx: ToolContext) -> str:
        ctx.keep(Slow)
        return "kept"

    child = agent_of(call("keep_it"), ["half of ", gate], tools=[keep_it])
    async with session_of(call("hand_over"), "ok", tools=[delegating(child, grace=10.0)]) as session:
        running = asyncio.create_task(session.arun("x"))
        await gate.await_reached()
        session.interrupt()
        turn = await running
        assert not may_close.is_set()
        outcome = turn.outcomes[0]
        assert (outcome.status, outcome.content) == ("partial", "interrupted: half of ")
        may_close.set()


def test_usage_of_children_counts() -> None:
    """What a turn's children have used, and theirs, is in the turn's usage, here and in the log."""
    grandchild = agent_of(["deep", Usage(100, 10), Finished("stop")])
    child = agent_of(
        [call("hand_over"), Usage(1000, 100), Finished("tool_calls")],
        ["done", Usage(2000, 200), Finished("stop")],
        tools=[delegating(grandchild)],
    )
    with session_of(
        [call("hand_over"), Usage(10, 1), Finished("tool_calls")],
        ["ok", Usage(20, 2), Finished("stop")],
        tools=[delegating(child)],
    ) as session:
        turn = session.run("x")
        assert (turn.usage.input_tokens, turn.usage.output_tokens) == (3130, 313)
        assert data_of(session, "turn.finished")[0].usage == turn.usage
        used = data_of(session, "child.finished")[0].usage
        assert (used.input_tokens, used.output_tokens) == (3100, 310)


def test_tools_find_what_the_session_was_given() -> None:
    """`agent.session(deps=…)` is `ctx.deps` in tools, and in those of an agent that does a part."""
    seen: list[Any] = []

    @tool
    def look(ctx: ToolContext) -> str:
        seen.append(ctx.deps)
        return "ok"

    child = agent_of(call("look"), "child's answer", tools=[look])
    agent = agent_of([call("look", "c1"), call("hand_over", "c2")], "ok", tools=[look, delegating(child)])
    database = object()
    with agent.session(deps=database) as session:
        assert session.run("x").status == "done"
    assert seen == [database, database]
