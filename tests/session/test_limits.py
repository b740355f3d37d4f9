"""Settings that go with each request, and limits of a turn: each ends it with a reason of its own."""

from __future__ import annotations

import contextlib

import pytest

from halter import Agent, Limits, ModelSettings, Session, ToolContext, Turn, tool
from halter.models import Finished, Usage
from halter.testing import Gate, ScriptedModel
from tests.support.sessions import agent_of, call, model_of, session_of
from tests.support.time_limits import call_limited
from tests.support.valid_history import judge_session


@tool
def look() -> str:
    """Look."""
    return "seen"


def test_settings_go_with_every_request() -> None:
    """An agent's temperature is sent with the first request of a turn and with the one after its calls."""
    settings = ModelSettings(temperature=0.2, seed=7)
    with session_of(call("look"), "ok", tools=[look], settings=settings) as session:
        assert session.run("x").status == "done"
        assert [request.settings for request in model_of(session).requests] == [settings, settings]


def test_a_turn_ends_at_its_deadline() -> None:
    """`seconds` is the deadline of the turn's token: what came until then is kept, and run() continues it."""
    with contextlib.ExitStack() as stack:

        def attempt(seconds: float) -> tuple[Session, Turn]:
            limited = session_of(["half ", Gate()], "the rest", limits=Limits(seconds=seconds))
            return limited, stack.enter_context(limited).run("x")

        (session, turn), _ = call_limited(attempt, lambda tried: tried[1].text)
        assert (turn.status, turn.reason, turn.text) == ("interrupted", "timeout", "half ")
        session.agent.limits = Limits()  # the next turn may take its time
        assert session.run().text == "the rest"
        judge_session(session)


def test_a_deadline_stops_what_the_turn_runs() -> None:
    """A tool sees the deadline in its token, and a sub-agent is stopped with the turn."""
    deadlines: list[float | None] = []

    @tool
    async def hand_over(ctx: ToolContext) -> str:
        deadlines.append(ctx.token.deadline)
        turn = await ctx.delegate(agent_of(["child ", Gate()]), "your part")
        return f"{turn.status} ({turn.reason}): {turn.text}"

    with contextlib.ExitStack() as stack:

        def attempt(seconds: float) -> tuple[Session, Turn]:
            limited = session_of(call("hand_over"), tools=[hand_over], limits=Limits(seconds=seconds))
            return limited, stack.enter_context(limited).run("x")

        (session, turn), _ = call_limited(attempt, lambda _: deadlines)
        assert (turn.status, turn.reason) == ("interrupted", "timeout")
        assert deadlines[0] is not None
        judge_session(session)


def test_a_turn_ends_when_its_tokens_are_used() -> None:
    """The calls of the answer that went over the limit are run, then the turn fails before the next request."""
    answer = [call("look"), Usage(input_tokens=90, output_tokens=20), Finished("tool_calls")]
    with session_of(answer, "ok", tools=[look], limits=Limits(tokens=100)) as session:
        turn = session.run("x")
        assert (turn.status, turn.reason) == ("failed", "token_limit")
        assert "110 of 100 tokens" in str(turn.error)
        assert [outcome.status for outcome in turn.outcomes] == ["completed"]
        assert session.run().text == "ok"  # a turn of its own, with a limit of its own
        judge_session(session)


def test_an_answer_over_the_limit_is_still_an_answer() -> None:
    """A limit that is reached by the last request ends nothing: the turn is done."""
    answer = ["ok", Usage(input_tokens=90, output_tokens=20), Finished("stop")]
    with session_of(answer, limits=Limits(tokens=100)) as session:
        assert session.run("x").status == "done"


def test_the_tokens_of_sub_agents_count() -> None:
    """What a delegated agent used is part of the turn that delegated."""
    child = agent_of(["child", Usage(input_tokens=90, output_tokens=20), Finished("stop")])

    @tool
    async def hand_over(ctx: ToolContext) -> str:
        return str((await ctx.delegate(child, "your part")).text)

    with session_of(call("hand_over"), "ok", tools=[hand_over], limits=Limits(tokens=100)) as session:
        turn = session.run("x")
        assert (turn.status, turn.reason) == ("failed", "token_limit")


def test_limits_that_cannot_be_meant_are_refused() -> None:
    """Nothing can be done in no steps, no tokens or less than no time."""
    with pytest.raises(ValueError, match="steps must be at least 1"):
        Agent(ScriptedModel("x"), max_steps=0)
    with pytest.raises(ValueError, match="tokens must be at least 1"):
        Limits(tokens=0)
    with pytest.raises(ValueError, match="seconds must be zero or more"):
        Limits(seconds=-1)
