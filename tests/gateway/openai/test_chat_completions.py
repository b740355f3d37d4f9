"""Chat completions, as OpenAI's own client makes them."""

from __future__ import annotations

import base64
import json
from typing import Any

import pydantic
import pytest
from openai import APIError, BadRequestError, InternalServerError

from halter import Agent, Limits, ModelSettings, tool
from halter.models import OpenAIModel
from halter.models.errors import ProviderError
from halter.models.types import Audio, Finished, Image, Text, ToolCall, Usage, UserMessage
from halter.stores import MemoryStore
from halter.testing import FakeProvider, ScriptedModel, answer, drop, status
from halter.tools import ToolContext
from tests.gateway.http.test_openapi import PIXEL
from tests.support.gateway_client import gateway_of
from tests.support.looped import looped
from tests.support.openai_client import HELLO, openai_client, openai_gateway


@tool
def look(what: str) -> str:
    """Look at something."""
    return f"{what} is red"


LOOK = ToolCall("c1", "look", '{"what": "it"}')


@looped
async def test_an_answer_has_its_text_and_its_usage() -> None:
    """The name of an agent is the model, and the answer is the client's own object."""
    usage = Usage(input_tokens=20, output_tokens=5, cached_tokens=7, reasoning_tokens=2)
    async with openai_gateway(["Hello, ", "you.", usage]) as (_, client, _):
        done = await client.chat.completions.create(model="halter", messages=HELLO)
    [choice] = done.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "Hello, you.", "stop")
    assert (done.object, done.model) == ("chat.completion", "halter")
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.completion_tokens, done.usage.total_tokens) == (20, 5, 25)
    assert done.usage.prompt_tokens_details is not None
    assert done.usage.prompt_tokens_details.cached_tokens == 7
    assert done.usage.completion_tokens_details is not None
    assert done.usage.completion_tokens_details.reasoning_tokens == 2


@pytest.mark.parametrize("has_usage", [False, True])
@looped
async def test_a_stream_has_the_role_first_and_the_reason_last(has_usage: bool) -> None:
    """Then the usage, if it was asked for, in a chunk without choices."""
    options: Any = {"stream_options": {"include_usage": True}} if has_usage else {}
    async with openai_gateway(["Hello, ", "you.", Usage(input_tokens=3, output_tokens=2)]) as (_, client, _):
        stream = await client.chat.completions.create(model="halter", messages=HELLO, stream=True, **options)
        chunks = [chunk async for chunk in stream]
    if has_usage:
        last = chunks.pop()
        assert last.choices == []
        assert last.usage is not None
        assert last.usage.total_tokens == 5
    assert all(chunk.usage is None for chunk in chunks)
    assert len({chunk.id for chunk in chunks}) == 1
    choices = [chunk.choices[0] for chunk in chunks]
    assert [choice.delta.role for choice in choices] == ["assistant"] + [None] * (len(choices) - 1)
    assert "".join(choice.delta.content or "" for choice in choices) == "Hello, you."
    assert [choice.finish_reason for choice in choices] == [None] * (len(choices) - 1) + ["stop"]


@looped
async def test_a_stream_is_written_as_openai_does() -> None:
    """Each chunk is one line of data with an empty line behind it, and the last one is [DONE]."""
    async with gateway_of("Hi.") as (_, client):
        body = {"model": "halter", "messages": HELLO, "stream": True}
        sent = await client.ask("POST", "/v1/chat/completions", body)
    assert sent.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    lines = sent.data.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    for line in lines[:-2]:
        assert json.loads(line.removeprefix("data: "))["object"] == "chat.completion.chunk"


@looped
async def test_the_gateway_runs_the_tools_of_the_agent() -> None:
    """The client sees one answer: what the model said before and after, with an empty line between."""
    script = [["Let me look.", LOOK], "It is red."] * 2  # for both requests
    async with openai_gateway(*script, tools=[look]) as (gateway, client, _):
        whole = await client.chat.completions.create(model="halter", messages=HELLO)
        stream = await client.chat.completions.create(model="halter", messages=HELLO, stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert whole.choices[0].message.content == "Let me look.\n\nIt is red."
        assert whole.choices[0].message.tool_calls is None
        assert "".join(pieces) == whole.choices[0].message.content
        model = gateway.registry.agents["halter"].model
        assert isinstance(model, ScriptedModel)
        assert model.requests[1].messages[-1].text == "it is red"


@looped
async def test_the_conversation_and_the_instructions_reach_the_model() -> None:
    """Instructions of the client stand behind those of the agent; the agent itself stays as it is."""
    model = ScriptedModel("Lyon.", "Hello.")
    agent = Agent(model, instructions=lambda: "You know cities.")
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "The capital of France?"},
        {"role": "assistant", "content": "Paris."},
        {"role": "developer", "content": [{"type": "text", "text": "No dots."}]},
        {"role": "user", "content": [{"type": "text", "text": "And"}, {"type": "text", "text": "another city?"}]},
    ]
    async with openai_gateway(agents=agent) as (_, client, _):
        await client.chat.completions.create(model="halter", messages=messages)
        await client.chat.completions.create(model="halter", messages=HELLO)
    first, second = model.requests
    assert first.instructions == "You know cities.\n\nBe brief.\n\nNo dots."
    assert [message.text for message in first.messages] == [
        "The capital of France?",
        "Paris.",
        "And\nanother city?",
    ]
    assert second.instructions == "You know cities."
    assert len(second.messages) == 1


@looped
async def test_images_and_recordings_become_parts_of_the_message() -> None:
    """An image by its URL is left to the provider; one inside of the request is what its bytes say that it is."""
    model = ScriptedModel("A dot.")
    sound = base64.b64encode(b"RIFF....WAVE").decode()
    image = "data:image/jpeg;base64," + base64.b64encode(PIXEL).decode()  # it is a PNG
    content: list[Any] = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": image}},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}},
        {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}},
    ]
    async with openai_gateway(model=model) as (_, client, _):
        await client.chat.completions.create(model="halter", messages=[{"role": "user", "content": content}])
    assert model.requests[0].messages == [
        UserMessage(
            [
                Text("What is this?"),
                Image(PIXEL, media_type="image/png"),
                Image(url="https://example.org/a.png"),
                Audio(b"RIFF....WAVE", media_type="audio/wav"),
            ]
        )
    ]


@looped
async def test_the_settings_of_a_request_are_for_this_request() -> None:
    """They replace those of the agent; what the client leaves out stays as the agent has it."""
    model = ScriptedModel("One.", "Two.")
    agent = Agent(model, settings=ModelSettings(temperature=0.1, extra={"x": 1}))
    async with openai_gateway(agents=agent) as (_, client, _):
        await client.chat.completions.create(
            model="halter",
            messages=HELLO,
            temperature=0.7,
            top_p=0.5,
            max_completion_tokens=30,
            stop="END",
            seed=4,
            reasoning_effort="low",
            user="somebody",
        )
        await client.chat.completions.create(model="halter", messages=HELLO, max_tokens=10, stop=["A", "B"])
    assert model.requests[0].settings == ModelSettings(
        temperature=0.7, top_p=0.5, max_output_tokens=30, stop=["END"], seed=4, reasoning="low", extra={"x": 1}
    )
    assert model.requests[1].settings == ModelSettings(
        temperature=0.1, max_output_tokens=10, stop=["A", "B"], extra={"x": 1}
    )


@pytest.mark.parametrize(
    ("reason", "said"), [("length", "length"), ("content_filter", "content_filter"), ("refusal", "content_filter")]
)
@looped
async def test_an_answer_that_is_cut_off_says_why(reason: Any, said: str) -> None:
    """At the output limit, or by a filter: what came of it is the answer."""
    async with openai_gateway(*[["Hello", Finished(reason)]] * 2) as (_, client, _):
        done = await client.chat.completions.create(model="halter", messages=HELLO)
        assert (done.choices[0].message.content, done.choices[0].finish_reason) == ("Hello", said)
        stream = await client.chat.completions.create(model="halter", messages=HELLO, stream=True)
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].choices[0].finish_reason == said


@looped
async def test_a_turn_that_fails_is_an_error_and_is_not_tried_again() -> None:
    """Its tools may have done their work: a client that retries by itself is told not to."""
    model = ScriptedModel(ProviderError("no such model here", status=400), ProviderError("gone", status=400))
    async with gateway_of(model=model) as (gateway, _), openai_client(gateway, retries=3) as client:
        with pytest.raises(InternalServerError, match="no such model here") as failed:
            await client.chat.completions.create(model="halter", messages=HELLO)
        assert (failed.value.code, failed.value.type) == ("turn_failed", "server_error")
        assert len(model.requests) == 1
        stream = await client.chat.completions.create(model="halter", messages=HELLO, stream=True)
        with pytest.raises(APIError, match="gone"):
            [chunk async for chunk in stream]
        assert len(model.requests) == 2


@looped
async def test_an_answer_that_begins_again_says_so_in_a_stream() -> None:
    """The provider dropped the connection, and was asked again: what was sent cannot be taken back."""
    with FakeProvider(drop(2, text="one two"), answer("Done.")) as provider:
        model = OpenAIModel("any", base_url=provider.openai_url, api_key="any")
        agent = Agent(model)
        agent.backoff = type(agent.backoff)(base=0.01)
        async with openai_gateway(agents=agent) as (_, client, _):
            stream = await client.chat.completions.create(model="halter", messages=HELLO, stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            first, _, second = text.partition(
                "\n\n[The connection to the model was lost. The answer starts again.]\n\n"
            )
            assert first.startswith("one two")
            assert second == "Done."
            provider.script(drop(2, text="one two"), answer("Done."))
            whole = await client.chat.completions.create(model="halter", messages=HELLO)
            assert whole.choices[0].message.content == "Done."


@looped
async def test_nobody_is_asked() -> None:
    """Approvals are denied, questions are answered with that, and the model is told: neither waits for anybody."""

    @tool(approval=True)
    def erase() -> str:
        """Erase everything."""
        raise AssertionError

    @tool
    async def ask(ctx: ToolContext) -> str:
        """Ask."""
        return f"the answer was: {await ctx.ask('Which?')}"

    model = ScriptedModel(ToolCall("c1", "erase", "{}"), ToolCall("c2", "ask", "{}"), "Then not.")
    async with openai_gateway(model=model, tools=[erase, ask], approve="ask") as (_, client, _):
        done = await client.chat.completions.create(model="halter", messages=HELLO)
    assert done.choices[0].message.content == "Then not."
    _, denied, asked = (request.messages[-1] for request in model.requests)
    assert "not allowed" in denied.text
    assert "nobody can be asked" in asked.text


@looped
async def test_a_typed_answer_is_sent_once_it_fits() -> None:
    """Of an agent with an output type the client gets the last answer only: words around it would not be JSON."""
    wrong, right = "Well, 7.", '{"value": [7]}'
    model = ScriptedModel(*[wrong, right] * 2)
    async with openai_gateway(agents=Agent(model, output=list[int])) as (_, client, _):
        done = await client.chat.completions.create(model="halter", messages=HELLO)
        assert done.choices[0].message.content == right
        stream = await client.chat.completions.create(model="halter", messages=HELLO, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == right


class City(pydantic.BaseModel):
    name: str
    people: int
    sights: list[str] = []


@looped
async def test_an_answer_can_be_asked_for_as_json() -> None:
    """The provider gets the schema; an answer that is no JSON goes back to the model, and the client gets the last."""
    right = '{"name": "Lyon", "people": 500000, "sights": []}'
    with FakeProvider(answer("It is Lyon."), *[answer(right)] * 3, answer("No."), answer("[1]")) as provider:
        agent = Agent(OpenAIModel("any", base_url=provider.openai_url, api_key="any"))
        async with openai_gateway(agents=agent) as (_, client, _):
            parsed = await client.chat.completions.parse(model="halter", messages=HELLO, response_format=City)
            assert parsed.choices[0].message.parsed == City(name="Lyon", people=500_000)
            assert len(provider.requests) == 2
            sent = provider.requests[0].body["response_format"]["json_schema"]
            assert sent["name"] == "City"
            assert set(sent["schema"]["properties"]) == {"name", "people", "sights"}
            of_responses = await client.responses.parse(model="halter", input="Hello.", text_format=City)
            assert of_responses.output_parsed == City(name="Lyon", people=500_000)
            stream = await client.chat.completions.create(
                model="halter", messages=HELLO, response_format={"type": "json_object"}, stream=True
            )
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == right
            with pytest.raises(InternalServerError, match="invalid_output"):
                await client.chat.completions.create(
                    model="halter", messages=HELLO, response_format={"type": "json_object"}
                )


@looped
async def test_an_agent_with_an_output_type_takes_no_other() -> None:
    """What it answers is the choice of who made it."""
    async with openai_gateway(agents=Agent(ScriptedModel(), output=list[int])) as (_, client, _):
        with pytest.raises(BadRequestError, match="output type of its own"):
            await client.chat.completions.create(
                model="halter", messages=HELLO, response_format={"type": "json_object"}
            )


@looped
async def test_nothing_is_stored() -> None:
    """Neither the store nor the list of sessions knows the conversation, and no session stays loaded."""
    store = MemoryStore()
    async with openai_gateway("Hi.", store=store) as (gateway, client, own):
        done = await client.chat.completions.create(model="halter", messages=HELLO)
        assert store.sessions() == []
        assert (await own.ask("GET", "/v1/sessions")).body["sessions"] == []
        assert (await own.ask("GET", f"/v1/sessions/{done.id}")).status == 404
        assert not gateway.registry.live_sessions
        assert not gateway.registry.busy
        assert not list(gateway.registry.transient)


@looped
async def test_a_limit_of_the_agent_holds() -> None:
    """The agent's own limits count, as in any session."""
    async with openai_gateway(agents=Agent(ScriptedModel(LOOK), [look], limits=Limits(steps=1))) as (_, client, _):
        with pytest.raises(InternalServerError, match="step_limit"):
            await client.chat.completions.create(model="halter", messages=HELLO)


@looped
async def test_a_conversation_that_is_too_long_is_the_clients_mistake() -> None:
    """Clients know the code, and shorten the conversation."""
    with FakeProvider(status(400, "maximum context length is 10 tokens")) as provider:
        agent = Agent(OpenAIModel("any", base_url=provider.openai_url, api_key="any"), compaction=None)
        async with openai_gateway(agents=agent) as (_, client, _):
            with pytest.raises(BadRequestError) as refused:
                await client.chat.completions.create(model="halter", messages=HELLO)
    assert refused.value.code == "context_length_exceeded"
