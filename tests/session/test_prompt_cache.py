"""Prompt caches: each request begins with the one before, byte for byte, and says where to cache and by which key."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from bench.cache import CLOSING, prompt, shared_bytes
from halter import Agent, tool
from halter.models import (
    AnthropicModel,
    AssistantMessage,
    Backoff,
    ModelRequest,
    OpenAIModel,
    ToolCall,
    ToolSpec,
    UserMessage,
)
from halter.stores import SQLiteStore
from halter.testing import FakeProvider, answer, hang_before_first_byte, hang_mid_stream, status, tool_calls
from tests.support.wires import WIRES, model_for, run

if TYPE_CHECKING:
    from pathlib import Path

CALLS = [ToolCall("c1", "look", '{"at": "a"}'), ToolCall("c2", "look", '{"at": "b"}')]


@tool
def look(at: str) -> str:
    """Look at something."""
    return f"{at} is there"


def agent_for(wire: str, provider: FakeProvider) -> Agent:
    agent = Agent(model_for(wire, provider), [look], "Be brief.")
    agent.backoff = Backoff(base=0.001)
    return agent


@pytest.mark.parametrize("wire", WIRES)
def test_each_request_begins_with_the_one_before(wire: str, tmp_path: Path) -> None:
    """After calls, a retry, stops before and within an answer, a steer and a restart, what was sent is unchanged."""

    async def scenario() -> list[dict[str, Any]]:
        script = [tool_calls(CALLS, text="I look."), answer("Seen."), status(500), answer("Again.")]
        script += [
            hang_before_first_byte(),
            hang_mid_stream(2),
            hang_mid_stream(2),
            answer("Steered."),
            answer("Back."),
        ]
        async with FakeProvider(*script) as provider:
            with SQLiteStore(tmp_path / "store.db") as store:
                with agent_for(wire, provider).session("s", store) as session:
                    await session.arun("Look around.")
                    await session.arun("Once more.")
                    for number, pieces in ((5, 0), (6, 2)):
                        task = asyncio.ensure_future(session.arun(f"Request {number}."))
                        await provider.await_pieces(pieces, request=number)
                        await session.astop()
                        await task
                    task = asyncio.ensure_future(session.arun("Go on."))
                    await provider.await_pieces(2, request=7)
                    await session.apost("Shorter.", mode="steer")
                    await task
                with agent_for(wire, provider).session("s", store) as session:  # read from the store
                    await session.arun("Are you there?")
            return [request.body for request in provider.requests]

    bodies = run(scenario())
    assert len(bodies) == 9
    for number, (old, new, shared) in enumerate(shared_bytes(bodies), 2):
        assert old - shared <= CLOSING, f"request {number}: {prompt(bodies[number - 2])}\n{prompt(bodies[number - 1])}"
        assert new >= shared
    assert len({body.get("prompt_cache_key") for body in bodies}) == 1


def test_the_cache_key_is_one_for_a_session_and_not_its_id() -> None:
    """OpenAI gets the same key for each request of a session, another one for another; it does not tell the id."""

    def key(session: str, **options: Any) -> str | None:
        body = OpenAIModel("m", **options).body(ModelRequest([UserMessage.of("x")], cache_key=session))
        found: str | None = body.get("prompt_cache_key")
        return found

    usual = {"base_url": "https://api.openai.com/v1"}
    assert key("alice", **usual) == key("alice", **usual) != key("bob", **usual)
    assert "alice" not in (key("alice", **usual) or "")
    assert len(key("x" * 1000, **usual) or "") <= 64
    assert key("alice", base_url="http://127.0.0.1:1/v1") is None, "other servers may refuse the field"


def test_a_session_sends_its_key() -> None:
    """All requests of a session have one key."""
    with FakeProvider(tool_calls(CALLS), answer("Seen.")) as provider:
        with agent_for("responses", provider).session("s") as session:
            session.run("Look.")
        keys = {request.body["prompt_cache_key"] for request in provider.requests}
    assert len(keys) == 1
    assert len(provider.requests) == 2


def marks(value: object) -> int:
    if isinstance(value, dict):
        return ("cache_control" in value) + sum(map(marks, value.values()))
    return sum(map(marks, value)) if isinstance(value, list) else 0


def test_anthropic_is_told_where_to_cache() -> None:
    """There are marks after what every request has, and after the last two user messages; never more than four."""
    messages: list[Any] = [UserMessage.of("one")]
    model = AnthropicModel("m")
    body = model.body(ModelRequest(messages, "Be brief.", [ToolSpec("f")]))
    assert "cache_control" in body["system"][0]
    assert marks(body) == 2
    body = model.body(ModelRequest(messages, "", [ToolSpec("f"), ToolSpec("g")]))
    assert ["cache_control" in each for each in body["tools"]] == [False, True]
    for number in range(3):
        messages += [AssistantMessage("yes"), UserMessage.of(f"more {number}", "and more")]
    body = model.body(ModelRequest(messages, "Be brief.", [ToolSpec("f")]))
    users = [message["content"] for message in body["messages"] if message["role"] == "user"]
    assert [marks(content) for content in users] == [0, 0, 1, 1]
    assert "cache_control" in users[-1][-1]
    assert marks(body) == 3
