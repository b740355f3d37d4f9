"""Delegation: several agents at once, in the foreground and in the background, and what a stop does to them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from halter import Agent, Session, tool
from halter.events import QuestionAsked
from halter.stores import MemoryStore
from halter.testing import DeafTool, Gate, ScriptedModel
from halter.toolbox import delegate as delegate_module
from halter.toolbox.clarify import Clarify
from halter.toolbox.delegate import Delegate
from tests.support.background import RunningTurn
from tests.support.batches import Probe
from tests.support.looped import looped
from tests.support.sessions import agent_of, call, data_of, kinds, model_of, wait_for
from tests.support.stopped_calls import PATIENT, patient
from tests.support.time_limits import call_limited
from tests.support.valid_history import judge_session
from tests.support.waiting import wait_until


def delegate(*tasks: str, call_id: str = "c1", background: bool = False) -> Any:
    """Make a call of delegate: each task is "agent: what"."""
    parts = [dict(zip(("agent", "task"), each.split(": "), strict=True)) for each in tasks]
    return call("delegate", call_id, json.dumps({"tasks": parts, "background": background}))


def subagents(call_id: str = "s1", **arguments: Any) -> Any:
    return call("subagents", call_id, json.dumps(arguments))


def named(name: str, *script: Any, **options: Any) -> Agent:
    return agent_of(*script, name=name, **options)


def states(agent: Agent) -> list[str]:
    assert isinstance(agent.model, ScriptedModel)
    return [seen.state for seen in agent.model.streams]


def session_with(tools: Delegate, *script: Any, store: MemoryStore | None = None) -> Session:
    return agent_of(*script, tools=patient(tools.tools)).session("s", store)


# -- in the foreground ---------------------------------------------------------------------------------------------


def test_several_agents_answer_in_the_order_of_their_tasks() -> None:
    """Each task goes to the agent that it names; the answers come back together, and each end is reported."""
    tools = Delegate([named("poet", "a rose"), named("clerk", "form 12")])
    with session_with(tools, delegate("poet: write", "clerk: file"), "ok") as session:
        turn = session.run("x")
        content = str(turn.outcomes[0].content)
        assert turn.outcomes[0].status == "completed"
        assert content.index("a rose") < content.index("form 12")
        assert "poet (write) is done" in content
        assert "partial answer" not in content
        assert len(data_of(session, "tool.progress")) == 2
        assert kinds(session.events()).count("child.finished") == 2
        judge_session(session, model_of(session).requests)


def test_a_child_that_fails_is_told_as_that() -> None:
    """One child's failure is its own: the answers of the others are there."""
    tools = Delegate({"bad": agent_of(RuntimeError("broken")), "good": agent_of("fine")})
    with session_with(tools, delegate("bad: x", "good: y"), "ok") as session:
        content = str(session.run("x").outcomes[0].content)
        assert "bad (x) failed" in content
        assert "broken" in content
        assert "fine" in content


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tasks": []}, "tasks is empty; available agents: a"),
        ({"tasks": [{"agent": "b", "task": "x"}]}, "no agent named 'b'; available: a. Nothing was started"),
        ({"tasks": [{"agent": "a", "task": " "}]}, "a task is empty"),
        ({"tasks": [{"agent": "a", "task": "x"}] * 3}, "3 more are too many"),
    ],
)
def test_what_cannot_be_done_is_said(arguments: Any, words: str) -> None:
    """A wrong name, an empty task or too many of them begin nothing, and the error says what to do instead."""
    agent = named("a", "never")
    with session_with(Delegate([agent], max_parallel=2), call("delegate", "c", json.dumps(arguments)), "ok") as session:
        outcome = session.run("x").outcomes[0]
        assert outcome.status == "failed"
        assert words in outcome.detail
        assert states(agent) == []


def test_only_so_many_are_begun_in_all() -> None:
    """The limit of a session counts those that have ended, and the error says how many are left."""
    tools = Delegate([named("a", "1", "2")], max_total=2)
    script = [delegate("a: x"), delegate("a: y", call_id="c2"), delegate("a: z", call_id="c3"), "ok"]
    with session_with(tools, *script) as session:
        outcomes = session.run("x").outcomes
        assert [outcome.status for outcome in outcomes] == ["completed", "completed", "failed"]
        assert "0 are left" in outcomes[2].detail


def test_depth_is_limited() -> None:
    """An agent at the deepest place is told to do it itself; limits hold for the whole tree."""
    deep = named("deep")
    tools = Delegate([deep], max_depth=2)
    deep.tools = agent_of(tools=tools.tools).tools
    assert isinstance(deep.model, ScriptedModel)
    deep.model.script(delegate("deep: again"), delegate("deep: once more"), "bottom", "middle")
    with session_with(tools, delegate("deep: go"), "ok") as session:
        assert "middle" in str(session.run("x").outcomes[0].content)
        bottom = deep.model.requests[2].messages[-1]
        assert "the maximum depth of delegation is 2" in bottom.text


# -- stops ---------------------------------------------------------------------------------------------------------


STOPS: dict[str, Callable[[Session], object]] = {
    "stop": lambda session: session.stop(),
    "interrupt": lambda session: session.interrupt(),
    "steer": lambda session: session.steer("enough"),
    "twice": lambda session: (session.steer("enough"), session.stop()),
    "call": lambda session: session.cancel_call("c1"),
}


@pytest.mark.parametrize("how", STOPS)
def test_a_stop_in_the_middle_gives_what_each_has(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a stop those that were done are whole, the others stop and what they had said is marked as not complete."""
    monkeypatch.setattr(delegate_module, "_STOP_WAIT", PATIENT)
    gates = [Gate(), Gate()]
    done, half, mute = named("done", "whole answer"), named("half", ["half of ", gates[0]]), named("mute", [gates[1]])
    with session_with(Delegate([done, half, mute]), delegate("done: a", "half: b", "mute: c"), "ok") as session:
        running = RunningTurn(session)
        for gate in gates:
            gate.wait_reached()
        wait_until(lambda: data_of(session, "child.finished"))
        STOPS[how](session)
        outcome = running.end().outcomes[0]
        content = str(outcome.content)
        assert outcome.status == "partial"
        assert "done (a) is done" in content
        assert "whole answer" in content
        assert "half (b) was stopped" in content
        assert "partial answer]\nhalf of" in content
        assert "mute (c) was stopped" in content
        assert "no answer" in content
        wait_until(lambda: states(half) + states(mute) == ["cancelled"] * 2)
        judge_session(session, model_of(session).requests)


@pytest.mark.parametrize("reason", ["stop", "steer"])
def test_a_stop_at_rest_begins_nobody(reason: str) -> None:
    """A call that is stopped before it starts begins no agent."""
    agent = named("a", "never")

    async def main() -> None:
        probe = Probe(*Delegate([agent]).tools, calls=[delegate("a: x")])
        probe.token.cancel(reason)
        assert [outcome.status for outcome in await probe.run()] == ["not_started"]

    asyncio.run(main())
    assert states(agent) == []


@pytest.mark.parametrize("how", ["stop", "steer"])
def test_a_stop_at_the_start_begins_no_request(how: str) -> None:
    """A stop that comes while the children are being made is not lost on any of them."""
    from tests.support.hooked_store import HookedStore

    store = HookedStore()
    agent = named("a", "never", "never")
    with session_with(Delegate([agent]), delegate("a: x", "a: y"), "ok", store=store) as session:
        store.once("child.started", lambda: STOPS[how](session))
        outcome = RunningTurn(session).end().outcomes[0]
        assert outcome.status in ("partial", "cancelled")
        assert states(agent) == []
        judge_session(session, model_of(session).requests)


@pytest.mark.parametrize("how", ["stop", "steer"])
def test_a_stop_at_the_end_keeps_the_whole_answer(how: str) -> None:
    """A stop that comes when all children are done changes nothing of what they said."""
    from tests.support.hooked_store import HookedStore

    store = HookedStore()
    with session_with(Delegate([named("a", "whole answer")]), delegate("a: x"), "ok", store=store) as session:
        store.once("child.finished", lambda: STOPS[how](session))
        outcome = RunningTurn(session).end().outcomes[0]
        assert outcome.status in ("partial", "completed")
        assert "whole answer" in str(outcome.content)
        assert "partial answer" not in str(outcome.content)


def test_outside_of_a_session_nothing_is_delegated() -> None:
    """Where there is no session, the error says so."""

    async def main() -> None:
        (outcome,) = await Probe(*Delegate([named("a")]).tools, calls=[delegate("a: x")]).run()
        assert outcome.status == "failed"
        assert "outside of a session" in outcome.detail

    asyncio.run(main())


# -- in the background ---------------------------------------------------------------------------------------------


def test_those_in_the_background_survive_the_stop_of_a_turn() -> None:
    """Delegate returns at once with numbers; a stop of the turn is not theirs, and a later turn collects the answer."""
    gates = [Gate(), Gate()]
    agent = named("a", ["half, ", gates[0], "whole"])
    model = [
        delegate("a: dig", background=True),
        [gates[1]],
        [subagents(action="list"), subagents("s2", action="collect", timeout=10.0)],
        "ok",
    ]
    with session_with(Delegate([agent]), *model) as session:
        running = RunningTurn(session)
        gates[1].wait_reached()
        gates[0].wait_reached()
        session.stop()
        turn = running.end()
        assert turn.status == "interrupted"
        assert str(turn.outcomes[0].content) == "[1: a (dig) started]"
        assert states(agent) == ["running"]
        running = RunningTurn(session, "and?")
        wait_until(lambda: "s1" in [each.outcome.call_id for each in data_of(session, "tool.finished")])
        gates[0].open()
        listed, collected = running.end().outcomes
        assert "1: a (dig) has been running for" in str(listed.content)
        assert "is done" in str(collected.content)
        assert str(collected.content).endswith("half, whole")
        assert data_of(session, "child.finished")[0].status == "done"
        judge_session(session, model_of(session).requests)


def test_a_stop_of_everything_reaches_the_background() -> None:
    """session.stop(scope="all") stops them too, also when no turn runs; what they had said can be collected."""
    gate = Gate()
    agent = named("a", ["half, ", gate])
    model = [delegate("a: dig", background=True), "ok", subagents(action="collect", numbers=[1]), "ok"]
    with session_with(Delegate([agent]), *model) as session:
        session.run("x")
        gate.wait_reached()
        session.stop(scope="all")
        wait_until(lambda: data_of(session, "child.finished"))
        assert states(agent) == ["cancelled"]
        content = str(session.run("and?").outcomes[0].content)
        assert "was stopped" in content
        assert "partial answer" in content
        assert content.endswith("half,")


@pytest.mark.parametrize("how", ["stop", "steer"])
def test_a_stop_of_collecting_gives_what_there_is(how: str) -> None:
    """Waiting for a child ends at a stop with what the child has said so far; the child goes on."""
    gate = Gate()
    agent = named("a", ["half, ", gate, "whole"])
    model = [delegate("a: dig", background=True), subagents(action="collect", timeout=60.0), "ok"]
    with session_with(Delegate([agent]), *model) as session:
        running = RunningTurn(session)
        gate.wait_reached()
        wait_until(lambda: len(data_of(session, "tool.started")) == 2)
        STOPS[how](session)
        outcome = running.end().outcomes[1]
        assert outcome.status in ("partial", "cancelled", "not_started")  # it may not have begun to wait yet
        if outcome.status == "partial":
            assert "partial answer]\nhalf," in str(outcome.content)
        assert states(agent) == ["running"]


def test_the_model_can_stop_them() -> None:
    """Subagents with "stop" ends those that it names, and gives what they had said."""
    gate = Gate()
    agent = named("a", ["half, ", gate])
    model = [delegate("a: dig", background=True), [gate_of := Gate(), subagents(action="stop", numbers=[1])], "ok"]
    with session_with(Delegate([agent]), *model) as session:
        running = RunningTurn(session)
        gate.wait_reached()
        gate_of.open()
        content = str(running.end().outcomes[1].content)
        assert "was stopped" in content
        assert content.endswith("half,")
        assert states(agent) == ["cancelled"]


def test_numbers_that_nobody_has_are_said() -> None:
    """A wrong number is an error that names the right ones; with nobody there, that is said."""
    model = [[subagents(action="list"), subagents("s2", action="collect", numbers=[7])], "ok"]
    with session_with(Delegate([named("a")]), *model) as session:
        listed, collected = session.run("x").outcomes
        assert listed.content == "There are no background agents."
        assert "no background agent 7; existing: none" in collected.detail


def test_the_end_of_the_session_ends_them() -> None:
    """Closing the session stops what is in the background, and each of those sessions is sealed and let go."""
    gate = Gate()
    store = MemoryStore()
    agent = named("a", ["half, ", gate])
    session = session_with(Delegate([agent]), delegate("a: dig", background=True), "ok", store=store)
    session.run("x")
    gate.wait_reached()
    name = data_of(session, "child.started")[0].session
    session.close()
    assert states(agent) == ["cancelled"]
    assert store.read(name)[-1].data.reason == "shutdown"  # type: ignore[union-attr]
    wait_until(lambda: _can_open(agent, name, store))


def _can_open(agent: Agent, name: str, store: MemoryStore) -> bool:
    try:
        agent.session(name, store).close()
    except Exception:
        return False
    return True


@pytest.mark.parametrize("background", [False, True])
def test_a_question_of_a_child_is_put_to_the_person(background: bool) -> None:
    """Nobody listens to a child's session: its question is asked in its parent's, also when no turn runs there."""
    child = named("a", call("clarify", "q", '{"question": "Which?"}'), "thanks", tools=patient(Clarify().tools))
    script = [delegate("a: dig", background=background), "ok", subagents(action="collect", timeout=10.0), "ok"]
    with session_with(Delegate([child]), *script) as session, session.subscribe() as listener:
        running = RunningTurn(session)
        if background:
            running.end()
        asked = wait_for(listener, "question.asked").data
        assert isinstance(asked, QuestionAsked)
        assert session.answer(asked.id, "that one")
        content = str((session.run("and?") if background else running.end()).outcomes[0].content)
        assert content.endswith("thanks")
        assert isinstance(child.model, ScriptedModel)
        assert "that one" in str(child.model.requests[1].messages[-1])
        (answered,) = [event.turn for event in session.events() if event.kind == "question.answered"]
        assert bool(answered) is not background  # it belongs to no turn if that has ended


def test_a_stop_withdraws_the_question_of_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop of the parent's turn ends the child's wait for an answer, and the question is withdrawn."""
    monkeypatch.setattr(delegate_module, "_STOP_WAIT", PATIENT)
    child = named("a", call("clarify", "q", '{"question": "Which?"}'), tools=patient(Clarify().tools))
    with session_with(Delegate([child]), delegate("a: dig"), "ok") as session, session.subscribe() as listener:
        running = RunningTurn(session)
        asked = wait_for(listener, "question.asked").data
        assert isinstance(asked, QuestionAsked)
        session.stop()
        assert running.end().outcomes[0].status == "partial"
        assert not session.answer(asked.id, "late")
        assert [each.withdrawn for each in data_of(session, "question.answered")] == [True]


@looped
async def test_those_in_the_background_run_in_the_callers_loop() -> None:
    """With arun() they live in the caller's loop, and go on while it does other things."""
    gate = Gate()
    agent = named("a", [gate, "whole"])
    model = [delegate("a: dig", background=True), "ok", subagents(action="collect", timeout=10.0), "ok"]
    async with session_with(Delegate([agent]), *model) as session:
        await session.arun("x")
        await gate.await_reached()
        gate.open()
        turn = await session.arun("and?")
        assert str(turn.outcomes[0].content).endswith("whole")


@pytest.mark.parametrize("how", ["stop", "steer"])
def test_a_child_in_a_deaf_tool_does_not_hold_up_a_stop(how: str) -> None:
    """A child that does not come back in time is told as being stopped, with what it had said until then."""
    with DeafTool() as deaf:
        slow = named("slow", ["let me see", call("deaf", "d")], tools=[tool(name="deaf")(deaf)])
        with session_with(Delegate([slow]), delegate("slow: x"), "ok") as session:
            running = RunningTurn(session)
            assert deaf.started.wait(10)
            STOPS[how](session)
            outcome = running.end().outcomes[0]
            assert outcome.status == "partial"
            assert "let me see" in str(outcome.content)
            assert "partial answer" in str(outcome.content)
            judge_session(session, model_of(session).requests)


# -- time limits and names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("background", [False, True])
def test_a_child_that_takes_too_long_is_stopped_alone(background: bool) -> None:
    """It comes back with what it has, marked as out of time; its siblings and the turn go on."""
    script: list[Any] = [delegate("slow: x", "quick: y", background=background)]
    if background:
        script.append(subagents(action="collect", timeout=60))

    def run(seconds: float) -> tuple[str, Agent]:
        slow, quick = named("slow", ["some words", Gate()]), named("quick", "done")
        with session_with(Delegate([slow, quick], timeout=seconds), *script, "ok") as session:
            turn = session.run("x")
            assert turn.status == "done"
            return str(turn.outcomes[-1].content), slow

    def has_begun(result: tuple[str, Agent]) -> bool:  # the limit is that of the quick one too
        return "some words" in result[0] and "quick (y) is done" in result[0]

    (content, slow), _ = call_limited(run, has_begun)
    assert re.search(r"slow \(x\) was stopped after \d+\.\d", content)
    assert "because it timed out" in content
    assert "partial answer]\nsome words" in content
    assert states(slow) == ["cancelled"]


def test_the_model_is_told_which_agents_there_are() -> None:
    """Their names, and the first line of their instructions; it had to guess one to be told."""
    tools = Delegate([named("poet", instructions="Write poems.\nShort ones."), named("clerk")])
    [spec, _] = [each.spec for each in tools.tools]
    assert spec.description.endswith("The agents:\n- poet: Write poems.\n- clerk")
