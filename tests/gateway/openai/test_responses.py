"""The Responses API, as OpenAI's own client uses it."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from openai import BadRequestError, InternalServerError

from halter import Agent, ModelSettings, tool
from halter.models.errors import ProviderError
from halter.models.types import AssistantMessage, Finished, Image, Text, ToolCall, Usage, UserMessage
from halter.testing import ScriptedModel
from tests.gateway.http.test_openapi import PIXEL
from tests.support.looped import looped
from tests.support.openai_client import openai_gateway


@tool
def look(what: str) -> str:
    """Look at something."""
    return f"{what} is red"


@looped
async def test_a_text_is_answered() -> None:
    """The answer is one message, and says that nothing is stored."""
    async with openai_gateway(["Hello, ", "you.", Usage(input_tokens=3, output_tokens=2)]) as (_, client, _):
        done = await client.responses.create(model="halter", input="Hello.", temperature=0.5)
    assert (done.status, done.output_text, done.model, done.temperature) == ("completed", "Hello, you.", "halter", 0.5)
    assert done.to_dict()["store"] is False
    assert [item.type for item in done.output] == ["message"]
    assert done.usage is not None
    assert (done.usage.input_tokens, done.usage.output_tokens, done.usage.total_tokens) == (3, 2, 5)


@looped
async def test_a_stream_tells_of_the_message_its_part_and_the_end() -> None:
    """In the order that clients build on, numbered without gaps."""
    script = [["Let me look.", ToolCall("c1", "look", '{"what": "it"}')], ["It ", "is red."]]
    async with openai_gateway(*script, tools=[look]) as (_, client, _):
        events = [event async for event in await client.responses.create(model="halter", input="Hello.", stream=True)]
    kinds = [event.type for event in events]
    deltas = kinds.count("response.output_text.delta")
    assert deltas >= 2
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join([event.delta for event in events if event.type == "response.output_text.delta"])
    last = events[-1]
    assert last.type == "response.completed"
    assert text == last.response.output_text == "Let me look.\n\nIt is red."


@looped
async def test_the_sdks_own_reader_of_streams_gets_the_whole_response() -> None:
    """It builds the response from the events, and would fail at one that is missing."""
    async with openai_gateway(["Hello, ", "you."]) as (_, client, _):
        async with client.responses.stream(model="halter", input="Hello.") as stream:
            done = await stream.get_final_response()
    assert done.output_text == "Hello, you."


@looped
async def test_items_become_the_conversation() -> None:
    """Messages with or without a type, calls with their results, images; reasoning of others is left out."""
    model = ScriptedModel("Yes.")
    items: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Look."},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I do.", "annotations": []}],
        },
        {"type": "function_call", "call_id": "a", "name": "look", "arguments": '{"what": "it"}'},
        {"type": "function_call", "call_id": "b", "name": "look", "arguments": ""},
        {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "nothing"}]},
        {"type": "function_call_output", "call_id": "a", "output": "red"},
        {"type": "message", "role": "assistant", "content": "Red."},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "Sure?"},
                {"type": "input_image", "image_url": "data:image/png;base64," + base64.b64encode(PIXEL).decode()},
            ],
        },
    ]
    async with openai_gateway(agents=Agent(model, instructions="You look.")) as (_, client, _):
        await client.responses.create(
            model="halter", input=items, instructions="Now.", max_output_tokens=9, reasoning={"effort": "high"}
        )
    [request] = model.requests
    assert request.instructions == "You look.\n\nNow.\n\nBe brief."
    assert request.settings == ModelSettings(max_output_tokens=9, reasoning="high")
    first, answer, a, b, second, last = request.messages
    assert first == UserMessage.of("Look.")
    assert isinstance(answer, AssistantMessage)
    assert (answer.text, [(call.id, call.arguments) for call in answer.calls]) == (
        "I do.",
        [("a", '{"what": "it"}'), ("b", "{}")],
    )
    assert [(each.call_id, each.text) for each in (a, b)] == [("a", "red"), ("b", "nothing")]  # type: ignore[union-attr]
    assert second == AssistantMessage("Red.")
    assert last == UserMessage([Text("Sure?"), Image(PIXEL)])


@looped
async def test_an_answer_that_is_cut_off_is_incomplete() -> None:
    """At the output limit; the stream ends with that event."""
    async with openai_gateway(*[["Hello", Finished("length")]] * 2) as (_, client, _):
        done = await client.responses.create(model="halter", input="Hello.")
        assert (done.status, done.output_text) == ("incomplete", "Hello")
        assert done.incomplete_details is not None
        assert done.incomplete_details.reason == "max_output_tokens"
        events = [event async for event in await client.responses.create(model="halter", input="Hello.", stream=True)]
        assert events[-1].type == "response.incomplete"


@looped
async def test_a_turn_that_fails() -> None:
    """It is an error, or in a stream the event that says so."""
    errors = [ProviderError("no such model", status=400)] * 2
    async with openai_gateway(*errors) as (_, client, _):
        with pytest.raises(InternalServerError, match="no such model"):
            await client.responses.create(model="halter", input="Hello.")
        events = [event async for event in await client.responses.create(model="halter", input="Hello.", stream=True)]
    last = events[-1]
    assert last.type == "response.failed"
    assert last.response.status == "failed"
    assert last.response.error is not None
    assert "no such model" in last.response.error.message


@pytest.mark.parametrize(
    ("field", "value"),
    [("previous_response_id", "resp_1"), ("conversation", "conv_1"), ("background", True)],
)
@looped
async def test_what_needs_a_store_is_refused(field: str, value: Any) -> None:
    """Nothing is stored, so nothing earlier can be named."""
    fields: Any = {field: value}
    async with openai_gateway() as (_, client, _):
        with pytest.raises(BadRequestError, match="send the whole conversation") as refused:
            await client.responses.create(model="halter", input="Hello.", **fields)
    assert refused.value.param == field
