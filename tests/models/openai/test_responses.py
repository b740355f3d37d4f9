"""OpenAI's Responses API: items, encrypted reasoning in its place, endings, errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from halter import Agent, tool
from halter.models import (
    AssistantMessage,
    ContextTooLong,
    Finished,
    Image,
    Message,
    ModelRequest,
    ModelSettings,
    OpenAIResponsesModel,
    ProviderError,
    Reasoning,
    ReasoningDone,
    StreamBroken,
    Text,
    ToolCall,
    ToolMessage,
    ToolSpec,
    Usage,
    UserMessage,
)
from halter.models.anthropic import AnthropicModel
from halter.stores import MemoryStore
from halter.testing import FakeProvider, answer, raw, tool_calls
from tests.support.wires import KEY, PNG, ask, calls_of, model_for, text_of, thought_of

CALL = ToolCall("c1", "search", '{"q": 1}')
OTHER = ToolCall("c2", "search", "{}")


def events_of(*events: dict[str, Any]) -> list[Any]:
    """What a model tells of a stream of these events."""
    with FakeProvider(raw(*(b"data: %s\n\n" % msgspec.json.encode(event) for event in events))) as provider:
        return list(ask(model_for("responses", provider)))


def items(*messages: Message) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = OpenAIResponsesModel("m").body(ModelRequest(list(messages)))["input"]
    return written


def done(index: int, **item: object) -> list[dict[str, Any]]:
    """An item that comes in one piece."""
    kinds = ("response.output_item.added", "response.output_item.done")
    return [{"type": kind, "output_index": index, "item": item} for kind in kinds]


def completed(**fields: object) -> dict[str, Any]:
    return {"type": "response.completed", "response": {"status": "completed", **fields}}


def thought(name: str, text: int = 0, calls: int = 0) -> Reasoning:
    return Reasoning("", f"secret {name}", wire="openai-responses", id=name, text_before=text, calls_before=calls)


def test_nothing_is_stored_and_reasoning_comes_encrypted() -> None:
    """The server keeps nothing; models that do not think are not asked for what they refuse to send."""
    request = ModelRequest([UserMessage.of("x")], "be kind", [ToolSpec("f")], ModelSettings(reasoning="low", seed=1))
    body = OpenAIResponsesModel("gpt-5").body(request)
    assert (body["store"], body["include"]) == (False, ["reasoning.encrypted_content"])
    assert (body["instructions"], body["reasoning"]) == ("be kind", {"effort": "low"})
    assert body["tools"][0]["strict"] is False
    assert "seed" not in body
    assert "include" not in OpenAIResponsesModel("gpt-4o").body(request)


def test_reasoning_is_kept_with_its_place() -> None:
    """Each item of reasoning has its encrypted content as it ended, and how much of the answer came before it."""
    message = {"type": "message", "content": [{"type": "output_text", "text": "Hm."}]}
    events = events_of(
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning", "id": "rs_1"}},
        {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 0, "delta": "One."},
        {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 1, "delta": "Two."},
        done(0, type="reasoning", id="rs_1", encrypted_content="A", summary=[])[1],
        *done(1, **message),
        *done(2, type="function_call", call_id="c1", name="search", arguments='{"q": 1}'),
        *done(
            3, type="reasoning", id="rs_2", encrypted_content="B", summary=[{"type": "summary_text", "text": "More."}]
        ),
        *done(4, type="function_call", call_id="c2", name="search", arguments=""),
        completed(),
    )
    blocks = [event.reasoning for event in events if isinstance(event, ReasoningDone)]
    assert blocks == [
        Reasoning("One.\n\nTwo.", "A", "", "openai-responses", "rs_1", 0, 0),
        Reasoning("More.", "B", "", "openai-responses", "rs_2", 3, 1),
    ]
    assert (text_of(events), thought_of(events)) == ("Hm.", "One.\n\nTwo.More.")
    assert calls_of(events) == [CALL, OTHER]
    assert events[-1] == Finished("tool_calls", "completed", "m")


def test_a_call_that_was_not_announced_counts_once() -> None:
    """A server that only ends its items lost all its calls, and the turn was done without them."""
    first, other = (
        done(index, type="function_call", call_id=call.id, name=call.name, arguments=call.arguments)[1]
        for index, call in enumerate((CALL, OTHER))
    )
    events = events_of(first, first, other, completed())
    assert calls_of(events) == [CALL, OTHER]
    assert events[-1] == Finished("tool_calls", "completed", "m")


def test_reasoning_is_sent_back_in_its_place() -> None:
    """The order of reasoning, text and calls is the one in which they came."""
    blocks = [thought("rs_1"), thought("rs_2", text=3), thought("rs_3", text=3, calls=1)]
    written = items(UserMessage.of("x"), AssistantMessage("Hm.", [CALL, OTHER], blocks))
    assert [item.get("id") or item.get("content") or item.get("call_id") for item in written] == [
        *("x", "rs_1", "Hm.", "rs_2", "c1", "rs_3", "c2"),
    ]
    assert written[1] == {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "secret rs_1"}


def test_reasoning_that_would_be_refused_is_not_sent_back() -> None:
    """Without encrypted content, of another provider, or with nothing behind it, reasoning is left out."""
    bare = Reasoning("thought", wire="openai-responses", id="rs_1")
    signed = Reasoning("thought", "by Anthropic")
    written = items(UserMessage.of("x"), AssistantMessage("Hm.", [], [bare, signed, thought("rs_2", text=3)]))
    assert [item["type"] for item in written] == ["message", "message"]
    sent = AnthropicModel("m").body(ModelRequest([UserMessage.of("x"), AssistantMessage("Hm.", [], [thought("rs_2")])]))
    assert "secret" not in str(sent)


@pytest.mark.parametrize("status", ["incomplete", "in_progress"])
def test_incomplete_reasoning_has_no_encrypted_content(status: str) -> None:
    """What is only a part of an item's encrypted content is not kept: the API would refuse it."""
    item = {"type": "reasoning", "id": "rs_1", "encrypted_content": "a part", "status": status}
    events = events_of(*done(0, **item), completed())
    assert [event.reasoning.signature for event in events if isinstance(event, ReasoningDone)] == [""]
    events = events_of(done(0, **(item | {"status": None}))[0], completed())
    assert [event.reasoning.signature for event in events if isinstance(event, ReasoningDone)] == [""]


def test_a_session_sends_reasoning_back() -> None:
    """What the log keeps of an answer is what the next request needs: the reasoning before its call, and once."""

    @tool
    def search(q: int) -> str:
        """Search."""
        return f"found {q}"

    reply = replace(tool_calls([CALL], text="Let me see."), reasoning="Where could it be?")
    with FakeProvider(reply, answer("There."), answer("Bye.")) as provider:
        store = MemoryStore()
        model = model_for("responses", provider)
        with Agent(model, [search]).session("s", store) as session:
            assert session.run("Find it.").text == "There."
        with Agent(model, [search]).session("s", store) as session:  # loaded again from its log
            session.run("Thanks.")
    for request in provider.requests[1:]:
        kinds = [item["type"] for item in request.body["input"]][:5]
        assert kinds == ["message", "reasoning", "message", "function_call", "function_call_output"]
        assert request.body["input"][1]["encrypted_content"] == "scripted"


def test_two_messages_are_two_paragraphs() -> None:
    """A comment and the answer after it are not run together; what was not streamed is in the item as it ends."""
    parts = [{"type": "output_text", "text": "One."}]
    events = events_of(
        *done(0, type="message", content=parts),
        *done(1, type="message", content=[{"type": "output_text", "text": "Two."}]),
        completed(usage={"input_tokens": 9, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}}),
    )
    assert text_of(events) == "One.\n\nTwo."
    assert Usage(9, 2, 4) in events


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({"incomplete_details": {"reason": "max_output_tokens"}}, "length"),
        ({"incomplete_details": {"reason": "content_filter"}}, "content_filter"),
        ({"incomplete_details": {"reason": "something new"}}, "other"),
    ],
)
def test_incomplete_answers(event: dict[str, Any], reason: str) -> None:
    """Why an answer is incomplete is told."""
    ending = {"type": "response.incomplete", "response": {"status": "incomplete", **event}}
    assert events_of(ending)[-1].reason == reason


def test_a_refusal_is_text_and_a_reason() -> None:
    """The text of a refusal is shown, streamed or not."""
    streamed = events_of({"type": "response.refusal.delta", "delta": "No."}, completed())
    whole = events_of(*done(0, type="message", content=[{"type": "refusal", "refusal": "No."}]), completed())
    for events in (streamed, whole):
        assert text_of(events) == "No."
        assert events[-1].reason == "refusal"


def failed(code: str) -> dict[str, Any]:
    return {"type": "response.failed", "response": {"error": {"code": code, "message": "oops"}}}


@pytest.mark.parametrize(
    ("event", "kind", "retryable"),
    [
        ({"type": "error", "code": "server_error", "message": "oops"}, ProviderError, True),
        ({"type": "error", "error": {"code": "rate_limit_exceeded", "message": "oops"}}, ProviderError, True),
        (failed("server_error"), ProviderError, True),
        (failed("invalid_prompt"), ProviderError, False),
        (failed("context_length_exceeded"), ContextTooLong, False),
    ],
)
def test_errors_inside_a_stream(event: dict[str, Any], kind: type[ProviderError], retryable: bool) -> None:
    """Errors that come with status 200 are errors, with the provider's words; a prompt that is too long is known."""
    with pytest.raises(kind, match="oops") as caught:
        events_of(event)
    assert caught.value.retryable is retryable


def test_a_stream_without_an_end_is_broken() -> None:
    """An answer without response.completed is not taken for a complete one."""
    with pytest.raises(StreamBroken, match=r"response\.completed"):
        events_of({"type": "response.output_text.delta", "delta": "half"})


def test_an_answer_in_one_piece() -> None:
    """Without streaming, the same events come from one JSON object; an error in it is an error."""
    reply = tool_calls([CALL], text="Let me see.")
    with FakeProvider(reply) as provider:
        events = ask(model_for("responses", provider, stream=False))
    assert (text_of(events), calls_of(events)) == ("Let me see.", [CALL])
    failed = b'{"status": "failed", "error": {"message": "oops"}}'
    with (
        FakeProvider(raw(failed, content_type="application/json")) as provider,
        pytest.raises(ProviderError, match="oops"),
    ):
        ask(model_for("responses", provider, stream=False))


def test_images_are_part_of_messages_and_results() -> None:
    """Images go where they belong, also into results."""
    picture = Image(PNG)
    written = items(
        UserMessage.of("see", picture), AssistantMessage("", [CALL]), ToolMessage("c1", "search", [Text("a"), picture])
    )
    assert [part["type"] for part in written[0]["content"]] == ["input_text", "input_image"]
    assert written[2]["output"][1]["image_url"].startswith("data:image/png;base64,")


def test_the_key_is_a_bearer() -> None:
    """The key goes into the header, and nowhere else."""
    with FakeProvider() as provider:
        ask(model_for("responses", provider))
        assert provider.requests[0].headers["authorization"] == f"Bearer {KEY}"
        assert provider.requests[0].path == "/v1/responses"
