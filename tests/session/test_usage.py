"""Usage and cost of turns and sessions: complete, stopped, crashed, with children; and the limit of the cost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from halter import Agent, CancellationToken, Limits, Session, ToolContext, tool
from halter.errors import LimitReached, UnknownPrice
from halter.models import Finished, Price, Usage
from halter.stores import MemoryStore, SQLiteStore
from halter.testing import (
    FakeProvider,
    Gate,
    ScriptedModel,
    hang_before_first_byte,
    hang_mid_stream,
    interrupt_everywhere,
)
from halter.toolbox import Delegate
from tests.support.background import RunningTurn
from tests.support.hooked_store import store_with
from tests.support.priced_models import PublicModel, not_installed, slow_import
from tests.support.sessions import agent_of, call, data_of, model_of, session_of, wait_for
from tests.support.valid_history import judge_session
from tests.support.waiting import wait_until
from tests.support.wires import WIRES, model_for

PRICES = {"scripted": Price(1.0, 10.0), "m": Price(1.0, 10.0)}


@tool
def look() -> str:
    """Look."""
    return "seen"


def used(text: str = "ok", *, tokens: int = 1_000) -> list[Any]:
    """An answer that costs a dollar for a million times *tokens*."""
    return [text, Usage(tokens, 0), Finished("stop")]


def calling(name: str, *, tokens: int = 1_000) -> list[Any]:
    return [call(name), Usage(tokens, 0), Finished("tool_calls")]


def priced(*script: Any, **options: Any) -> Session:
    return session_of(*script, prices=PRICES, **options)


def delegating(child: Agent) -> Any:
    @tool
    async def hand_over(ctx: ToolContext) -> str:
        return str((await ctx.delegate(child, "your part")).text)

    return hand_over


def test_a_turn_has_its_cost() -> None:
    """The requests of a turn are added up, in the turn, its event and the session, in memory and after a reload."""
    store = MemoryStore()
    agent = agent_of(calling("look"), used(), used(), tools=[look], prices=PRICES)
    with agent.session("s", store) as session:
        turn = session.run("x")
        assert turn.usage == Usage(2_000, cost=pytest.approx(0.002))  # type: ignore[arg-type]
        assert data_of(session, "turn.finished")[0].usage == turn.usage
        session.run("y")
        total = session.usage
        assert total == Usage(3_000, cost=pytest.approx(0.003))  # type: ignore[arg-type]
    with agent.session("s", store) as session:
        assert session.usage == total
        assert session.turn is not None
        assert session.turn.usage.cost == pytest.approx(0.001)


def test_without_a_price_the_cost_is_not_known() -> None:
    """One turn of a model without a price makes the sum unknown, and not smaller."""
    with session_of(used()) as session:
        assert session.usage.cost == 0.0
        assert session.run("x").usage == Usage(1_000)
        assert session.usage.cost is None


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("reply", [hang_before_first_byte(), hang_mid_stream(3)], ids=["silent", "midway"])
def test_a_stopped_turn_has_an_estimate(wire: str, reply: Any) -> None:
    """What came until the stop is counted and priced, and marked as an estimate; in the log too."""
    with FakeProvider(reply) as provider:
        agent = Agent(model_for(wire, provider), instructions="x" * 400, prices=PRICES)
        with agent.session() as session:
            running = RunningTurn(session, "x")
            provider.wait_for_request()
            if reply.chunks:
                provider.wait_for_pieces(3)
                wait_until(lambda: len(session.text) > 30)
            session.stop()
            turn = running.end()
            assert turn.status == "interrupted"
            assert turn.usage.is_estimated
            said = wire == "anthropic" and bool(reply.chunks)
            assert turn.usage.input_tokens == (10 if said else 105)
            assert turn.usage.output_tokens == (9 if reply.chunks else 0)
            assert turn.usage.cost == pytest.approx((turn.usage.input_tokens + 10 * turn.usage.output_tokens) / 1e6)
            assert data_of(session, "turn.finished")[0].usage == turn.usage
            assert session.usage == turn.usage


def test_a_steered_turn_counts_both_requests() -> None:
    """The request that a steer has ended is estimated, and the one after it reported."""
    gate = Gate()
    with priced(["x" * 400, gate], used()) as session:
        running = RunningTurn(session, "x")
        gate.wait_reached()
        session.steer("y")
        usage = running.end().usage
        assert usage.is_estimated
        assert (usage.input_tokens > 1_000, usage.output_tokens) == (True, 100)


def test_a_crash_loses_no_usage() -> None:
    """For every beginning of a log: what had been used by then is the session's, an open request as an estimate."""
    hand_over = delegating(agent_of(used(tokens=500), prices=PRICES))
    with priced(calling("hand_over"), used("x" * 400), tools=[hand_over]) as session:
        assert session.run("x").usage.input_tokens == 2_500
        log = [event for event in session.events() if event.session == session.id]
    for length in range(len(log) + 1):
        kinds = [event.kind for event in log[:length]]
        expected = 1_000 * kinds.count("request.finished") + 500 * kinds.count("child.finished")
        is_open = kinds.count("request.started") > kinds.count("request.finished")
        with agent_of().session(session.id, store_with(log[:length])) as again:
            assert again.usage.is_estimated == is_open
            assert (again.usage.input_tokens > expected) if is_open else (again.usage.input_tokens == expected)
            assert (again.usage.cost is None) == is_open


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_children_count_once(kind: str, tmp_path: Path) -> None:
    """A child in the background that ends after its turn is in the session's usage, and in no turn; before it, both."""
    gate = Gate()
    child = agent_of(["child", gate, Usage(500, 0), Finished("stop")], prices=PRICES, name="child")
    start = call("delegate", arguments='{"tasks": [{"agent": "child", "task": "t"}], "background": true}')
    script = [[start, Usage(1_000, 0), Finished("tool_calls")], used(), used()]
    store = MemoryStore() if kind == "memory" else SQLiteStore(tmp_path / "s.db")
    agent = agent_of(*script, tools=[Delegate([child]).delegate], prices=PRICES)
    with agent.session("s", store) as session:
        turn = session.run("x")
        gate.wait_reached()
        assert turn.usage.input_tokens == 2_000
        with session.subscribe() as listener:  # its events come when session.usage has them
            gate.open()
            wait_for(listener, "child.finished")
        assert session.usage == Usage(2_500, cost=pytest.approx(0.0025))  # type: ignore[arg-type]
        assert turn.usage.input_tokens == 2_000
        total = session.usage
    with agent.session("s", store) as session:
        assert session.usage == total


# -- the limit ---------------------------------------------------------------------------------------------------------


def test_a_turn_ends_when_it_has_cost_enough() -> None:
    """The calls of the answer that went over the limit are run, then the turn fails before the next request."""
    with priced(calling("look"), used(), tools=[look], limits=Limits(cost=0.001)) as session:
        turn = session.run("x")
        assert (turn.status, turn.reason) == ("failed", "cost_limit")
        assert "cost $0.0010 of $0.001" in turn.detail
        assert isinstance(turn.error, LimitReached)
        assert [outcome.status for outcome in turn.outcomes] == ["completed"]
        assert session.run().text == "ok"  # a turn of its own, with a limit of its own
        judge_session(session)


def test_the_cost_of_sub_agents_counts() -> None:
    """What a delegated agent has cost is part of the turn that delegated."""
    hand_over = delegating(agent_of(used(), prices=PRICES))
    with priced(calling("hand_over"), used(), tools=[hand_over], limits=Limits(cost=0.0015)) as session:
        assert session.run("x").reason == "cost_limit"


def test_a_sub_agent_without_a_price_is_not_asked() -> None:
    """Below a limit of the cost, its turn fails before its first request; the turn above goes on."""
    child = agent_of(used())
    with priced(calling("hand_over"), used(), tools=[delegating(child)], limits=Limits(cost=0.0015)) as session:
        assert session.run("x").status == "done"
        assert [each.reason for each in data_of(session, "child.finished")] == ["unknown_price"]
        assert not child.model.requests  # type: ignore[attr-defined]


@pytest.mark.parametrize("limits", [Limits(tokens=5_000), Limits(cost=0.005)], ids=["tokens", "cost"])
def test_running_sub_agents_count(limits: Limits) -> None:
    """A sub-agent that would call for ever ends at the limit of the turn above it, and that turn with it."""
    child = agent_of(*[calling("look")] * 1_000, tools=[look], prices=PRICES, max_steps=1_000)
    reason = "token_limit" if limits.tokens else "cost_limit"
    with priced(calling("hand_over"), used(), tools=[delegating(child)], limits=limits) as session:
        turn = session.run("x")
        assert (turn.status, turn.reason) == ("failed", reason)
        assert [each.reason for each in data_of(session, "child.finished")] == [reason]
        assert turn.usage.input_tokens == session.usage.input_tokens == 5_000
        judge_session(session)


def test_sub_agents_beside_each_other_count_together() -> None:
    """Four that run at once, and one below another, share the limit of the turn: each may be one request above it."""
    below = agent_of(*[calling("look")] * 1_000, tools=[look], max_steps=1_000)
    child = agent_of(*[calling("hand_over")] * 1_000, tools=[delegating(below)], max_steps=1_000)

    @tool
    async def hand_out(ctx: ToolContext) -> str:
        turns = await asyncio.gather(*(ctx.delegate(child, "your part") for _ in range(4)))
        return str([turn.reason for turn in turns])

    with session_of(calling("hand_out"), used(), tools=[hand_out], limits=Limits(tokens=30_000)) as session:
        turn = session.run("x")
        assert (turn.status, turn.reason) == ("failed", "token_limit")
        assert turn.outcomes[0].content == str(["token_limit"] * 4)
        assert 30_000 <= turn.usage.input_tokens <= 34_000


def test_a_sub_agent_in_the_background_keeps_the_limit() -> None:
    """Its turn has ended, and the limit of that turn still holds for it."""
    gate = Gate()
    child = agent_of([gate, *calling("look")], *[calling("look")] * 1_000, tools=[look], name="child", max_steps=1_000)
    start = call("delegate", arguments='{"tasks": [{"agent": "child", "task": "t"}], "background": true}')
    script = [[start, Usage(1_000, 0), Finished("tool_calls")], used()]
    agent = agent_of(*script, tools=[Delegate([child]).delegate], limits=Limits(tokens=4_000))
    with agent.session() as session:
        assert session.run("x").status == "done"
        with session.subscribe() as listener:  # its events come when session.usage has them
            gate.open()
            wait_for(listener, "child.finished")
        assert data_of(session, "child.finished")[0].reason == "token_limit"
        assert session.usage.input_tokens == 4_000


def test_a_limit_needs_prices() -> None:
    """Without the price of the model, or of a fallback, the turn fails before its first request and says so."""
    for agent in (
        agent_of(used(), limits=Limits(cost=1.0)),
        agent_of(used(), limits=Limits(cost=1.0), prices=PRICES, fallbacks=[ScriptedModel(name="other")]),
    ):
        with agent.session() as session:
            turn = session.run("x")
            assert (turn.status, turn.reason) == ("failed", "unknown_price")
            assert isinstance(turn.error, UnknownPrice)
            assert "Agent(prices={" in turn.detail
            assert not model_of(session).requests
            assert session.usage.cost == 0.0


def test_list_prices_are_used() -> None:
    """A model of a provider that genai-prices knows needs no prices of one's own."""
    pytest.importorskip("genai_prices")
    model = PublicModel(calling("look", tokens=10_000), used())
    with Agent(model, [look], limits=Limits(cost=0.001)).session() as session:
        turn = session.run("x")
        assert turn.reason == "cost_limit"
        assert turn.usage.cost is not None
        assert turn.usage.cost > 0.001


def test_a_limit_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra that has the prices."""
    not_installed(monkeypatch)
    with Agent(PublicModel(used()), limits=Limits(cost=1.0)).session() as session:
        assert "install the extra `prices`" in session.run("x").detail


@pytest.fixture
def slow_prices(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Make the import of the prices wait."""
    pytest.importorskip("genai_prices")
    yield from slow_import(monkeypatch)


def test_a_request_does_not_wait_for_prices_to_begin(slow_prices: Any) -> None:
    """The package is loaded beside the first request, and what that has cost is known once it is loaded."""
    gate = Gate()
    with Agent(PublicModel(["o", gate, *used("k")])).session() as session:
        running = RunningTurn(session, "x")
        gate.wait_reached()
        assert slow_prices.begun.wait(30)
        gate.open()
        slow_prices.may_end.set()
        turn = running.end()
        assert (turn.text, turn.usage.cost is not None) == ("ok", True)


@pytest.mark.parametrize("limit", [None, 1.0], ids=["no limit", "limit"])
def test_a_stop_does_not_wait_for_prices(slow_prices: Any, limit: float | None) -> None:
    """A stop while the prices are loaded ends the turn at once; a complete answer stays one, at a cost not known."""
    with Agent(PublicModel(used(), used()), limits=Limits(cost=limit)).session() as session:
        running = RunningTurn(session, "x")
        assert slow_prices.begun.wait(30)
        if limit is None:
            wait_until(lambda: session.text == "ok")
        session.stop()
        turn = running.end()
        assert not slow_prices.may_end.is_set()
        assert turn.status == "interrupted"
        assert turn.usage.cost == (None if limit is None else 0.0)
        slow_prices.may_end.set()
        session.release()
        assert session.run("again").usage.cost is not None
        judge_session(session)


def test_stopped_everywhere() -> None:
    """Wherever a turn with a child is stopped: its usage is in the log and the session, once, with the cost."""
    child = agent_of(*[used(tokens=500)] * 10_000, prices=PRICES)

    async def scenario(token: CancellationToken) -> None:
        limits = Limits(cost=0.01)
        with priced(calling("hand_over"), used(), used(), tools=[delegating(child)], limits=limits) as session:
            registration = token.on_cancel(session.stop)
            turn = await session.arun("x")
            registration()
            assert turn.usage.cost is not None
            assert data_of(session, "turn.finished")[0].usage == turn.usage
            requests = [data.answer.usage for data in data_of(session, "request.finished")]
            requests += [data.answer.usage for data in data_of(session, "request.cancelled")]
            children = [data.usage for data in data_of(session, "child.finished")]
            assert session.usage == sum([*requests, *children], Usage(cost=0.0))
            assert session.usage.input_tokens >= 1_000 * len(data_of(session, "request.finished"))

    def is_tried(place: str) -> bool:
        file = place.removeprefix("halter/")
        return file.startswith(("session/limits", "session/turn_runner", "session/children", "models/model_call"))

    assert len(interrupt_everywhere(scenario, repeat=1, only=is_tried).points) > 50


def test_limits_that_cannot_be_meant_are_refused() -> None:
    """A turn cannot cost less than nothing."""
    with pytest.raises(ValueError, match="cost must be more than 0"):
        Limits(cost=0)
