"""Turns, as callers see them when they have ended."""

from __future__ import annotations

import pytest

from halter import HalterError, ToolContext, TurnFailed, TurnInterrupted, tool
from halter.models import Finished, Usage
from halter.models.errors import ProviderError
from halter.stores import MemoryStore
from halter.testing import Gate
from tests.support.sessions import agent_of, call, session_of


def test_a_turn_that_is_done_raises_nothing() -> None:
    """`session.run(text).raise_for_error().text` reads as one line."""
    with session_of("fine") as session:
        assert session.run("x").raise_for_error().text == "fine"


def test_a_turn_that_was_stopped_raises_who_asks_for_it() -> None:
    """The error says why, and has the turn with what came until then."""
    gate = Gate()
    with session_of(["half ", gate]) as session:
        for event in session.stream_sync("x"):
            if event.kind == "text.delta":
                session.stop(detail="enough")
        turn = session.turn
        assert turn is not None
        with pytest.raises(TurnInterrupted, match=r"stopped \(stop: enough\)") as caught:
            turn.raise_for_error()
        assert isinstance(caught.value, HalterError)
        assert caught.value.turn.text == "half "


def test_a_turn_that_failed_raises_its_cause() -> None:
    """The error of the provider is the cause. After a restart it is what the log has of it."""
    store = MemoryStore()
    agent = agent_of(ProviderError("no", status=400))
    with agent.session("a", store) as session:
        turn = session.run("x")
        with pytest.raises(TurnFailed) as caught:
            turn.raise_for_error()
        assert isinstance(caught.value.__cause__, ProviderError)
    with agent.session("a", store) as session:
        assert session.turn is not None
        with pytest.raises(TurnFailed, match="no"):
            session.turn.raise_for_error()


def test_a_running_turn_has_no_error_yet() -> None:
    """Asking too early is a mistake of the program, and is said."""
    gate = Gate()
    with session_of(["half ", gate]) as session:
        for event in session.stream_sync("x"):
            if event.kind == "text.delta":
                assert session.turn is not None
                with pytest.raises(RuntimeError, match="still running"):
                    session.turn.raise_for_error()
                session.stop()


def test_a_session_knows_what_it_has_used() -> None:
    """Turns that were rolled back and sub-agents count: their tokens were paid for. A restart does not forget them."""
    store = MemoryStore()
    child = agent_of(["child", Usage(input_tokens=3, output_tokens=4), Finished("stop")])

    @tool
    async def hand_over(ctx: ToolContext) -> str:
        return str((await ctx.delegate(child, "your part")).text)

    agent = agent_of(
        [call("hand_over"), Usage(input_tokens=10, output_tokens=1), Finished("tool_calls")],
        ["ok", Usage(input_tokens=20, output_tokens=2), Finished("stop")],
        ["again", Usage(input_tokens=100), Finished("stop")],
        tools=[hand_over],
    )
    with agent.session("a", store) as session:
        assert session.run("x").usage == session.usage == Usage(input_tokens=33, output_tokens=7)
        session.run("y")
        session.rollback()
        assert session.usage == Usage(input_tokens=133, output_tokens=7)
    with agent.session("a", store) as session:
        assert session.usage == Usage(input_tokens=133, output_tokens=7)
