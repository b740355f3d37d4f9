"""Gemini's own API: parts, thought signatures, endings, errors, and the SDK as an oracle."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import pytest

from halter import Agent, tool
from halter.models import (
    AssistantMessage,
    ContextTooLong,
    Finished,
    GeminiModel,
    Image,
    Message,
    ModelCall,
    ModelRequest,
    ModelSettings,
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
from halter.stores import MemoryStore
from halter.testing import FakeProvider, answer, raw, status, tool_calls
from tests.support.provider_streams import gemini_stream, split_bytes
from tests.support.valid_history import judge_gemini
from tests.support.wires import HELLO, KEY, PNG, ask, calls_of, model_for, run, text_of, thought_of

CALL = ToolCall("c1", "search", '{"q": 1}')
OTHER = ToolCall("c2", "search", "{}")
STREAMS = 40


def events_of(*chunks: dict[str, Any]) -> list[Any]:
    """What a model tells of a stream of these chunks."""
    with FakeProvider(raw(*(b"data: %s\r\n\r\n" % msgspec.json.encode(chunk) for chunk in chunks))) as provider:
        return list(ask(model_for("gemini", provider)))


def said(*parts: dict[str, Any], **fields: object) -> dict[str, Any]:
    return {"candidates": [{"content": {"parts": list(parts)}, **fields}]}


def contents(*messages: Message, name: str = "gemini-3-pro") -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = GeminiModel(name).body(ModelRequest(list(messages)))["contents"]
    judge_gemini(written)
    return written


def test_streams_mean_the_same_to_the_sdk_and_to_us() -> None:
    """Text, thoughts, calls, signatures and errors of generated streams are what Google's SDK reads."""
    genai = pytest.importorskip("google.genai")
    with FakeProvider() as provider:
        sdk = genai.Client(api_key="x", http_options={"base_url": provider.url})
        model = model_for("gemini", provider)
        for seed in range(STREAMS):
            rng = Random(seed)
            events, expected = gemini_stream(rng)
            data = b"".join(b"data: %s\r\n\r\n" % json.dumps(chunk).encode() for _, chunk in events)
            reply = raw(*split_bytes(rng, data))
            provider.script(reply, reply)
            theirs = sdk_says(sdk, genai)
            assert theirs == we_say(model), f"seed {seed}"
            assert bool(theirs[-1]) == bool(expected.error), f"seed {seed}"


def sdk_says(sdk: Any, genai: Any) -> tuple[Any, ...]:
    text, thoughts, calls, signatures = "", "", [], []
    try:
        for chunk in sdk.models.generate_content_stream(model="m", contents="x"):
            for part in chunk.candidates[0].content.parts or ():
                if part.function_call:
                    call = part.function_call
                    calls.append((call.id, call.name, call.args))
                elif part.thought:
                    thoughts += part.text
                else:
                    text += part.text or ""
                if part.thought_signature:
                    signatures.append(b64encode(part.thought_signature).decode())
    except genai.errors.APIError as exc:
        return text, thoughts, [], exc.message
    return text, thoughts, calls, sorted(signatures), ""


def we_say(model: Any) -> tuple[Any, ...]:
    call = ModelCall(model, HELLO)
    model.max_retries = 0
    try:
        run(call.run())
    except ProviderError as exc:
        got = call.answer
        return got.text, "".join(block.text for block in got.reasoning), [], exc.message
    got = call.answer
    calls = [(call.id, call.name, json.loads(call.arguments)) for call in got.calls + got.unfinished]
    signatures = [each.signature for each in [*got.calls, *got.unfinished, *got.reasoning] if each.signature]  # type: ignore[attr-defined]
    return got.text, "".join(block.text for block in got.reasoning), calls, sorted(signatures), ""


def test_parts_become_events() -> None:
    """Thoughts, text and calls come in order, each call whole, and one without an id gets one."""
    events = events_of(
        said({"text": "Let me ", "thought": True}),
        said({"text": "think.", "thought": True}, {"text": "Hm."}),
        said({"functionCall": {"name": "search", "args": {"q": 1}}, "thoughtSignature": "AAA="}),
        said({"functionCall": {"name": "search", "id": "c2"}}, {"unknown": {}}),
        said({"text": "", "thoughtSignature": "BBB="}, finishReason="STOP")
        | {
            "usageMetadata": {
                "promptTokenCount": 9,
                "candidatesTokenCount": 2,
                "thoughtsTokenCount": 3,
                "cachedContentTokenCount": 4,
            }
        },
    )
    first, second = calls_of(events)
    assert (first.name, first.arguments, first.signature) == ("search", '{"q":1}', "AAA=")
    assert first.id.startswith("call_")
    assert second == OTHER
    assert (thought_of(events), text_of(events)) == ("Let me think.", "Hm.")
    blocks = [event.reasoning for event in events if isinstance(event, ReasoningDone)]
    assert blocks == [Reasoning("Let me think.", wire="gemini"), Reasoning("", "BBB=", "", "gemini", "", 3, 2)]
    assert Usage(9, 5, 4, 0, 3) in events
    assert events[-1] == Finished("tool_calls", "STOP", "m")


def test_signatures_go_back_with_their_parts() -> None:
    """A call has its signature, text too; summaries of thoughts stay here, and so does what another provider signed."""
    calls = [replace_signature(CALL, "AAA="), OTHER]
    blocks = [Reasoning("thought", wire="gemini"), Reasoning("", "BBB=", "", "gemini", "", 3), Reasoning("x", "signed")]
    written = contents(UserMessage.of("x"), AssistantMessage("Hm.", calls, blocks), *results(*calls))
    assert written[1]["parts"] == [
        {"text": "Hm.", "thoughtSignature": "BBB="},
        {"functionCall": {"id": "c1", "name": "search", "args": {"q": 1}}, "thoughtSignature": "AAA="},
        {"functionCall": {"id": "c2", "name": "search", "args": {}}},
    ]


def test_a_signature_after_calls_stays_behind_them() -> None:
    """The last part of an answer may be a signature alone, after its calls."""
    block = Reasoning("", "BBB=", "", "gemini", "", 3, 1)
    written = contents(UserMessage.of("x"), AssistantMessage("Hm.", [CALL], [block]), *results(CALL))
    assert [part.get("thoughtSignature") for part in written[1]["parts"]][-1] == "BBB="


@pytest.mark.parametrize(("name", "is_marked"), [("gemini-3-pro", True), ("gemini-2.5-pro", False)])
def test_calls_of_another_model_pass(name: str, is_marked: bool) -> None:
    """Newer models refuse a call without a signature: one that another provider's model made says that it has none."""
    written = contents(UserMessage.of("x"), AssistantMessage("", [CALL, OTHER]), *results(CALL, OTHER), name=name)
    assert ["thoughtSignature" in part for part in written[1]["parts"]] == [is_marked, False]


def replace_signature(call: ToolCall, signature: str) -> ToolCall:
    return msgspec.structs.replace(call, signature=signature)


def results(*calls: ToolCall) -> list[Message]:
    return [ToolMessage.of(call, "found") for call in calls]


def test_results_come_first_and_together() -> None:
    """The results of a batch are in one content, before what the user said meanwhile and before images."""
    picture = Image(PNG)
    written = contents(
        UserMessage.of("see", picture),
        AssistantMessage("", [CALL, OTHER]),
        ToolMessage("c1", "search", [Text("a"), picture]),
        UserMessage.of("faster"),
        ToolMessage("c2", "search", [Text("b")], is_error=True),
    )
    parts = written[2]["parts"]
    assert [next(iter(part)) for part in parts] == [
        *("functionResponse", "functionResponse", "text", "inlineData", "text")
    ]
    assert parts[0]["functionResponse"]["response"] == {"output": "a"}
    assert parts[1]["functionResponse"]["response"] == {"error": "b"}


def test_bodies_are_what_the_sdk_would_send() -> None:
    """Contents, tools and settings have only fields that the types of Google's SDK know."""
    types = pytest.importorskip("google.genai.types")
    calls = [replace_signature(CALL, "AAAA"), OTHER]
    picture = Image(url="https://example.com/a.png")
    request = ModelRequest(
        [UserMessage.of("x", picture, Image(PNG)), AssistantMessage("Hm.", calls), *results(*calls)],
        "be kind",
        [ToolSpec("f", "does", {"type": "object", "properties": {"q": {"type": "string"}}}), ToolSpec("g")],
        ModelSettings(temperature=1, top_p=0.5, max_output_tokens=9, reasoning="low", stop=["END"], seed=3),
    )
    body = json.loads(msgspec.json.encode(GeminiModel("gemini-3-pro").body(request)))
    for content in [*body["contents"], body["systemInstruction"]]:
        types.Content.model_validate_json(json.dumps(content))
    tools = types.Tool.model_validate_json(json.dumps(body["tools"][0])).function_declarations
    assert [(each.name, bool(each.parameters_json_schema)) for each in tools] == [("f", True), ("g", False)]
    types.GenerationConfig.model_validate_json(json.dumps(body["generationConfig"]))
    assert set(body) == {"systemInstruction", "tools", "generationConfig", "contents"}
    assert body["generationConfig"]["thinkingConfig"] == {"includeThoughts": True, "thinkingLevel": "low"}
    old = GeminiModel("gemini-2.5-pro").body(request)["generationConfig"]["thinkingConfig"]
    assert old == {"includeThoughts": True, "thinkingBudget": 2048}


def test_schemas_have_only_what_gemini_knows() -> None:
    """Keywords that it refuses are told in descriptions or said in its words; references stay."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "additionalProperties": False,
        "definitions": {"D": {"type": "string", "pattern": "x", "format": "uri"}},
        "properties": {
            "pattern": {"const": "a", "default": "a", "description": "a name like a keyword"},
            "n": {"oneOf": [{"type": "integer", "exclusiveMinimum": 0, "minimum": 1}, {"$ref": "#/definitions/D"}]},
            "l": {"type": "array", "items": {"type": "string", "minLength": 1}, "uniqueItems": True},
        },
        "required": ["n"],
    }
    body = GeminiModel("m").body(ModelRequest([UserMessage.of("x")], tools=[ToolSpec("f", "", schema)]))
    assert body["tools"][0]["functionDeclarations"][0]["parametersJsonSchema"] == {
        "type": "object",
        "additionalProperties": False,
        "$defs": {"D": {"type": "string", "description": '(format: "uri", pattern: "x")'}},
        "properties": {
            "pattern": {"enum": ["a"], "description": "a name like a keyword"},
            "n": {
                "anyOf": [
                    {"type": "integer", "minimum": 1, "description": "(exclusiveMinimum: 0)"},
                    {"$ref": "#/$defs/D"},
                ]
            },
            "l": {"type": "array", "items": {"type": "string", "description": "(minLength: 1)"}},
        },
        "required": ["n"],
    }


def test_a_session_sends_signatures_back() -> None:
    """What the log keeps of a call is what the next request needs, also after the session was loaded again."""

    @tool
    def search(q: int) -> str:
        """Search."""
        return f"found {q}"

    reply = replace(tool_calls([CALL], text="Let me see."), reasoning="Where could it be?")
    with FakeProvider(reply, answer("There."), answer("Bye.")) as provider:
        store, model = MemoryStore(), model_for("gemini", provider)
        with Agent(model, [search]).session("s", store) as session:
            assert session.run("Find it.").text == "There."
        with Agent(model, [search]).session("s", store) as session:
            session.run("Thanks.")
    for request in provider.requests[1:]:
        parts = request.body["contents"][1]["parts"]
        assert [part.get("thoughtSignature") for part in parts] == [None, "scripted"]


@pytest.mark.parametrize(
    ("chunk", "reason", "detail"),
    [
        (said({"text": "x"}, finishReason="MAX_TOKENS"), "length", ""),
        (said(finishReason="SAFETY", finishMessage="unsafe"), "content_filter", "unsafe"),
        (said(finishReason="SOMETHING_NEW"), "other", ""),
        ({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}, "content_filter", ""),
        ({"promptFeedback": {"blockReason": "OTHER", "blockReasonMessage": "why"}}, "content_filter", "why"),
    ],
)
def test_endings(chunk: dict[str, Any], reason: str, detail: str) -> None:
    """Why an answer ended is told, also if the question itself was blocked."""
    last = events_of(chunk)[-1]
    assert (last.reason, last.detail) == (reason, detail)


def test_a_call_that_gemini_could_not_read_is_asked_for_again() -> None:
    """A malformed call is an error that may pass: the model may write it well the next time."""
    with pytest.raises(ProviderError, match="MALFORMED_FUNCTION_CALL") as caught:
        events_of(said(finishReason="MALFORMED_FUNCTION_CALL"))
    assert caught.value.retryable


def test_a_stream_without_an_end_is_broken() -> None:
    """An answer without a finishReason is not taken for a complete one."""
    with pytest.raises(StreamBroken, match="finishReason"):
        events_of(said({"text": "half"}))


def test_errors() -> None:
    """An error may be an object or a list, before or inside the stream; how long to wait is in its details."""
    retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "31.5s"}
    body = {"error": {"code": 429, "message": "quota", "status": "RESOURCE_EXHAUSTED", "details": [retry]}}
    for shape in (body, [body]):
        with FakeProvider(status(429, body=json.dumps(shape).encode())) as provider:
            with pytest.raises(ProviderError, match="quota") as caught:
                ask(model_for("gemini", provider))
        assert (caught.value.code, caught.value.retry_after) == ("RESOURCE_EXHAUSTED", 31.5)
        assert caught.value.retryable
    with pytest.raises(ProviderError, match="quota") as caught:
        events_of(said({"text": "half"}), body)
    assert (caught.value.status, caught.value.retryable) == (429, True)


def test_a_conversation_that_is_too_long_is_known() -> None:
    """Gemini says it in words only."""
    words = "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."
    body = json.dumps({"error": {"code": 400, "message": words, "status": "INVALID_ARGUMENT"}}).encode()
    with FakeProvider(status(400, body=body)) as provider, pytest.raises(ContextTooLong):
        ask(model_for("gemini", provider))


def test_an_answer_in_one_piece() -> None:
    """Without streaming, the same events come from one JSON object, at the method's own address."""
    with FakeProvider(tool_calls([CALL], text="Let me see.")) as provider:
        events = ask(model_for("gemini", provider, stream=False))
        assert provider.requests[0].path == "/v1beta/models/m:generateContent"
        assert provider.requests[0].headers["x-goog-api-key"] == KEY
    assert (text_of(events), calls_of(events)) == ("Let me see.", [CALL])
