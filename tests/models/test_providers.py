"""Providers by name: where requests go, with which key, and what differs from OpenAI's own server."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from halter import _own_keys
from halter.models import (
    AssistantMessage,
    ConnectionFailed,
    Message,
    ModelCall,
    ModelError,
    ModelRequest,
    ModelSettings,
    OpenAIModel,
    Reasoning,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from halter.models.http.wire import HTTPModel
from halter.models.providers import PROVIDERS, guess_provider
from halter.models.registry import find_model
from halter.testing import FakeProvider, raw
from tests.support.ports import held_ports
from tests.support.wires import HELLO, ask, run, text_of, thought_of

ADDRESSES = {
    "openai": ("OPENAI_API_KEY", "https://api.openai.com/v1/chat/completions"),
    "openai-responses": ("OPENAI_API_KEY", "https://api.openai.com/v1/responses"),
    "anthropic": ("ANTHROPIC_API_KEY", "https://api.anthropic.com/v1/messages"),
    "gemini": (
        "GEMINI_API_KEY",
        "https://generativelanguage.googleapis.com/v1beta/models/m:streamGenerateContent?alt=sse",
    ),
    "openrouter": ("OPENROUTER_API_KEY", "https://openrouter.ai/api/v1/chat/completions"),
    "groq": ("GROQ_API_KEY", "https://api.groq.com/openai/v1/chat/completions"),
    "mistral": ("MISTRAL_API_KEY", "https://api.mistral.ai/v1/chat/completions"),
    "deepseek": ("DEEPSEEK_API_KEY", "https://api.deepseek.com/v1/chat/completions"),
    "xai": ("XAI_API_KEY", "https://api.x.ai/v1/chat/completions"),
    "together": ("TOGETHER_API_KEY", "https://api.together.xyz/v1/chat/completions"),
    "azure": ("AZURE_OPENAI_API_KEY", "/openai/v1/chat/completions"),
    "ollama": ("OLLAMA_API_KEY", "http://127.0.0.1:11434/v1/chat/completions"),
    "lmstudio": ("LMSTUDIO_API_KEY", "http://127.0.0.1:1234/v1/chat/completions"),
    "vllm": ("VLLM_API_KEY", "http://127.0.0.1:8000/v1/chat/completions"),
}
LOCAL = [name for name, provider in PROVIDERS.items() if provider.start]
WITH_KEY = [name for name in PROVIDERS if name not in LOCAL]
CALL = ToolCall("call_with_a_long_id", "search", "{}")
STEERED: list[Message] = [
    UserMessage.of("go"),
    AssistantMessage("", [CALL], [Reasoning("let me see"), Reasoning("signed", "by another provider")]),
    ToolMessage.of(CALL, "found"),
    UserMessage.of("faster"),
]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove what the environment may say of any provider."""
    for provider in PROVIDERS.values():
        for name in (provider.key_variable, provider.other_key_variable or "-", provider.url_variable):
            monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("OPENAI_API_VERSION", raising=False)


def found(name: str) -> HTTPModel:
    model = find_model(f"{name}:m")
    assert isinstance(model, HTTPModel)
    return model


def sent(model: HTTPModel, messages: list[Message], **settings: Any) -> Any:
    """The body as the server reads it."""
    request = ModelRequest(messages, settings=ModelSettings(**settings))
    return msgspec.json.decode(msgspec.json.encode(model.body(request)))


def test_every_provider_has_its_address_and_key() -> None:
    """The table of providers is this one, and the programs take every key in it out of the environment."""
    assert {name: (found(name).provider.key_variable, found(name).url()) for name in PROVIDERS} == ADDRESSES
    keys = {provider.key_variable for provider in PROVIDERS.values()}
    keys |= {provider.other_key_variable for provider in PROVIDERS.values() if provider.other_key_variable}
    assert keys <= set(_own_keys._OUR_KEYS)


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_request_goes_to_the_address_with_the_key(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The address and the key of the environment are used, the key in the header that the provider reads."""
    provider = PROVIDERS[name]
    with FakeProvider() as server:
        url = server.openai_url if provider.wire in ("chat", "responses") and name != "azure" else server.url
        monkeypatch.setenv(provider.url_variable, url.removesuffix("/v1") if name == "ollama" else url)
        monkeypatch.setenv(provider.key_variable, "the-key")
        assert text_of(ask(found(name))) == "ok"
        assert "the-key" in "".join(server.requests[0].headers.values())
        assert "the-key" not in server.requests[0].path


@pytest.mark.parametrize("name", WITH_KEY)
def test_a_missing_key_is_named_before_any_request(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Without its key a provider is not asked, once or again; the error names the variable."""
    if not PROVIDERS[name].url:
        monkeypatch.setenv(PROVIDERS[name].url_variable, "https://somewhere.invalid")
    call = ModelCall(found(name), HELLO)
    with pytest.raises(ModelError, match=f"{PROVIDERS[name].key_variable} is not set") as caught:
        run(call.run())
    assert type(caught.value) is ModelError
    assert call.answer.attempts == 1


def test_a_server_of_ones_own_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """With another address the key may be missing, and no empty one is sent."""
    with FakeProvider() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.openai_url)
        assert text_of(ask(found("openai"))) == "ok"
        assert "authorization" not in server.requests[0].headers


@pytest.mark.parametrize("name", LOCAL)
def test_a_local_server_that_is_not_running(name: str) -> None:
    """The error says what does not run, where it should, and how to start it; no key is asked for."""
    provider = PROVIDERS[name]
    with held_ports() as (port,), pytest.raises(ConnectionFailed) as caught:
        ask(OpenAIModel("m", provider=name, base_url=(url := f"http://127.0.0.1:{port}/v1")))
    assert all(part in str(caught.value) for part in (provider.title, url, provider.start))


def test_azure_needs_an_endpoint() -> None:
    """Azure has no address of its own: the error names the variable that holds one's own."""
    with pytest.raises(ModelError, match="AZURE_OPENAI_ENDPOINT is not set"):
        ask(found("azure"))


def test_azure_has_two_forms_of_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its current API by default; with OPENAI_API_VERSION the dated one, which has the deployment in its path."""
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://mine.openai.azure.com/")
    assert found("azure").url() == "https://mine.openai.azure.com/openai/v1/chat/completions"
    monkeypatch.setenv("OPENAI_API_VERSION", "2024-10-21")
    dated = "https://mine.openai.azure.com/openai/deployments/m/chat/completions?api-version=2024-10-21"
    assert found("azure").url() == dated
    model = OpenAIModel("m", provider="azure", base_url="https://mine.openai.azure.com", api_key="k")
    assert model.auth_headers() == {"api-key": "k"}
    assert sent(model, STEERED, max_output_tokens=5)["max_completion_tokens"] == 5


def test_what_mistral_refuses_is_not_sent() -> None:
    """No unknown fields; ids of nine letters and digits, the same in call and result; no user right after a result."""
    body = sent(found("mistral"), STEERED, seed=7, max_output_tokens=5)
    assert body["random_seed"] == 7
    assert body["max_tokens"] == 5
    assert not {"stream_options", "seed", "max_completion_tokens"} & set(body)
    roles = [message["role"] for message in body["messages"]]
    assert ("tool", "user") not in pairwise(roles)
    assert roles == ["user", "assistant", "tool", "assistant", "user"]
    call = body["messages"][1]["tool_calls"][0]["id"]
    assert len(call) == 9
    assert call.isalnum()
    assert body["messages"][2]["tool_call_id"] == call
    kept = ToolCall("a1B2c3D4e", "f")
    assert sent(found("mistral"), [AssistantMessage("", [kept])])["messages"][0]["tool_calls"][0]["id"] == kept.id


def test_mistral_thinks_in_parts() -> None:
    """Thinking that comes as a part of the content is reasoning, and not text."""
    deltas: list[Any] = [
        [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}],
        [{"type": "text", "text": "yes"}, "?", {"type": "reference"}],
    ]
    chunks: list[Any] = [{"choices": [{"delta": {"content": delta}, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    with FakeProvider(raw(*(b"data: %s\n\n" % msgspec.json.encode(chunk) for chunk in chunks))) as server:
        events = ask(OpenAIModel("m", provider="mistral", base_url=server.openai_url, api_key="k"))
    assert (thought_of(events), text_of(events)) == ("hm", "yes")


def test_deepseek_gets_its_reasoning_back() -> None:
    """DeepSeek refuses an answer without its reasoning: that is sent back, or an empty text. Others get none."""
    messages = [*STEERED, AssistantMessage("done")]
    answers = [each for each in sent(found("deepseek"), messages)["messages"] if each["role"] == "assistant"]
    assert [each["reasoning_content"] for each in answers] == ["let me see", ""]
    assert "reasoning_content" not in str(sent(found("groq"), messages))


@pytest.mark.parametrize("name", ["gpt-5", "o3-mini", "claude-opus-4-5", "deepseek-chat", "grok-4", "codestral-latest"])
def test_a_missing_provider_is_suggested(name: str) -> None:
    """In a program a name must have its provider: the error suggests the one that is known for it."""
    with pytest.raises(ValueError, match=f"Did you mean '{guess_provider(name)}:{name}'"):
        find_model(name)


def test_an_unknown_provider_is_refused() -> None:
    """A provider that nobody knows is refused where it is named, with those that are known."""
    with pytest.raises(ValueError, match="no provider named 'nobody'; known: openai, "):
        OpenAIModel("m", provider="nobody")


def test_unknown_names_are_not_guessed() -> None:
    """A name that is not known, or that has a provider already, is left alone."""
    assert guess_provider("llama3") is None
    assert guess_provider("ollama:gpt-oss") is None
