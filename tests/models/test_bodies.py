"""Request bodies, checked against the types of the vendors' SDKs."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import msgspec
import pytest

from halter.models import (
    AnthropicModel,
    AssistantMessage,
    Audio,
    Image,
    Message,
    ModelRequest,
    ModelSettings,
    OpenAIModel,
    OpenAIResponsesModel,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from halter.models.http.wire import HTTPModel
from tests.support.valid_history import judge_responses
from tests.support.wires import PNG

pydantic = pytest.importorskip("pydantic")
openai_types = pytest.importorskip("openai.types.chat.completion_create_params")
responses_types = pytest.importorskip("openai.types.responses.response_create_params")
anthropic_types = pytest.importorskip("anthropic.types.message_create_params")

PARTS: list[Part] = [
    Text("words"),
    Image(PNG, media_type="image/png"),
    Image(url="https://example.com/a.png"),
    Audio(b"RIFF", "audio/wav"),
    Audio(b"ID3", "audio/mpeg"),
]
TOOL = ToolSpec("search", "finds", {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]})


def conversation(seed: int) -> ModelRequest:
    """Make a conversation of any order that a history may have."""
    rng = Random(seed)
    messages: list[Message] = [UserMessage.of("begin")]
    for turn in range(rng.randint(0, 5)):
        if rng.random() < 0.5:
            messages.append(UserMessage(rng.sample(PARTS, rng.randint(1, 3))))
        calls = [
            ToolCall(f"c{turn}_{n}", "search", rng.choice(['{"q": "x"}', "{}", "{broken"]))
            for n in range(rng.randint(0, 3))
        ]
        text = rng.choice(["", "said"]) if calls else "said"
        places = rng.choice([(0, 0), (len(text), 0), (len(text), len(calls)), (2, 0)])
        thoughts = rng.sample(
            [
                Reasoning("a", "sig"),
                Reasoning(redacted="b"),
                Reasoning("c"),
                Reasoning("d", "e", "", "openai-responses", f"rs_{turn}", *places),
                Reasoning("", "f", "", "openai-responses", f"rs_{turn}b", *places),
            ],
            rng.randint(0, 5),
        )
        messages.append(AssistantMessage(text, calls, thoughts))
        for call in calls:
            messages.append(ToolMessage(call.id, call.name, rng.sample(PARTS, rng.randint(0, 2)), rng.random() < 0.3))
            if rng.random() < 0.2:
                messages.append(UserMessage.of("meanwhile"))
    return ModelRequest(
        messages,
        instructions=rng.choice(["", "be kind"]),
        tools=rng.choice([[], [TOOL]]),
        settings=ModelSettings(
            max_output_tokens=rng.choice([None, 100]),
            temperature=rng.choice([None, 0.5]),
            top_p=rng.choice([None, 0.9]),
            reasoning=rng.choice([None, "low", "high"]),
            stop=rng.choice([[], ["END"]]),
            seed=rng.choice([None, 7]),
        ),
    )


def strict(kind: Any) -> Any:
    return pydantic.TypeAdapter(kind, config=None)


def materialised(value: Any) -> Any:
    """Read what pydantic left lazy, so that it is checked, too."""
    if isinstance(value, dict):
        return {key: materialised(item) for key, item in value.items()}
    if isinstance(value, str | bytes | int | float | None):
        return value
    return [materialised(item) for item in value]


def sent(model: HTTPModel, request: ModelRequest) -> Any:
    """The body as the server reads it."""
    return msgspec.json.decode(msgspec.json.encode(model.body(request)))


@pytest.mark.parametrize("streaming", [True, False])
def test_openai_bodies(streaming: bool) -> None:
    """Bodies of 300 conversations are what OpenAI's SDK would send, and every call has its result right behind it."""
    kind = (
        openai_types.CompletionCreateParamsStreaming if streaming else openai_types.CompletionCreateParamsNonStreaming
    )
    adapter = strict(kind)
    for seed in range(300):
        request = conversation(seed)
        body = sent(OpenAIModel("m", stream=streaming), request)
        assert materialised(adapter.validate_python(body)) == body, seed
        roles = [message["role"] for message in body["messages"]]
        assert ("user", "user") not in pairwise(roles)


@pytest.mark.parametrize("streaming", [True, False])
def test_anthropic_bodies(streaming: bool) -> None:
    """Bodies of 300 conversations are what Anthropic's SDK would send, turn by turn."""
    kind = (
        anthropic_types.MessageCreateParamsStreaming if streaming else anthropic_types.MessageCreateParamsNonStreaming
    )
    adapter = strict(kind)
    for seed in range(300):
        body = AnthropicModel("m", stream=streaming).body(conversation(seed))
        # Newer models have neither, nor have the SDK's types. Who sets one has asked for it to be sent.
        body.pop("temperature", None)
        body.pop("top_p", None)
        assert materialised(adapter.validate_python(body)) == body, seed
        roles = [message["role"] for message in body["messages"]]
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"] * (len(roles) % 2)
        assert all(message["content"] for message in body["messages"])


@pytest.mark.parametrize("streaming", [True, False])
def test_responses_bodies(streaming: bool) -> None:
    """Bodies of 300 conversations are what OpenAI's SDK would send to the Responses API, and its strict rules hold."""
    kind = (
        responses_types.ResponseCreateParamsStreaming if streaming else responses_types.ResponseCreateParamsNonStreaming
    )
    adapter = strict(kind)
    for seed in range(300):
        request = conversation(seed)
        body = sent(OpenAIResponsesModel("m", stream=streaming), request)
        assert materialised(adapter.validate_python(body)) == body, seed
        for item in body["input"]:
            if item["type"] == "function_call" and item["arguments"] == "{broken":
                item["arguments"] = "{}"  # the log has only objects
        judge_responses(body["input"])


def test_a_steer_between_results_waits_for_the_last_of_them() -> None:
    """What a person said between two results comes after both: a strict provider refuses anything else."""
    calls = [ToolCall("a", "f", "{}"), ToolCall("b", "f", "{}")]
    messages: list[Message] = [
        UserMessage.of("go"),
        AssistantMessage("", calls),
        ToolMessage.of(calls[0], "1", Image(PNG)),
        UserMessage.of("faster"),
        ToolMessage.of(calls[1], "2"),
    ]
    written = sent(OpenAIModel("m"), ModelRequest(messages))["messages"]
    assert [message["role"] for message in written] == ["user", "assistant", "tool", "tool", "user"]
    assert [part["type"] for part in written[-1]["content"]] == ["text", "image_url", "text"]


def test_the_name_of_the_limit() -> None:
    """OpenAI gets the name that its newer models want, other servers the one that they know."""
    request = ModelRequest([UserMessage.of("x")], settings=ModelSettings(max_output_tokens=5))
    assert OpenAIModel("m", base_url="https://api.openai.com/v1").body(request)["max_completion_tokens"] == 5
    assert OpenAIModel("m", base_url="http://localhost:11434/v1").body(request)["max_tokens"] == 5


def test_parts_as_openai_wants_them() -> None:
    """Pictures are data URLs or addresses, sound has its format."""
    content = sent(OpenAIModel("m"), ModelRequest([UserMessage(list(PARTS))]))["messages"][0]["content"]
    assert content[1]["image_url"]["url"].startswith("data:image/png;base64,")
    assert content[2]["image_url"]["url"] == "https://example.com/a.png"
    assert [part["input_audio"]["format"] for part in content[3:]] == ["wav", "mp3"]


def test_anthropic_has_room_for_an_answer_beside_the_thinking() -> None:
    """The budget for thinking is part of `max_tokens` there: an answer of the length that was asked for still fits."""
    settings = ModelSettings(max_output_tokens=100, reasoning="low")
    body = AnthropicModel("m").body(ModelRequest([UserMessage.of("x")], settings=settings))
    assert body["max_tokens"] - body["thinking"]["budget_tokens"] == 100


def test_settings_that_cannot_be_meant_are_refused() -> None:
    """A wrong word, a limit of nothing and a text where a list belongs are errors that say what is right."""
    wrong: Any = "hard"
    with pytest.raises(ValueError, match=r"minimal, low, medium, high; not 'hard'"):
        ModelSettings(reasoning=wrong)
    with pytest.raises(ValueError, match="at least 1"):
        ModelSettings(max_output_tokens=0)
    text: Any = "END"
    with pytest.raises(TypeError, match=r"\['END'\]"):
        ModelSettings(stop=text)
