"""How many tokens fit: what is set, what a server says, what its name says, what a refusal names."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import msgspec
import pytest

from halter import Agent, Compaction
from halter.models import AnthropicModel, ContextTooLong, LocalModel, OpenAIModel, UserMessage
from halter.models.context_window import ask_context_window, known_context_window, window_in_error
from halter.models.errors import provider_error
from halter.models.tokens import message_tokens, prompt_tokens, text_tokens
from halter.models.types import AssistantMessage, Audio, Image, Reasoning, ToolCall, ToolSpec
from halter.testing import FakeProvider, ScriptedModel, answer
from tests.support.looped import looped

PAGES: dict[str, dict[str, Any]] = {
    "vLLM": {"/v1/models": {"data": [{"id": "other", "max_model_len": 1}, {"id": "m", "max_model_len": 4096}]}},
    "OpenRouter": {"/v1/models": {"data": [{"id": "m", "context_length": 4096}]}},
    "Groq": {"/v1/models": {"data": [{"id": "m", "context_window": 4096}]}},
    "llama.cpp": {"/v1/models": {"data": [{"id": "m"}]}, "/props": {"default_generation_settings": {"n_ctx": 4096}}},
    "Ollama": {"/api/ps": {"models": [{"name": "m:latest", "context_length": 4096}]}},
}


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the test of the bound should depend on it: a busy machine takes seconds to import the HTTP client."""
    monkeypatch.setattr("halter.models.openai.server_window._SECONDS", 30.0)


@pytest.mark.parametrize("server", PAGES)
@looped
async def test_a_server_is_asked_once(server: str) -> None:
    """Each kind of server says it in another place; what it says is kept."""
    async with FakeProvider(pages=PAGES[server]) as provider:
        model = OpenAIModel("m", base_url=provider.openai_url, api_key="k")
        assert known_context_window(model) is None
        assert await ask_context_window(model) == 4096
        asked = len(provider.pages_read)
        assert await ask_context_window(model) == 4096
        assert len(provider.pages_read) == asked
        assert not provider.requests


@pytest.mark.parametrize("pages", [{}, {"/v1/models": []}, {"/v1/models": {"data": [{"id": "m"}]}}, {"/props": "x"}])
@looped
async def test_a_server_that_does_not_say_it(pages: dict[str, Any]) -> None:
    """Then it is not known, unless by the name; and it is not asked for ever."""
    async with FakeProvider(pages=pages) as provider:
        model = OpenAIModel("m", base_url=provider.openai_url, api_key="k")
        for _ in range(5):
            assert await ask_context_window(model) is None
        assert len(provider.pages_read) == 9
        named = OpenAIModel("gpt-4o-mini", base_url=provider.openai_url, api_key="k")
        assert await ask_context_window(named) == 128_000


@looped
async def test_no_server_at_all() -> None:
    """The request that follows has its own error; this one has none."""
    model = OpenAIModel("m", base_url="http://127.0.0.1:1/v1", api_key="k")
    assert await ask_context_window(model) is None


def test_what_is_known_without_asking() -> None:
    """A setting, the embedded model's own, the table of names; a user's own model may have the attribute."""
    assert known_context_window(OpenAIModel("gpt-5-mini", api_key="k")) == 272_000
    assert known_context_window(AnthropicModel("claude-sonnet-4-5", api_key="k")) == 200_000
    assert known_context_window(OpenAIModel("gpt-5", api_key="k", context_window=10_000)) == 10_000
    assert known_context_window(OpenAIModel("anthropic/claude-opus-4", api_key="k")) == 200_000
    assert known_context_window(LocalModel()) == 8192
    assert known_context_window(ScriptedModel()) is None


REFUSALS: dict[str, tuple[dict[str, Any], int | None]] = {
    "openai": ({"message": "This model's maximum context length is 8192 tokens. However, you requested 9000"}, 8192),
    "anthropic": ({"message": "prompt is too long: 210000 tokens > 200000 maximum"}, 200_000),
    "llama.cpp": (
        {"message": "the request exceeds the available context size", "n_ctx": 4096},
        4096,
    ),
    "unnamed": ({"message": "input is too long", "code": "context_length_exceeded"}, None),
}


@pytest.mark.parametrize("provider", REFUSALS)
def test_a_refusal_names_the_window(provider: str) -> None:
    """As the providers write it."""
    body, window = REFUSALS[provider]
    error = provider_error(msgspec.json.encode({"error": body}), status=400)
    assert isinstance(error, ContextTooLong)
    assert window_in_error(error) == window


@looped
async def test_a_stop_while_the_server_is_asked() -> None:
    """The question is closed at once, and it is the turn's stop, not an error."""
    asked = asyncio.Event()

    class Slow(ScriptedModel):
        async def ask_context_window(self) -> int | None:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

    async with Agent(Slow("Well."), instructions="word " * 3_000).session() as session:
        work = asyncio.ensure_future(session.arun("hello"))
        await asked.wait()
        await session.astop()
        turn = await work
        assert (turn.status, turn.reason) == ("interrupted", "stop")


@looped
async def test_a_silent_server_delays_the_turn_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it goes on without knowing the window."""
    monkeypatch.setattr("halter.models.openai.server_window._SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        assert await ask_context_window(OpenAIModel("m", base_url=url, api_key="k")) is None


def test_a_short_conversation_asks_nobody() -> None:
    """No model has a window so small that it would matter."""
    with FakeProvider(answer("Well."), pages=PAGES["vLLM"]) as provider:
        model = OpenAIModel("m", base_url=provider.openai_url, api_key="k")
        with Agent(model).session() as session:
            session.run("hello")
            assert not provider.pages_read
            assert session.context.window is None
            session.run("word " * 2_000)
            assert provider.pages_read
            assert session.context.window == 4096


def test_the_setting_wins() -> None:
    """Compaction(window=) is asked first."""
    with Agent(LocalModel(), compaction=Compaction(window=1024)).session() as session:
        assert session.context.window == 1024


def test_estimates_are_high() -> None:
    """Text by its bytes, images and recordings by a fixed measure, tools by their schema."""
    assert text_tokens("abc" * 10) == 10
    assert text_tokens("日本語") == 3
    assert text_tokens("") == 0
    call = ToolCall("c1", "look", '{"at": "everything"}')
    assert message_tokens(AssistantMessage("", [call], [Reasoning("thinking")])) > 10
    assert message_tokens(UserMessage([Image(b"x")])) > 1_000
    assert message_tokens(UserMessage([Audio(b"x" * 32_000)])) > 60
    assert prompt_tokens("Be kind.", [ToolSpec("look", "Look at it.")]) > 10
