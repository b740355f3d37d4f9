"""Anthropic's messages: blocks, thinking, endings, and the strict rules of what is sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from halter.models import (
    AnthropicModel,
    AssistantMessage,
    Audio,
    Finished,
    Image,
    Message,
    ModelEvent,
    ModelRequest,
    ProviderError,
    Reasoning,
    ReasoningDone,
    StreamBroken,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from halter.testing import FakeProvider, answer, raw, tool_calls
from tests.support.wires import PNG, ask, calls_of, model_for, text_of, thought_of

USAGE = {"input_tokens": 5, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 2, "output_tokens": 1}
START = {"type": "message_start", "message": {"type": "message", "model": "m2", "content": [], "usage": USAGE}}
STOP = {"type": "message_stop"}
CALL = ToolCall("t1", "search", '{"q": 1}')


def event(data: dict[str, Any]) -> bytes:
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()


def stream(*events: dict[str, Any]) -> list[ModelEvent]:
    with FakeProvider(raw(*map(event, events))) as provider:
        return ask(model_for("anthropic", provider))


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def end(reason: str | None, **more: object) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason, **more}, "usage": {"output_tokens": 8}}


def sent(*messages: Message) -> list[dict[str, Any]]:
    messages_sent: list[dict[str, Any]] = AnthropicModel("m").body(ModelRequest(list(messages)))["messages"]
    for message in messages_sent:
        for block in message["content"]:
            block.pop("cache_control", None)  # tests/session/test_prompt_cache.py has their places
    return messages_sent


@pytest.mark.parametrize("streaming", [True, False])
def test_streaming_or_not_the_answer_is_the_same(streaming: bool) -> None:
    """Text, thinking, calls, usage and the end are the same on both paths."""
    calls = [ToolCall("c1", "search", '{"q":"a b c d e f g"}'), ToolCall("c2", "read", "{}")]
    with FakeProvider(answer("some text of words", reasoning="let me think"), tool_calls(calls, text="so")) as provider:
        model = model_for("anthropic", provider, stream=streaming)
        first, second = ask(model), ask(model)
    assert (text_of(first), thought_of(first)) == ("some text of words", "let me think")
    assert ReasoningDone(Reasoning("let me think", "scripted")) in first
    assert first[-1] == Finished("stop", "end_turn", "m")
    assert (text_of(second), calls_of(second)) == ("so", calls)
    assert second[-1] == Finished("tool_calls", "tool_use", "m")
    assert [item for item in second if isinstance(item, Usage)][-1] == Usage(10, 3)


def test_all_kinds_of_blocks() -> None:
    """Thinking keeps its signature, what is redacted is kept as it is, and what is unknown is skipped."""
    events = stream(
        START,
        {"type": "ping"},
        *block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "hm"},
            {"type": "signature_delta", "signature": "sig"},
        ),
        *block(1, {"type": "redacted_thinking", "data": "opaque"}),
        *block(
            2,
            {"type": "server_tool_use", "id": "s", "name": "web", "input": {}},
            {"type": "input_json_delta", "partial_json": "{}"},
        ),
        *block(
            3,
            {"type": "text", "text": "a"},
            {"type": "text_delta", "text": "b"},
            {"type": "citations_delta", "citation": {}},
        ),
        *block(
            4,
            {"type": "tool_use", "id": "t", "name": "f", "input": {}},
            {"type": "input_json_delta", "partial_json": ""},
        ),
        *block(5, {"type": "tool_use", "id": "u", "name": "g", "input": {"whole": 1}}),
        {"type": "brand_new"},
        end("tool_use"),
        STOP,
    )
    assert [item.reasoning for item in events if isinstance(item, ReasoningDone)] == [
        Reasoning("hm", "sig"),
        Reasoning(redacted="opaque"),
    ]
    assert text_of(events) == "ab"
    assert calls_of(events) == [ToolCall("t", "f", "{}"), ToolCall("u", "g", '{"whole":1}')]
    assert events[0] == Usage(10, 1, cached_tokens=3, cache_write_tokens=2)
    assert [item for item in events if isinstance(item, Usage)][-1].output_tokens == 8
    assert events[-1] == Finished("tool_calls", "tool_use", "m2")


@pytest.mark.parametrize(
    ("raw_reason", "reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("tool_use", "tool_calls"),
        ("max_tokens", "length"),
        ("refusal", "refusal"),
        ("pause_turn", "pause"),
        ("model_context_window_exceeded", "length"),
        ("new", "other"),
    ],
)
def test_why_it_ended(raw_reason: str, reason: str) -> None:
    """Each stop reason is mapped, and kept."""
    last = stream(START, end(raw_reason), STOP)[-1]
    assert isinstance(last, Finished)
    assert (last.reason, last.raw) == (reason, raw_reason)


def test_a_refusal_tells_why() -> None:
    """The text before a refusal is text, and the provider's explanation is with the end."""
    details = {"type": "refusal", "explanation": "not this"}
    events = stream(
        START,
        *block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "I"}),
        end("refusal", stop_details=details),
        STOP,
    )
    assert text_of(events) == "I"
    assert events[-1] == Finished("refusal", "refusal", "m2", "not this")


@pytest.mark.parametrize(
    "events", [[], [START], [START, end("end_turn")], [START, *block(0, {"type": "text", "text": "x"})]]
)
def test_a_message_that_did_not_stop_is_broken(events: list[dict[str, Any]]) -> None:
    """Without `message_stop` an answer is not whole, even if it had a stop reason."""
    with pytest.raises(StreamBroken):
        stream(*events)


def test_an_error_inside_the_stream() -> None:
    """An error event raises the provider's words, and overload may pass."""
    with pytest.raises(ProviderError, match="Overloaded") as caught:
        stream(START, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
    assert caught.value.code == "overloaded_error"
    assert caught.value.retryable


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Key and address come from the SDK's variables; the protocol's version is sent."""
    with FakeProvider() as provider:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.anthropic_url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "from-env")
        ask(AnthropicModel("m"))
        request = provider.requests[0]
    assert request.path == "/v1/messages"
    assert (request.headers["x-api-key"], request.headers["anthropic-version"]) == ("from-env", "2023-06-01")
    assert request.body["max_tokens"] > 0


def test_results_are_one_user_message_and_come_first() -> None:
    """Results and what people said after a batch of calls are one user message, results first, in order."""
    other = ToolCall("t2", "read", "{}")
    messages = sent(
        UserMessage.of("go"),
        AssistantMessage("on it", [CALL, other]),
        ToolMessage.of(CALL, "one"),
        UserMessage.of("wait"),
        ToolMessage.of(other, Image(PNG), is_error=True),
        UserMessage.of("really"),
    )
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    last = messages[-1]["content"]
    assert [item["type"] for item in last] == ["tool_result", "tool_result", "text", "text"]
    assert [item.get("tool_use_id") for item in last] == ["t1", "t2", None, None]
    assert [item.get("text") for item in last[2:]] == ["wait", "really"]
    assert last[1]["is_error"] is True
    assert messages[1]["content"][1]["input"] == {"q": 1}


def test_empty_text_is_never_sent() -> None:
    """Empty blocks and messages are left out, and what then stands side by side is joined."""
    messages = sent(
        UserMessage.of("go", "", "  "),
        AssistantMessage("", reasoning=[Reasoning("thought of another provider")]),
        UserMessage.of("on"),
        AssistantMessage(" \n", [CALL]),
        ToolMessage.of(CALL, ""),
    )
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[0]["content"] == [{"type": "text", "text": "go"}, {"type": "text", "text": "on"}]
    assert messages[1]["content"] == [{"type": "tool_use", "id": "t1", "name": "search", "input": {"q": 1}}]
    assert messages[2]["content"] == [{"type": "tool_result", "tool_use_id": "t1"}]


def test_thinking_goes_back_first_and_as_it_was() -> None:
    """Signed and redacted thinking is sent back before the text, thinking that nobody signed is not."""
    thoughts = [Reasoning("hm", "sig"), Reasoning(redacted="opaque"), Reasoning("unsigned")]
    content = sent(UserMessage.of("x"), AssistantMessage("so  ", [], thoughts))[1]["content"]
    assert content == [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "redacted_thinking", "data": "opaque"},
        {"type": "text", "text": "so"},
    ]


@pytest.mark.parametrize("arguments", ["{", "[1]", "", "null"])
def test_arguments_that_are_no_object(arguments: str) -> None:
    """What the model wrote is shown to it, in the object that this wire needs."""
    content = sent(UserMessage.of("x"), AssistantMessage("", [ToolCall("t", "f", arguments)]))[1]["content"]
    assert content[0]["input"] == {"unreadable_arguments": arguments}


def test_sound_is_named_where_it_cannot_be_sent() -> None:
    """A recording becomes a note to the model, so that the message is not lost and not refused."""
    content = sent(UserMessage.of("listen", Audio(b"x", "audio/ogg")))[0]["content"]
    assert "audio/ogg" in content[1]["text"]
