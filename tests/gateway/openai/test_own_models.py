"""Halter as a client of Halter: its models for OpenAI's protocols, against a gateway."""

from __future__ import annotations

import asyncio

import pytest

from halter import Agent, tool
from halter.models import OpenAIModel, OpenAIResponsesModel
from halter.models.errors import ProviderError
from halter.models.types import Finished, ToolCall, Usage
from halter.testing import Gate, ScriptedModel
from tests.support.gateway_client import OWN, gateway_of
from tests.support.looped import looped
from tests.support.waiting import until


@tool
def look() -> str:
    """Look."""
    return "red"


@pytest.mark.parametrize("kind", [OpenAIModel, OpenAIResponsesModel])
@pytest.mark.parametrize("streams", [True, False])
@looped
async def test_a_conversation_with_an_agent_behind_a_gateway(
    kind: type[OpenAIModel | OpenAIResponsesModel], streams: bool
) -> None:
    """Two turns of a session here are two turns there; texts and usage come through."""
    behind = ScriptedModel(
        ToolCall("c1", "look", "{}"), ["It is ", "red.", Usage(input_tokens=9, output_tokens=3)], "As I said."
    )
    async with gateway_of(model=behind, tools=[look]) as (gateway, _):
        model = kind("halter", base_url=f"{gateway.url}/v1", api_key=OWN, stream=streams)
        async with Agent(model, instructions="Be brief.").session() as session:
            turn = await session.arun("Which colour?")
            assert (turn.status, turn.text) == ("done", "It is red.")
            assert turn.usage.output_tokens >= 3
            assert (await session.arun("Sure?")).text == "As I said."
    assert behind.requests[2].instructions == "Be brief."
    assert [message.text for message in behind.requests[2].messages] == ["Which colour?", "It is red.", "Sure?"]


@pytest.mark.parametrize("kind", [OpenAIModel, OpenAIResponsesModel])
@looped
async def test_a_stop_here_stops_there(kind: type[OpenAIModel | OpenAIResponsesModel]) -> None:
    """The request is closed, so the turn of the agent behind the gateway is stopped too."""
    gate = Gate()
    behind = ScriptedModel(["One, ", gate])
    async with gateway_of(model=behind) as (gateway, _):
        model = kind("halter", base_url=f"{gateway.url}/v1", api_key=OWN)
        async with Agent(model).session() as session:
            running = asyncio.create_task(session.arun("Count."))
            await gate.await_reached()
            await session.astop()
            assert (await running).status == "interrupted"

            async def is_stopped() -> bool:
                return behind.streams[0].state == "cancelled"

            await until(is_stopped)


@pytest.mark.parametrize("kind", [OpenAIModel, OpenAIResponsesModel])
@pytest.mark.parametrize("streams", [True, False])
@looped
async def test_a_limit_and_a_failure_there_are_known_here(
    kind: type[OpenAIModel | OpenAIResponsesModel], streams: bool
) -> None:
    """An answer that was cut off is one here; a failure is an error with the text of the other side."""
    behind = ScriptedModel(["One", Finished("length")], ProviderError("no such model", status=400))
    async with gateway_of(model=behind) as (gateway, _):
        model = kind("halter", base_url=f"{gateway.url}/v1", api_key=OWN, stream=streams, max_retries=0)
        async with Agent(model).session() as session:
            cut = await session.arun("Count.")
            assert (cut.status, cut.reason, cut.text) == ("failed", "output_limit", "One")
            failed = await session.arun("Again.")
            assert failed.status == "failed"
            assert "no such model" in str(failed.error)
