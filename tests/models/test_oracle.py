"""The vendors' SDKs as oracles: fed the same bytes, they tell the same answers as our wires do."""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from halter.models import ModelEvent, ProviderError, ReasoningDone
from halter.models.http.sse import ServerSentEvents
from halter.testing import FakeProvider, raw
from tests.support.provider_streams import (
    ENDS,
    Expected,
    anthropic_stream,
    gemini_stream,
    openai_stream,
    responses_stream,
    split_bytes,
    write,
)
from tests.support.wires import KEY, MODELS, WIRES, calls_of, collect, model_for, run, text_of, thought_of

anthropic = pytest.importorskip("anthropic")
openai = pytest.importorskip("openai")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halter.models.http.wire import HTTPModel

STREAMS = 1500
RESPONSES = 100
NETWORK_STREAMS = 60

MAKERS = {
    "openai": openai_stream,
    "anthropic": anthropic_stream,
    "responses": responses_stream,
    "gemini": gemini_stream,
}

Answer = tuple[str, list[tuple[str, str, Any]], str]


def http_client(sdk: Any, pieces: list[bytes]) -> Any:
    """Make the HTTP client that an SDK wants, which answers with these pieces from memory."""
    base = sdk.DefaultHttpxClient.__mro__[1]
    library = __import__(base.__module__.partition(".")[0])

    class Pieces(library.SyncByteStream):  # type: ignore[name-defined]
        def __iter__(self) -> Iterator[bytes]:
            return iter(pieces)

    def answer(_request: Any) -> Any:
        return library.Response(200, headers={"content-type": "text/event-stream"}, stream=Pieces())

    return library.Client(transport=library.MockTransport(answer))


def openai_says(client: Any) -> Answer:
    """Read a stream with OpenAI's SDK."""
    text = ""
    calls: dict[int, list[str]] = {}
    try:
        chunks = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], stream=True)
        for chunk in chunks:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                for piece in choice.delta.tool_calls or ():
                    call = calls.setdefault(piece.index, ["", "", ""])
                    call[0] += piece.id or ""
                    call[1] += (piece.function.name or "") if piece.function else ""
                    call[2] += (piece.function.arguments or "") if piece.function else ""
    except openai.APIError as exc:
        return text, [], exc.message
    return text, [(call[0], call[1], json.loads(call[2])) for _, call in sorted(calls.items())], ""


def anthropic_says(client: Any) -> tuple[str, list[tuple[str, str, Any]], str, list[tuple[str, str]]]:
    """Read a stream with Anthropic's SDK."""
    messages = [{"role": "user", "content": "x"}]
    text = ""
    try:
        with client.messages.stream(model="m", max_tokens=9, messages=messages) as stream:
            for event in stream:
                if event.type == "content_block_delta" and event.delta.type == "text_delta":
                    text += event.delta.text
            final = stream.get_final_message()
    except anthropic.APIStatusError as exc:
        return text, [], exc.body["error"]["message"], []
    except anthropic.APIError as exc:
        return text, [], str(exc.message), []
    blocks = [block.model_dump() for block in final.content]
    calls = [(block["id"], block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
    thoughts = [(block["thinking"], block["signature"]) for block in blocks if block["type"] == "thinking"]
    return text, calls, "", thoughts


def responses_say(client: Any) -> tuple[str, list[tuple[str, str, Any]], str, list[tuple[str, str, str]]]:
    """Read a stream of the Responses API with OpenAI's SDK."""
    texts: dict[str, str] = {}
    calls: list[tuple[str, str, Any]] = []
    thoughts: list[tuple[str, str, str]] = []
    for event in client.responses.create(model="m", input="x", stream=True):
        if event.type in ("response.output_text.delta", "response.refusal.delta"):
            texts[event.item_id] = texts.get(event.item_id, "") + event.delta
        elif event.type == "error":
            return "\n\n".join(texts.values()), [], event.message, []
        elif event.type == "response.failed":
            return "\n\n".join(texts.values()), [], event.response.error.message, []
        elif event.type == "response.output_item.done" and event.item.type == "function_call":
            calls.append((event.item.call_id, event.item.name, json.loads(event.item.arguments)))
        elif event.type == "response.output_item.done" and event.item.type == "reasoning":
            summary = "".join(part.text for part in event.item.summary)
            thoughts.append((event.item.id, summary, event.item.encrypted_content))
    return "\n\n".join(texts.values()), calls, "", thoughts


def we_say(model: HTTPModel, pieces: list[bytes]) -> tuple[list[ModelEvent], str]:
    """Read a stream with our decoder and reader, split exactly as the SDK's was."""
    decoder, reader = ServerSentEvents(), model.reader()
    events: list[ModelEvent] = []
    try:
        for piece in pieces:
            for name, data in decoder.feed(piece):
                if not reader.finished:
                    events += model._take(reader, name, data)
        events += reader.end()
    except ProviderError as exc:
        return events, exc.message
    return events, ""


def unasked(wire: str) -> HTTPModel:
    """A model whose server is never asked."""
    return MODELS[wire][0]("m", base_url="http://unused", api_key=KEY)


def calls_in(events: list[ModelEvent]) -> list[tuple[str, str, Any]]:
    return [(call.id, call.name, json.loads(call.arguments)) for call in calls_of(events)]


def generated(seed: int, make: Callable[[Random], tuple[Any, Expected]]) -> tuple[list[bytes], Expected]:
    rng = Random(seed)
    events, expected = make(rng)
    return split_bytes(rng, write(rng, events, rng.choice(ENDS))), expected


def test_openai_streams_mean_the_same_to_the_sdk_and_to_us() -> None:
    """Text, calls and errors of generated chat completion streams, split anywhere, are what OpenAI's SDK reads."""
    model = unasked("openai")
    for seed in range(STREAMS):
        pieces, expected = generated(seed, openai_stream)
        with openai.OpenAI(
            api_key="x", base_url="http://oracle", max_retries=0, http_client=http_client(openai, pieces)
        ) as sdk:
            theirs = openai_says(sdk)
        events, error = we_say(model, pieces)
        ours = (text_of(events), calls_in(events) if not error else [], error)
        assert ours == theirs, f"seed {seed}"
        assert bool(error) == bool(expected.error), f"seed {seed}"
        if not error:
            assert ours[:2] == (expected.text, expected.calls), f"seed {seed}"


def test_anthropic_streams_mean_the_same_to_the_sdk_and_to_us() -> None:
    """Text, calls, signed thinking and errors of generated message streams are what Anthropic's SDK reads."""
    model = unasked("anthropic")
    for seed in range(STREAMS):
        pieces, expected = generated(seed, anthropic_stream)
        with anthropic.Anthropic(
            api_key="x", base_url="http://oracle", max_retries=0, http_client=http_client(anthropic, pieces)
        ) as sdk:
            text, calls, failure, thoughts = anthropic_says(sdk)
        events, error = we_say(model, pieces)
        assert text_of(events) == text, f"seed {seed}"
        assert bool(error) == bool(failure) == bool(expected.error), f"seed {seed}"
        if error:
            assert error == expected.error, f"seed {seed}"
            continue
        done = [event.reasoning for event in events if isinstance(event, ReasoningDone)]
        assert [(one.text, one.signature) for one in done if not one.redacted] == thoughts, f"seed {seed}"
        assert thought_of(events) == "".join(thought for thought, _ in thoughts), f"seed {seed}"
        assert calls_in(events) == calls == expected.calls, f"seed {seed}"


def test_responses_mean_the_same_to_the_sdk_and_to_us() -> None:
    """Text, calls, encrypted reasoning and errors of generated Responses streams are what OpenAI's SDK reads."""
    model = unasked("responses")
    for seed in range(RESPONSES):
        pieces, expected = generated(seed, responses_stream)
        with openai.OpenAI(
            api_key="x", base_url="http://oracle", max_retries=0, http_client=http_client(openai, pieces)
        ) as sdk:
            text, calls, failure, thoughts = responses_say(sdk)
        events, error = we_say(model, pieces)
        assert (text_of(events), error) == (text, failure), f"seed {seed}"
        assert bool(error) == bool(expected.error), f"seed {seed}"
        if error:
            continue
        done = [event.reasoning for event in events if isinstance(event, ReasoningDone)]
        assert [(one.id, one.text, one.signature) for one in done] == thoughts, f"seed {seed}"
        assert text == expected.text, f"seed {seed}"
        assert calls_in(events) == calls == expected.calls, f"seed {seed}"


def has_everything(expected: Expected) -> bool:
    """Whether a stream has text and a call with arguments, and does not fail."""
    return bool(expected.text and any(arguments for _, _, arguments in expected.calls) and not expected.error)


def size_of(seed: int, make: Callable[[Random], tuple[Any, Expected]]) -> int:
    return len(str(make(Random(seed))[0]))


@pytest.mark.parametrize("wire", WIRES)
def test_one_stream_split_at_every_byte(wire: str) -> None:
    """Wherever one stream is cut in two, the events are the same."""
    make, model = MAKERS[wire], unasked(wire)
    for end in ENDS:
        complete = [seed for seed in range(99) if has_everything(make(Random(seed))[1])]
        seed = min(complete, key=lambda seed: size_of(seed, make))  # each cut reads all of it
        rng = Random(seed)
        data = write(rng, make(rng)[0], end)
        whole = we_say(model, [data])
        for at in range(1, len(data)):
            assert we_say(model, [data[:at], data[at:]]) == whole, at
        assert we_say(model, [bytes([byte]) for byte in data]) == whole


@pytest.mark.parametrize("wire", WIRES)
def test_generated_streams_over_a_real_connection(wire: str) -> None:
    """The same holds when the bytes come through a socket."""
    make = MAKERS[wire]

    async def scenario() -> None:
        async with FakeProvider() as provider:
            model = model_for(wire, provider)
            for seed in range(NETWORK_STREAMS):
                pieces, expected = generated(seed, make)
                provider.script(raw(*pieces))
                if expected.error:
                    with pytest.raises(ProviderError) as caught:
                        await collect(model)
                    assert caught.value.message == expected.error, f"seed {seed}"
                    continue
                events = await collect(model)
                assert (text_of(events), calls_in(events)) == (expected.text, expected.calls), f"seed {seed}"
            assert len(provider.requests) == NETWORK_STREAMS

    run(scenario())
