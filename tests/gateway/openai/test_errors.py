"""Errors are as OpenAI's clients know them, whatever is sent."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai import (
    APIStatusError,
    AuthenticationError,
    BadRequestError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitError,
)

from halter.gateway import GatewayLimits
from halter.testing import Gate, ScriptedModel
from tests.support.gateway_client import Client, gateway_of, keys_of
from tests.support.looped import looped
from tests.support.openai_client import HELLO, openai_client, openai_gateway

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
CALLED = {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f"}}]}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def said(*content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}]}


def shown(url: str) -> dict[str, Any]:
    return said({"type": "image_url", "image_url": {"url": url}})


def heard(data: str, kind: str) -> dict[str, Any]:
    return said({"type": "input_audio", "input_audio": {"data": data, "format": kind}})


def schema(wanted: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "wanted", "schema": wanted}}


NESTED: Any = {"type": "string"}
for _ in range(400):
    NESTED = {"type": "object", "properties": {"a": NESTED}}

WRONG: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": None}, "messages"),
    (CHAT, {"messages": [{"role": "system", "content": "Be."}]}, "messages"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content"),
    (CHAT, {"messages": [{"content": "x"}]}, "messages[0].role"),
    (CHAT, {"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages[0].role"),
    (CHAT, {"messages": [*HELLO, CALLED]}, "messages"),
    (CHAT, {"messages": [*HELLO, {"role": "tool", "tool_call_id": "a", "content": "x"}]}, "messages"),
    (CHAT, said({"type": "file", "file": {}}), "messages[0].content[0].type"),
    (CHAT, said({"type": "text", "text": "x"}, IMAGE), "messages[0].content[1].image_url.url"),
    (CHAT, shown("file:///x"), "messages[0].content[0].image_url.url"),
    (CHAT, shown("data:image/png;base64,!"), "messages[0].content[0].image_url.url"),
    (CHAT, heard("AAAA", "aiff"), "messages[0].content[0].input_audio"),
    (CHAT, heard("", "wav"), "messages[0].content[0].input_audio"),
    (CHAT, {"tools": TOOLS}, "tools"),
    (CHAT, {"functions": [{"name": "f"}]}, "functions"),
    (CHAT, {"n": 2}, "n"),
    (CHAT, {"response_format": {"type": "xml"}}, "response_format.type"),
    (CHAT, {"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (CHAT, {"response_format": schema({"type": "array", "items": {"type": "string"}})}, "response_format"),
    (CHAT, {"response_format": schema({"type": "object", "properties": 5})}, "response_format"),
    (CHAT, {"response_format": schema({"type": "object", "properties": {"a": {"anyOf": 1}}})}, "response_format"),
    (CHAT, {"response_format": schema({"type": "object", "properties": {"a": {"enum": {}}}})}, "response_format"),
    (CHAT, {"response_format": schema(NESTED)}, "response_format"),
    (CHAT, {"temperature": 3}, "temperature"),
    (CHAT, {"top_p": -1}, "top_p"),
    (CHAT, {"max_tokens": 0}, "max_tokens"),
    (CHAT, {"seed": 2**70}, "seed"),
    (CHAT, {"stop": ["a"] * 5}, "stop"),
    (CHAT, {"reasoning_effort": "enormous"}, "reasoning_effort"),
    (CHAT, {"stream": "yes"}, "stream"),
    (CHAT, {"model": ""}, "model"),
    (CHAT, {"model": None}, "model"),
    (RESPONSES, {"input": []}, "input"),
    (RESPONSES, {"input": " "}, "input"),
    (RESPONSES, {"input": 1}, "input"),
    (RESPONSES, {"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    (RESPONSES, {"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    (RESPONSES, {"input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]}, "input"),
    (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type"),
    (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "a b", "schema": {}}}}, "text.format.name"),
    (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "a", "schema": {}}}}, "text.format"),
    (RESPONSES, {"tools": TOOLS}, "tools"),
]


@looped
async def test_each_wrong_field_is_named() -> None:
    """With 400, a text, and OpenAI's type of error; the model is not asked."""
    model = ScriptedModel()
    async with gateway_of(model=model) as (_, client):
        for path, fields, param in WRONG:
            body = {"model": "halter", "messages": HELLO, "input": "Hello."} | fields
            answer = await client.ask("POST", path, body)
            assert answer.status == 400, (fields, answer)
            error = answer.body["error"]
            assert (error["param"], error["type"]) == (param, "invalid_request_error"), (fields, error)
            assert error["message"]
            assert answer.headers["Content-Type"].startswith("application/json")
    assert not model.requests


@looped
async def test_tools_of_the_client_are_refused_unless_the_model_may_not_call_them() -> None:
    """The error says why: the agent has its own."""
    tools: Any = TOOLS
    async with openai_gateway("Hi.") as (_, client, _):
        with pytest.raises(BadRequestError, match="the agent has its own tools") as refused:
            await client.chat.completions.create(model="halter", messages=HELLO, tools=tools)
        assert refused.value.param == "tools"
        done = await client.chat.completions.create(model="halter", messages=HELLO, tools=tools, tool_choice="none")
        assert done.choices[0].message.content == "Hi."


@looped
async def test_unknown_models_and_wrong_keys(tmp_path: Path) -> None:
    """404, 401 and 403, as the exceptions that belong to them; `read` may list models and not run them."""
    keys, made = keys_of(tmp_path)
    async with gateway_of("Hi.", keys=keys) as (gateway, _):
        async with openai_client(gateway, "wrong") as stranger:
            with pytest.raises(AuthenticationError) as unknown:
                await stranger.models.list()
            assert (unknown.value.code, unknown.value.type) == ("invalid_api_key", "invalid_request_error")
            with pytest.raises(AuthenticationError):
                await stranger.chat.completions.create(model="halter", messages=HELLO)
        async with openai_client(gateway, made["read"]) as reader:
            assert [each.id for each in (await reader.models.list()).data] == ["halter"]
            with pytest.raises(PermissionDeniedError, match="scope 'write'"):
                await reader.responses.create(model="halter", input="Hello.")
        async with openai_client(gateway, made["write"]) as writer:
            with pytest.raises(NotFoundError) as none:
                await writer.chat.completions.create(model="gpt-5", messages=HELLO)
            assert (none.value.code, none.value.param) == ("model_not_found", "model")
            assert "halter" in none.value.message
            done = await writer.chat.completions.create(model="halter", messages=HELLO)
            assert done.choices[0].message.content == "Hi."


@looped
async def test_limits_hold() -> None:
    """Turns at a time, messages of a key, and the size of a body: refused with when to try again, nothing is run."""
    gate = Gate()
    limits = GatewayLimits(key_turns=1, key_messages=2, upload=5_000)
    model = ScriptedModel(["One ", gate, "two."], "Three.")
    async with openai_gateway(model=model, limits=limits) as (gateway, client, own):
        asking = asyncio.create_task(client.chat.completions.create(model="halter", messages=HELLO))
        await gate.await_reached()
        with pytest.raises(RateLimitError, match="too many turns") as busy:
            await client.chat.completions.create(model="halter", messages=HELLO)
        assert (busy.value.code, busy.value.type) == ("rate_limit_exceeded", "rate_limit_error")
        assert int(busy.value.response.headers["Retry-After"]) >= 1
        await own.create()
        assert (await own.post("Hello.")).status == 429  # they are counted with those of sessions
        gate.open()
        await asking
        await client.chat.completions.create(model="halter", messages=HELLO)
        with pytest.raises(RateLimitError, match="messages per minute"):
            await client.chat.completions.create(model="halter", messages=HELLO)
        with pytest.raises(APIStatusError) as large:
            await client.chat.completions.create(model="halter", messages=[{"role": "user", "content": "x" * 5_000}])
        assert large.value.status_code == 413
        assert len(model.requests) == 2
        assert not gateway.registry.busy


BODIES = [
    b"",
    b"{",
    b"\xff",
    b"[]",
    b"null",
    b'"x"',
    b"[" * 50_000,
    b'{"model": "halter"}',
    b'{"model": 1e400}',
    b"NaN",
]


@looped
async def test_bodies_that_are_no_requests() -> None:
    """400, or 415 for another type of content; also what is nested deeply, or is no UTF-8."""
    async with gateway_of() as (_, client):
        for path in (CHAT, RESPONSES):
            for data in BODIES:
                headers = {"Content-Type": "application/json"}
                answer = await client.ask("POST", path, data=data, headers=headers)
                assert (answer.status, set(answer.body)) == (400, {"error"}), (data[:20], answer)
            answer = await client.ask("POST", path, data=b"x", headers={"Content-Type": "text/plain"})
            assert (answer.status, answer.body["error"]["param"]) == (415, "Content-Type")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["user", "assistant", "tool", "system"]) | JSON,
        "type": st.sampled_from(["message", "function_call", "function_call_output"]) | JSON,
        "content": st.just("Hello.") | JSON,
        "tool_calls": st.just(CALLED["tool_calls"]) | JSON,
        "tool_call_id": st.just("a") | JSON,
        "call_id": st.just("a") | JSON,
        "output": JSON,
        "name": JSON,
    },
)
BODY = st.fixed_dictionaries(
    {"model": st.just("halter")},
    optional={
        "messages": st.lists(MESSAGE, max_size=4) | JSON,
        "input": st.lists(MESSAGE, max_size=4) | JSON,
        "stream": st.booleans() | JSON,
        "tools": JSON,
        "stop": JSON,
        "stream_options": JSON,
        "reasoning": JSON,
        "text": JSON,
    },
)


@settings(deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))
@given(st.lists(BODY, min_size=10, max_size=10))
def test_garbage_is_refused_and_nothing_else_happens(bodies: list[Any]) -> None:
    """Whatever the fields are, the answer is 200 or 400, never 500; and nothing stays open."""

    @looped
    async def run() -> None:
        async with gateway_of(*["Hi."] * 20) as (gateway, client):
            for body in bodies:
                for path in (CHAT, RESPONSES):
                    answer = await client.ask("POST", path, data=json.dumps(body), headers=JSON_TYPE)
                    assert answer.status in (200, 400), (body, answer)
            assert not gateway.registry.busy

    run()


JSON_TYPE = {"Content-Type": "application/json"}


@looped
async def test_an_unexpected_error_hides_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has it; the client gets a 500 of OpenAI's form."""

    def fail(self: Any) -> None:
        raise RuntimeError("the secret text")

    async with gateway_of() as (gateway, client):
        assert isinstance(client, Client)
        monkeypatch.setattr(type(gateway.registry), "run_transient", lambda self, live: fail(self))
        answer = await client.ask("POST", CHAT, {"model": "halter", "messages": HELLO})
    assert answer.status == 500
    assert answer.body["error"]["type"] == "server_error"
    assert "secret" not in answer.data.decode()
