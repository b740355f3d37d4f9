"""Chat completions, as OpenAI sends them and as servers that imitate it do."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from halter.models import (
    Finished,
    ModelEvent,
    ModelRequest,
    ModelSettings,
    OpenAIModel,
    ProviderError,
    ReasoningDone,
    StreamBroken,
    ToolCall,
    ToolCallDone,
    Usage,
    UserMessage,
)
from halter.testing import FakeProvider, answer, raw, tool_calls
from tests.support.wires import HELLO, ask, calls_of, collect, model_for, run, text_of, thought_of

DONE = b"data: [DONE]\n\n"


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: object) -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}] if delta is not None else []
    return b"data: " + json.dumps({"choices": choices, **more}).encode() + b"\n\n"


def stream(*events: bytes) -> list[ModelEvent]:
    with FakeProvider(raw(*events)) as provider:
        return ask(model_for("openai", provider))


def ending(events: list[ModelEvent]) -> Finished:
    assert [event for event in events if isinstance(event, Finished)] == [events[-1]]
    last = events[-1]
    assert isinstance(last, Finished)
    return last


@pytest.mark.parametrize("streaming", [True, False])
def test_streaming_or_not_the_answer_is_the_same(streaming: bool) -> None:
    """Text, thinking, calls, usage and the end are the same on both paths."""
    calls = [ToolCall("c1", "search", '{"q": "a b c d e f g"}'), ToolCall("c2", "read", "{}")]
    with FakeProvider(answer("some text of words", reasoning="let me think"), tool_calls(calls, text="so")) as provider:
        model = model_for("openai", provider, stream=streaming)
        first, second = ask(model), ask(model)
        assert provider.requests[0].body.get("stream") is (True if streaming else None)
    assert (text_of(first), thought_of(first)) == ("some text of words", "let me think")
    assert ReasoningDone in map(type, first)
    assert ending(first) == Finished("stop", "stop", "m")
    assert (text_of(second), calls_of(second)) == ("so", calls)
    assert ending(second) == Finished("tool_calls", "tool_calls", "m")
    assert Usage(10, 3) in second


def test_a_refusal_is_visible_and_known() -> None:
    """The words of a refusal are text, and the end says that it is one."""
    events = stream(chunk({"refusal": "I can"}), chunk({"refusal": " not"}), chunk({}, "stop"), DONE)
    assert text_of(events) == "I can not"
    assert ending(events).reason == "refusal"


def call_piece(index: int | None, call_id: str, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"tool_calls": [{"index": index, "id": call_id, "function": function}]}


@pytest.mark.parametrize(
    "events",
    [
        [chunk(call_piece(0, "a", "f", '{"x":1}'), "tool_calls"), chunk(call_piece(1, "b", "g", "{}"), "tool_calls")],
        [
            chunk(call_piece(0, "a", "f", '{"x":')),
            chunk({}, "tool_calls"),
            chunk(call_piece(0, "", "", "1}")),
            chunk(call_piece(1, "b", "g", "{}"), "stop"),
        ],
    ],
)
def test_calls_may_follow_a_finish_reason(events: list[bytes]) -> None:
    """Of servers that send finish_reason with each chunk, or twice, all calls but the first were lost silently."""
    read = stream(*events, DONE)
    assert calls_of(read) == [ToolCall("a", "f", '{"x":1}'), ToolCall("b", "g", "{}")]
    assert [event.index for event in read if isinstance(event, ToolCallDone)] == [0, 1]
    assert ending(read).reason == "tool_calls"


@pytest.mark.parametrize("streaming", [True, False])
def test_half_a_surrogate_pair_does_not_break_the_answer(streaming: bool) -> None:
    """Servers that cut an emoji in two between chunks made the answer fail after three paid attempts."""
    if streaming:
        pieces = [rb"whole \ud83d\ude00 half \ud83d", rb"\ude00, literal \\ud83d"]
        events = stream(*(b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % piece for piece in pieces), DONE)
        assert text_of(events) == "whole \U0001f600 half \ufffd\ufffd, literal \\ud83d"
        return
    body = rb'{"choices":[{"message":{"content":"half \ud83d"},"finish_reason":"stop"}]}'
    with FakeProvider(raw(body, content_type="application/json")) as provider:
        assert text_of(ask(model_for("openai", provider, stream=False))) == "half \ufffd"


def lost_after(*events: bytes) -> list[ModelEvent]:
    """Read a stream whose connection is lost after these events."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(head.partition(b"content-length:")[2].split()[0]))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 100000\r\n\r\n")
        writer.write(b"".join(events))
        writer.close()

    async def scenario() -> list[ModelEvent]:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await collect(OpenAIModel("m", base_url=f"http://127.0.0.1:{port}/v1", api_key="k"))

    return run(scenario())


def test_a_connection_that_is_lost_after_the_answer_loses_nothing() -> None:
    """A complete answer was asked for again, and paid three times, because its [DONE] did not come."""
    events = lost_after(chunk({"content": "all"}), chunk({}, "stop"), chunk(usage={"prompt_tokens": 7}))
    assert (text_of(events), ending(events).reason) == ("all", "stop")
    assert Usage(7) in events
    call = lost_after(chunk(call_piece(0, "a", "f", '{"x":1}')), chunk({"content": ""}, "tool_calls"))
    assert calls_of(call) == [ToolCall("a", "f", '{"x":1}')]


@pytest.mark.parametrize(
    "events",
    [
        [chunk({"content": "the first"}, "stop")],  # some servers send a reason with each chunk
        [chunk({"content": "a"}), chunk({}, "stop"), chunk({"content": "b"})],
        [chunk(call_piece(0, "a", "f", '{"x":')), chunk({}, "tool_calls")],
        [chunk(call_piece(0, "a", "f", "")), chunk({}, "tool_calls")],
        [chunk(call_piece(0, "a", "f", "{}")), chunk({"content": ""})],
    ],
)
def test_a_truncated_answer_is_never_complete(events: list[bytes]) -> None:
    """Where more may have been on its way, a lost connection is an error: half a call must not run."""
    with pytest.raises(StreamBroken):
        lost_after(*events)


@pytest.mark.parametrize(
    ("raw_reason", "reason"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("tool_calls", "tool_calls"),
        ("function_call", "tool_calls"),
        ("something_new", "other"),
    ],
)
def test_why_it_ended(raw_reason: str, reason: str) -> None:
    """The provider's reason is mapped, and kept."""
    end = ending(stream(chunk({"content": "x"}), chunk({}, raw_reason), DONE))
    assert (end.reason, end.raw) == (reason, raw_reason)


def test_stop_after_calls_means_calls() -> None:
    """Servers that say "stop" after tool calls are understood."""
    call = {"id": "a", "function": {"name": "f", "arguments": {"x": 1}}}
    events = stream(chunk({"tool_calls": [call]}, "stop"), DONE)
    assert calls_of(events) == [ToolCall("a", "f", '{"x":1}')]
    assert ending(events).reason == "tool_calls"


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_thinking_has_two_names(field: str) -> None:
    """Thinking is found under either name, and is done before the text begins."""
    events = stream(chunk({field: "hm "}), chunk({field: "hm"}), chunk({"content": "so"}), chunk({}, "stop"), DONE)
    kinds = [type(event).__name__ for event in events]
    assert kinds == ["ReasoningDelta", "ReasoningDelta", "ReasoningDone", "TextDelta", "Finished"]
    assert thought_of(events) == "hm hm"


def test_usage_in_detail() -> None:
    """Cached and reasoning tokens are counted; an empty list of choices is no trouble."""
    usage = {"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}
    usage["completion_tokens_details"] = {"reasoning_tokens": 2}
    events = stream(chunk({"content": "x"}, "stop"), chunk(usage=usage), DONE)
    assert Usage(9, 5, cached_tokens=4, reasoning_tokens=2) in events
    assert ending(events).reason == "stop"


@pytest.mark.parametrize(
    "events",
    [
        [chunk({"content": "x"}, "stop")],
        [chunk({"content": "x"}), DONE],
        [chunk({"content": "x"}, "stop"), DONE, b"data: garbage after the end\n\n"],
        [b"\xef\xbb\xbf" + chunk({"content": "x"}, "stop"), DONE],
        [chunk({"content": [{"type": "text", "text": "x"}]}, "stop"), DONE],
        [chunk({"content": "x"}, "stop", choices2=None, usage=None, error=None), DONE],
        [b'data: {"choices":null}\n\n', chunk({"content": "x"}, "stop"), DONE],
        [b'data: {"choices":[{"index":1,"delta":{"content":"other"}}]}\n\n', chunk({"content": "x"}, "stop"), DONE],
    ],
)
def test_servers_that_differ_a_little(events: list[bytes]) -> None:
    """What is a whole answer is taken as one: without [DONE], without a reason, with more than the protocol has."""
    got = stream(*events)
    assert text_of(got) == "x"
    assert ending(got).reason == "stop"


@pytest.mark.parametrize(
    "events",
    [
        [],
        [b": only a comment\n\n"],
        [chunk({"content": "x"})],
        [chunk({"content": "x"}), b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}'],
        [b"data: {not json\n\n", DONE],
        [b'data: {"choices": 5}\n\n', DONE],
        [b'data: {"choices":[{"delta":{"content":"\xff"}}]}\n\n', DONE],
        [b"data: " + b"[" * 100_000 + b"\n\n", DONE],
    ],
)
def test_an_answer_that_is_not_whole_never_looks_so(events: list[bytes]) -> None:
    """A stream that ends early, or cannot be read, raises."""
    with pytest.raises(StreamBroken):
        stream(*events)


@pytest.mark.parametrize(
    ("events", "message", "status"),
    [
        ([b'data: {"error":{"message":"overloaded","code":529}}\n\n'], "overloaded", 529),
        ([b'data: {"error":"model crashed"}\n\n'], "model crashed", None),
        ([b'event: error\ndata: {"message":"by name"}\n\n'], "by name", None),
        (
            [b'data: {"choices":[{"delta":{},"finish_reason":"error","error":{"code":502,"message":"up"}}]}\n\n'],
            "up",
            502,
        ),
        ([chunk({}, "error")], "the provider ended the answer with an error", None),
    ],
)
def test_errors_inside_the_stream(events: list[bytes], message: str, status: int | None) -> None:
    """An error after status 200 is the provider's error, with its words."""
    with pytest.raises(ProviderError) as caught:
        stream(chunk({"content": "x"}), *events, DONE)
    assert (caught.value.message, caught.value.status) == (message, status)
    assert caught.value.retryable


@pytest.mark.parametrize(
    "body", [b'{"error":{"message":"no"}}', b'{"error":"no"}', b'{"message":"no"}', b'{"choices":[],"message":"no"}']
)
def test_status_200_with_an_error_for_a_body(body: bytes) -> None:
    """A body that holds an error is an error, whatever its status says."""
    with FakeProvider(raw(body, content_type="application/json")) as provider:
        with pytest.raises(ProviderError) as caught:
            ask(model_for("openai", provider))
        assert caught.value.message == "no"


def test_a_server_that_does_not_stream() -> None:
    """A server that ignores `stream` and sends the whole answer is understood."""
    body = b'{"model":"n","choices":[{"message":{"role":"assistant","content":"all"},"finish_reason":"stop"}]}'
    with FakeProvider(raw(body, content_type="application/json; charset=utf-8")) as provider:
        events = ask(model_for("openai", provider))
    assert text_of(events) == "all"
    assert ending(events) == Finished("stop", "stop", "n")


@pytest.mark.parametrize("kind", ["text/plain", "application/octet-stream", "application/x-ndjson"])
def test_a_stream_of_another_type(kind: str) -> None:
    """A server that streams under another type than it should is understood."""
    with FakeProvider(raw(chunk({"content": "x"}, "stop"), DONE, content_type=kind)) as provider:
        assert text_of(ask(model_for("openai", provider))) == "x"


def test_a_page_instead_of_an_answer() -> None:
    """A page with status 200, from a portal that wants a login, is no answer."""
    page = raw(b"<html>please log in</html>", content_type="text/html")
    with FakeProvider(page) as provider, pytest.raises(StreamBroken, match="please log in"):
        ask(model_for("openai", provider))


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Key and address come from the SDK's variables, unless they are given; a server of one's own needs no key."""
    with FakeProvider() as provider:
        monkeypatch.setenv("OPENAI_BASE_URL", provider.openai_url + "/")
        monkeypatch.setenv("OPENAI_API_KEY", "from-env")
        ask(OpenAIModel("m"))
        ask(OpenAIModel("m", api_key="given"))
        ask(OpenAIModel("m", api_key=""))
        assert [request.headers.get("authorization") for request in provider.requests] == [
            "Bearer from-env",
            "Bearer given",
            None,
        ]
        monkeypatch.delenv("OPENAI_BASE_URL")
        assert OpenAIModel("m").base_url == "https://api.openai.com/v1"


def test_extra_goes_into_the_body() -> None:
    """`extra` is merged over what we would send, and None takes a key out."""
    with FakeProvider() as provider:
        extra = {"seed": 7, "stream_options": None, "temperature": 1.0}
        ask(
            model_for("openai", provider),
            ModelRequest(HELLO.messages, settings=ModelSettings(temperature=0.0, extra=extra)),
        )
        body = provider.requests[0].body
    assert (body["seed"], body["temperature"], "stream_options" in body) == (7, 1.0, False)


def test_what_the_layer_above_reads() -> None:
    """Retries and timeouts are kept for whoever makes requests."""
    model = OpenAIModel("m", max_retries=5, stale_timeout=1.0, first_byte_timeout=2.0, stream=False)
    assert (model.name, model.max_retries, model.stale_timeout, model.first_byte_timeout) == ("m", 5, 1.0, 2.0)
    assert not model.streaming
    assert UserMessage.of("x").text == "x"
