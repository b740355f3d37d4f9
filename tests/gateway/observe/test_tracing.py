"""Spans, as OpenTelemetry's own SDK exports them."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import SpanKind, StatusCode

from halter import Agent, ToolContext, tool
from halter.models import Backoff, ToolCall
from halter.models.errors import ProviderError
from halter.models.types import Usage
from halter.testing import Gate, ScriptedModel
from halter.toolbox.delegate import Delegate
from tests.support.gateway_client import gateway_of
from tests.support.looped import looped

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Spans(InMemorySpanExporter):
    """What was exported, in order."""

    def named(self, *names: str) -> list[ReadableSpan]:
        return [span for span in self.get_finished_spans() if span.name in names]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span


def about(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def number(span: ReadableSpan) -> int:
    context = span.context
    assert context is not None
    found: int = context.span_id
    return found


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    exporter = Spans()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


def test_each_attempt_of_a_request_is_a_span(spans: Spans) -> None:
    """A retry is seen: the failed attempt has the status error, and the next one its token counts, as has the turn."""

    @looped
    async def run() -> None:
        answer = ["Hello.", Usage(input_tokens=12, output_tokens=3, cached_tokens=5)]
        async with gateway_of(ProviderError("connection lost", status=503), answer) as (gateway, client):
            for agent in gateway.registry.agents.values():
                agent.backoff = Backoff(base=0.0)
            await client.create()
            await client.post("Hi.")
            await client.finished()

    run()
    first, second = spans.named("chat scripted")
    assert (first.status.status_code, about(first)["halter.status"]) == (StatusCode.ERROR, "failed")
    assert "connection lost" in (first.status.description or "")
    assert (second.status.status_code, about(second)["halter.status"]) == (StatusCode.UNSET, "complete")
    assert [about(each)["halter.attempt"] for each in (first, second)] == [1, 2]
    assert about(second)["gen_ai.response.finish_reasons"] == ("stop",)
    for span in (second, spans.one("invoke_agent halter")):
        assert about(span)["gen_ai.usage.input_tokens"] == 12
        assert about(span)["gen_ai.usage.output_tokens"] == 3
        assert about(span)["gen_ai.usage.cache_read.input_tokens"] == 5


def test_a_request_that_fails_has_the_status_error(spans: Spans) -> None:
    """So has the turn that fails with it."""

    @looped
    async def run() -> None:
        async with gateway_of(ProviderError("no such model", status=404)) as (_, client):
            await client.create()
            await client.post("Hi.")
            await client.finished()

    run()
    for name in ("chat scripted", "invoke_agent halter"):
        span = spans.one(name)
        assert span.status.status_code == StatusCode.ERROR
        assert "no such model" in (span.status.description or "")
        assert about(span)["error.type"]


def test_a_stop_is_an_event_of_the_turns_span(spans: Spans) -> None:
    """A turn is a span, with its requests and calls below it; the stop stands in it, with who, why and when."""

    @tool
    async def hang(ctx: ToolContext) -> str:
        """Wait."""
        await ctx.token.wait_async()
        return ""

    @looped
    async def run() -> None:
        async with gateway_of(ToolCall("c1", "hang"), tools=[hang]) as (_, client):
            await client.create()
            async with client.events() as stream:
                await client.post("Hi.")
                await stream.until("tool.started")
                await client.stop(wait=True, reason="lunch")
                await stream.until("turn.finished")

    run()
    assert len(spans.get_finished_spans()) == 3
    turn = spans.one("invoke_agent halter")
    expected = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "halter",
        "gen_ai.conversation.id": "s",
        "halter.status": "interrupted",
        "halter.reason": "lunch",
    }
    assert expected.items() <= about(turn).items()
    [stop] = turn.events
    assert stop.attributes is not None
    assert (stop.name, stop.attributes["halter.reason"]) == ("stop", "lunch")
    assert turn.start_time is not None
    assert turn.end_time is not None
    assert turn.start_time < stop.timestamp <= turn.end_time
    request, call = spans.one("chat scripted"), spans.one("execute_tool hang")
    assert {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "scripted"}.items() <= about(request).items()
    assert request.kind == SpanKind.CLIENT
    expected = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "hang", "gen_ai.tool.call.id": "c1"}
    assert expected.items() <= about(call).items()
    for span in (request, call):
        assert span.parent is not None
        assert span.parent.span_id == number(turn)


def test_a_delegated_agent_is_a_span(spans: Spans) -> None:
    """With its name, its status and its token counts, below the turn that has delegated."""
    helper = Agent(ScriptedModel(["Done.", Usage(input_tokens=7, output_tokens=2)]), name="helper")
    tools = Delegate([helper]).tools
    arguments = '{"tasks": [{"agent": "helper", "task": "Help."}]}'

    @looped
    async def run() -> None:
        async with gateway_of(ToolCall("c1", "delegate", arguments), "Good.", tools=tools) as (_, client):
            await client.create()
            await client.post("Hi.")
            await client.finished()

    run()
    turn, child = spans.one("invoke_agent halter"), spans.one("invoke_agent helper")
    assert child.parent is not None
    assert child.parent.span_id == number(turn)
    expected = {
        "gen_ai.agent.name": "helper",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 2,
        "halter.status": "done",
    }
    assert expected.items() <= about(child).items()


def test_a_turn_continues_the_trace_of_the_request(spans: Spans) -> None:
    """The header `traceparent` of a message, with or without an id, is the parent of its turn's span; the trace of a
    steer is linked, for a span has one parent; a trace that is not sampled is not exported.
    """
    gate = Gate()

    @looped
    async def run() -> None:
        async with gateway_of("One.", ["Two ", gate], "Three.", "Four.", "Five.") as (_, client):
            for session, flags, text in [("a", "01", "Hi."), ("b", "01", "Go on."), ("c", "00", "Quietly.")]:
                await client.create(session)
                headers = {"traceparent": f"00-{TRACE}-{PARENT}-{flags}"}
                path = f"/v1/sessions/{session}/messages"
                assert (await client.ask("POST", path, {"text": text}, headers=headers)).status == 202
                if session == "b":
                    async with client.events(session) as stream:
                        await stream.until("text.delta")
                    body = {"text": "Now.", "mode": "steer", "id": "steer"}
                    headers = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
                    assert (await client.ask("POST", path, body, headers=headers)).status == 202
                await client.finished(session)
            await client.create("d")
            await client.post("No header.", "d")
            await client.finished("d")

    run()
    first, second, other = spans.named("invoke_agent halter")
    for span in (first, second):
        assert span.context is not None
        assert f"{span.context.trace_id:032x}" == TRACE
        assert span.parent is not None
        assert f"{span.parent.span_id:016x}" == PARENT
    [link] = second.links
    assert f"{link.context.trace_id:032x}" == "1" * 32
    assert other.parent is None
    assert about(other)["gen_ai.conversation.id"] == "d"


def test_a_completion_continues_the_trace_of_its_request(spans: Spans) -> None:
    """An OpenAI client that sends `traceparent` finds the turn below its own span, by the id of the answer."""
    found: list[str] = []

    @looped
    async def run() -> None:
        async with gateway_of("One.") as (_, client):
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            body = {"model": "halter", "messages": [{"role": "user", "content": "Hi."}]}
            answer = await client.ask("POST", "/v1/chat/completions", body, headers=headers)
            found.append(answer.body["id"])

    run()
    span = spans.one("invoke_agent halter")
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == PARENT
    assert about(span)["gen_ai.conversation.id"] == found[0]
    assert about(span)["halter.status"] == "done"


def test_attributes_are_those_of_the_conventions(spans: Spans) -> None:
    """Each attribute that begins with gen_ai is one that the SDK's conventions name."""

    @tool
    def look() -> str:
        """Look."""
        return "seen"

    @looped
    async def run() -> None:
        async with gateway_of(ToolCall("c1", "look"), "Done.", tools=[look]) as (_, client):
            await client.create()
            await client.post("Hi.")
            await client.finished()

    run()
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    used = {key for span in spans.get_finished_spans() for key in about(span) if key.startswith("gen_ai.")}
    assert len(used) > 8
    assert used <= known
